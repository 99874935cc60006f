package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// Peek reads and never fetches.
func ExampleGuard_Peek() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	_, err = names.Peek(context.Background(), "42")
	fmt.Println(errors.Is(err, guard.ErrMiss))
	// Output: true
}

// An operator sees a pause that an upstream asked for, and ends it.
func ExampleGuard_Reset() {
	store := exampleStore()
	defer store.Close()
	quotes, err := guard.New[Quote](store, "quotes", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer quotes.Close()

	ctx := context.Background()
	busy := errors.New("503 Service Unavailable")
	_, err = quotes.Get(ctx, "EURUSD", func(context.Context) (Quote, error) {
		return Quote{}, guard.RetryAfter(busy, time.Hour)
	})
	pause, _ := guard.PauseOf(err)
	fmt.Println(errors.Is(err, busy), pause.Round(time.Minute))

	state, err := quotes.Inspect(ctx, "EURUSD")
	fmt.Println("paused:", state.Pause > 0, err)
	if err := quotes.Reset(ctx, "EURUSD"); err != nil {
		log.Fatal(err)
	}
	state, err = quotes.Inspect(ctx, "EURUSD")
	fmt.Println("paused:", state.Pause > 0, err)
	// Output:
	// true 1h0m0s
	// paused: true <nil>
	// paused: false <nil>
}

// A panic of a fetch is an error of its callers and ends no process.
func ExamplePanicError() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	_, err = names.Get(context.Background(), "42", func(context.Context) (string, error) {
		panic("no such table")
	})
	var panicked *guard.PanicError
	fmt.Println(errors.As(err, &panicked), panicked.Value)
	// Output: true no such table
}
