package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// While Redis is away, values that this process has seen are served from its reserve. A
// change is queued, and removes the value here at once.
func ExampleReserve() {
	addr, stopRedis := exampleRedis()
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer rdb.Close()
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{
		TTL:     time.Minute,
		Stale:   time.Hour,
		Reserve: guard.Reserve{MaxBytes: 8 << 20}, // 32 MiB by default
	})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	ctx := context.Background()
	load := func() (guard.Result[string], error) {
		return names.Load(ctx, "42", func(context.Context, *guard.Fill[string]) (string, error) { return "Ada", nil })
	}
	for names.Stats().ReserveEntries == 0 { // until the new process hears of changes
		if _, err := load(); err != nil {
			log.Fatal(err)
		}
	}

	stopRedis()
	r, err := load()
	fmt.Println(r.Value, r.Source, err)
	err = names.Delete(ctx, "42")
	fmt.Println("queued:", errors.Is(err, guard.ErrQueued))
	r, err = load()
	fmt.Println(r.Value, r.Source, err)
	// Output:
	// Ada reserve <nil>
	// queued: true
	// Ada unguarded <nil>
}

// FailClosed prefers an error to a fetch that nothing coordinates.
func ExamplePolicy_failClosed() {
	addr, stopRedis := exampleRedis()
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer rdb.Close()
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	bills, err := guard.New[int](store, "bills", guard.Policy{TTL: time.Minute, FailClosed: true})
	if err != nil {
		log.Fatal(err)
	}
	defer bills.Close()

	stopRedis()
	_, err = bills.Get(context.Background(), "42", func(context.Context) (int, error) { return 7, nil })
	fmt.Println(errors.Is(err, guard.ErrUnavailable))
	// Output: true
}
