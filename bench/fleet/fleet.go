package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/bench/peer"
)

// A Fleet is some processes with the same system open.
type Fleet []*Process

// StartFleet starts n of them. Their clients have connections when it returns:
// each has answered a burst of 20 callers.
func StartFleet(ctx context.Context, n int, s peer.System, o peer.Options) (Fleet, error) {
	f := make(Fleet, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range f {
		p, err := Start()
		if err != nil {
			wg.Wait()
			f[:i].Stop()
			return nil, err
		}
		f[i] = p
		wg.Go(func() {
			_, errs[i] = p.Do(ctx, Order{Do: Open, System: s.Name, Options: o})
			if errs[i] == nil && !s.Limit {
				_, errs[i] = p.Do(ctx, Order{
					Do: Burst, Key: "warm-up", Callers: 20, Deadline: 10 * time.Second, Fetch: Origin{Value: "w"},
				})
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		f.Stop()
		return nil, fmt.Errorf("opening %s: %w", s.Name, err)
	}
	return f, nil
}

// Do gives all the same order, and returns when all have answered.
func (f Fleet) Do(ctx context.Context, o Order) ([]Event, error) {
	events := make([]Event, len(f))
	errs := make([]error, len(f))
	var wg sync.WaitGroup
	for i, p := range f {
		wg.Go(func() { events[i], errs[i] = p.Do(ctx, o) })
	}
	wg.Wait()
	return events, errors.Join(errs...)
}

// Stop ends all.
func (f Fleet) Stop() {
	var wg sync.WaitGroup
	for _, p := range f {
		if p != nil {
			wg.Go(p.Stop)
		}
	}
	wg.Wait()
}

// Calls are those of all events.
func Calls(events []Event) []Call {
	var all []Call
	for _, e := range events {
		all = append(all, e.Calls...)
	}
	return all
}

// Fetches are those of all events.
func Fetches(events []Event) []Span {
	var all []Span
	for _, e := range events {
		all = append(all, e.Fetches...)
	}
	return all
}
