package cache_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// A fetchCount is an Observer: quick, and safe for concurrent use if its guard is.
type fetchCount struct{ started, failed int }

func (c *fetchCount) Observe(ev cache.Event) {
	switch ev.Kind {
	case cache.FetchStarted:
		c.started++
	case cache.FetchFailed:
		c.failed++
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
	fmt.Println(*ours, *theirs, err)
	// Output: {1 0} {1 0} <nil>
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
