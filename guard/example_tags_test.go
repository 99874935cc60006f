package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

type offer struct {
	Vendor string
	Price  float64
}

// DeleteTag deletes any number of values at the cost of one.
func ExampleGuard_DeleteTag() {
	store := exampleStore()
	defer store.Close()
	offers, err := guard.New[offer](store, "offers", guard.Policy{TTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	defer offers.Close()

	ctx := context.Background()
	_, err = offers.Load(ctx, "EURUSD", func(_ context.Context, f *guard.Fill[offer]) (offer, error) {
		o := offer{"acme", 1.08}
		f.Tags = append(f.Tags, "vendor:"+o.Vendor)
		return o, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := offers.DeleteTag(ctx, "vendor:acme"); err != nil {
		log.Fatal(err)
	}
	_, err = offers.Peek(ctx, "EURUSD")
	fmt.Println(errors.Is(err, guard.ErrMiss))
	// Output: true
}

// ExpireTag leaves the values to be served while they are fetched anew.
func ExampleGuard_ExpireTag() {
	store := exampleStore()
	defer store.Close()
	offers, err := guard.New[offer](store, "offers", guard.Policy{TTL: time.Hour, Stale: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	defer offers.Close()

	ctx := context.Background()
	if err := offers.Set(ctx, "EURUSD", offer{"acme", 1.08}, "vendor:acme"); err != nil {
		log.Fatal(err)
	}
	if err := offers.ExpireTag(ctx, "vendor:acme"); err != nil {
		log.Fatal(err)
	}
	r, err := offers.Peek(ctx, "EURUSD")
	fmt.Println(r.Value.Price, r.Source, err)
	// Output: 1.08 stale <nil>
}

// TagsOf derives the tags from the value, for fetched and for set values alike.
func ExampleTagsOf() {
	store := exampleStore()
	defer store.Close()
	offers, err := guard.New[offer](store, "offers", guard.Policy{TTL: time.Hour},
		guard.TagsOf(func(_ string, o offer) []string { return []string{"vendor:" + o.Vendor} }))
	if err != nil {
		log.Fatal(err)
	}
	defer offers.Close()

	ctx := context.Background()
	err = offers.SetMany(ctx, map[string]offer{"EURUSD": {"acme", 1.08}, "EURCHF": {"initech", 0.93}})
	if err != nil {
		log.Fatal(err)
	}
	if err := offers.DeleteTag(ctx, "vendor:acme"); err != nil {
		log.Fatal(err)
	}
	left, err := offers.PeekMany(ctx, []string{"EURUSD", "EURCHF"})
	fmt.Println(len(left), left["EURCHF"].Value.Vendor, err)
	// Output: 1 initech <nil>
}
