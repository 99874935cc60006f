package cache_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// A fetchCount is an Observer: quick, and safe for concurrent use.
type fetchCount struct{ started, failed atomic.Int64 }

func (c *fetchCount) Observe(ev cache.Event) {
	switch ev.Kind {
	case cache.FetchStarted:
		c.started.Add(1)
	case cache.FetchFailed:
		c.failed.Add(1)
	}
}

// Several observers see each event, in their order.
func ExampleObservers() {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	ours, theirs := new(fetchCount), new(fetchCount)
	names, err := guard.New[string](store, "names", guard.Policy{
		TTL:      time.Minute,
		Observer: cache.Observers(ours, nil, theirs),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	for range 3 {
		_, err = names.Get(context.Background(), "42", func(context.Context) (string, error) { return "Ada", nil })
	}
	fmt.Println("fetches:", ours.started.Load(), theirs.started.Load(), err)
	// Output: fetches: 1 1 <nil>
}

// JSON is readable with redis-cli and from any language.
func ExampleJSON() {
	payload, err := cache.JSON{}.Marshal(map[string]int{"answer": 42})
	fmt.Println(string(payload), err)
	// Output: {"answer":42} <nil>
}

// Strings and bytes are stored as they are, all other types as MessagePack.
func ExampleCodecFor() {
	type user struct{ Name string }
	fmt.Printf("%T %T\n", cache.CodecFor[string](), cache.CodecFor[user]())
	// Output: cache.Raw cache.MsgPack
}
