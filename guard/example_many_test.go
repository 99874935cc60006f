package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// The fetch is asked for the keys that the store lacks. A key that it leaves out does not
// exist.
func ExampleGuard_GetMany() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	ctx := context.Background()
	if err := names.Set(ctx, "1", "Ada"); err != nil {
		log.Fatal(err)
	}
	users := map[string]string{"1": "Ada", "2": "Grace"}
	found, err := names.GetMany(ctx, []string{"1", "2", "3"}, func(_ context.Context, ids []string) (map[string]string, error) {
		fmt.Println("fetching", slices.Sorted(slices.Values(ids)))
		rows := make(map[string]string)
		for _, id := range ids {
			if name, ok := users[id]; ok {
				rows[id] = name
			}
		}
		return rows, nil
	})
	fmt.Println(found, err)
	// Output:
	// fetching [2 3]
	// map[1:Ada 2:Grace] <nil>
}

// Each key has terms of its own, and a source.
func ExampleGuard_LoadMany() {
	store := exampleStore()
	defer store.Close()
	quotes, err := guard.New[Quote](store, "quotes", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer quotes.Close()

	fetch := func(_ context.Context, fills []*guard.Fill[Quote]) (map[string]Quote, error) {
		got := make(map[string]Quote)
		for _, f := range fills {
			if f.Key == "EURUSD" {
				f.TTL = 5 * time.Second // this price moves
			}
			got[f.Key] = Quote{Pair: f.Key, Price: 1.08}
		}
		return got, nil
	}
	results, err := quotes.LoadMany(context.Background(), []string{"EURUSD", "EURCHF"}, fetch)
	for _, pair := range []string{"EURUSD", "EURCHF"} {
		fmt.Println(pair, results[pair].Source, results[pair].TTL)
	}
	fmt.Println(err)
	// Output:
	// EURUSD fetched 5s
	// EURCHF fetched 1m0s
	// <nil>
}

// One key fails and the others live.
func ExampleBatchError() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	locked := errors.New("row is locked")
	found, err := names.GetMany(context.Background(), []string{"1", "2"}, func(context.Context, []string) (map[string]string, error) {
		return map[string]string{"1": "Ada"}, &guard.BatchError{Errs: map[string]error{"2": locked}}
	})
	var batch *guard.BatchError
	if errors.As(err, &batch) {
		fmt.Println(found, "failed:", batch.Errs)
	}
	fmt.Println(errors.Is(err, locked))
	// Output:
	// map[1:Ada] failed: map[2:row is locked]
	// true
}

func ExampleGuard_SetMany() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	ctx := context.Background()
	if err := names.SetMany(ctx, map[string]string{"1": "Ada", "2": "Grace"}, "staff"); err != nil {
		log.Fatal(err)
	}
	if err := names.DeleteMany(ctx, []string{"2"}); err != nil {
		log.Fatal(err)
	}
	stored, err := names.PeekMany(ctx, []string{"1", "2"})
	fmt.Println(len(stored), stored["1"].Value, err)
	// Output: 1 Ada <nil>
}
