package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A caller that fetches in steps takes a turn. Until the turn ends, the key's other callers
// wait for it in the whole fleet.
func ExampleGuard_Begin() {
	store := exampleStore()
	defer store.Close()
	pages, err := guard.New[string](store, "pages", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	ctx := context.Background()
	for range 2 {
		r, turn, err := pages.Begin(ctx, "/", nil)
		if err != nil {
			log.Fatal(err)
		}
		if turn == nil {
			fmt.Println(r.Value, r.Source)
			continue
		}
		page := "hello" // rendered in parts, say, and sent to a client on the way
		turn.Fill.TTL = 10 * time.Minute
		fmt.Println("stored:", turn.Store(page))
	}
	// Output:
	// stored: true
	// hello store
}

// Fail shares an error with the callers that wait, as a fetch does that returns it.
func ExampleTurn_Fail() {
	store := exampleStore()
	defer store.Close()
	pages, err := guard.New[string](store, "pages", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	ctx := context.Background()
	_, turn, err := pages.Begin(ctx, "/gone", nil)
	if err != nil {
		log.Fatal(err)
	}
	turn.Fail(guard.ErrNotFound)

	_, err = pages.Peek(ctx, "/gone")
	fmt.Println("known not to exist:", errors.Is(err, guard.ErrNotFound))
	// Output: known not to exist: true
}

// An address that redirects yields the value of another key. Also takes that key's turn.
func ExampleTurn_Also() {
	store := exampleStore()
	defer store.Close()
	pages, err := guard.New[string](store, "pages", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	ctx := context.Background()
	_, turn, err := pages.Begin(ctx, "/latest", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer turn.Release() // has no effect after Store

	if version := turn.Also("/v2"); version != nil {
		version.Store("the page")
	}
	turn.Store("the page")
	r, err := pages.Peek(ctx, "/v2")
	fmt.Println(r.Value, err)
	// Output: the page <nil>
}

// A fetch that changes something elsewhere looks whether its lease is lost, by a Delete for
// example.
func ExampleFill_Lost() {
	store := exampleStore()
	defer store.Close()
	orders, err := guard.New[string](store, "orders", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close()

	ctx := context.Background()
	_, err = orders.Load(ctx, "42", func(ctx context.Context, f *guard.Fill[string]) (string, error) {
		if err := orders.Delete(ctx, "42"); err != nil { // by another process, as a rule
			return "", err
		}
		select {
		case <-f.Lost():
			return "", errors.New("not sent: another process may send it")
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	fmt.Println(err)
	// Output: not sent: another process may send it
}
