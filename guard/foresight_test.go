package guard_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// A readCounter counts the reads of single keys.
type readCounter struct {
	cache.Store
	n atomic.Int32
}

func (s *readCounter) Read(ctx context.Context, key string) (*cache.Reading, error) {
	s.n.Add(1)
	return s.Store.Read(ctx, key)
}

// coldGuard is a guard that has met a row of misses, and foresees the next.
func coldGuard(w *world, s cache.Store, p guard.Policy) (*guard.Guard[string], *readCounter) {
	w.Helper()
	counter := &readCounter{Store: s}
	g := w.guard(counter, p)
	for i := range guard.MissesInARow {
		get(w, g, fmt.Sprint("cold", i), func(context.Context) (string, error) { return "cold", nil })
	}
	if n := counter.n.Swap(0); n != guard.MissesInARow {
		w.Fatalf("%d reads of %d keys", n, guard.MissesInARow)
	}
	return g, counter
}

func TestRowOfMissesGoesOnUnread(t *testing.T) {
	inWorlds(t, func(w *world) {
		g, reads := coldGuard(w, w.open(), policy())
		o := &origin{}
		for i := range 10 {
			get(w, g, fmt.Sprint("k", i), o.fetch)
		}
		o.fetched(w, 10)
		if n := reads.n.Load(); n > 0 {
			w.Errorf("%d reads of what was foreseen to be missing", n)
		}
		// A key that is there is served without a fetch, and read before it is asked for
		// from then on, as are the next.
		for i := range 10 {
			get(w, g, fmt.Sprint("k", i), never)
		}
		get(w, g, "another", o.fetch)
		if n := reads.n.Load(); n != 10 {
			w.Errorf("%d reads of 11 keys, the first of which was foreseen to be missing", n)
		}
		o.fetched(w, 11)
	})
}

// Whatever is stored, a caller who didn't foresee it gets what one who reads gets.
func TestWrongForesightIsHarmless(t *testing.T) {
	p := policy(func(p *guard.Policy) {
		p.TTL, p.Stale, p.StaleIfError, p.Negative = time.Minute, time.Minute, 5*time.Minute, time.Minute
		p.Beta = guard.NoEarlyRefresh
	})
	broken := errors.New("the origin is broken")
	value := func(v string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return v, nil }
	}
	fails := func(err error) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return "", err }
	}
	loads := func(g *guard.Guard[string], fetch func(context.Context) (string, error)) (guard.Result[string], error) {
		return g.Load(context.Background(), "k", func(ctx context.Context, f *guard.Fill[string]) (string, error) {
			f.Tags = []string{"tag"}
			return fetch(ctx)
		})
	}
	for _, c := range []struct {
		name   string
		before func(w *world, other *guard.Guard[string])
		fetch  func(context.Context) (string, error)
		want   string
		source guard.Source
		err    error
	}{
		{name: "fresh", before: func(*world, *guard.Guard[string]) {}, fetch: never, want: "stored", source: guard.FromRedis},
		{name: "stale", before: func(*world, *guard.Guard[string]) { time.Sleep(90 * time.Second) }, fetch: value("new"), want: "stored", source: guard.Stale},
		{name: "too old", before: func(*world, *guard.Guard[string]) { time.Sleep(4 * time.Minute) }, fetch: value("new"), want: "new", source: guard.Fetched},
		{name: "good enough for an error", before: func(*world, *guard.Guard[string]) { time.Sleep(4 * time.Minute) }, fetch: fails(broken), want: "stored", source: guard.Stale},
		{name: "gone", before: func(*world, *guard.Guard[string]) { time.Sleep(10 * time.Minute) }, fetch: fails(broken), err: broken},
		{name: "deleted", before: func(w *world, g *guard.Guard[string]) { must(w, g.Delete(context.Background(), "k")) }, fetch: value("new"), want: "new", source: guard.Fetched},
		{name: "expired", before: func(w *world, g *guard.Guard[string]) { must(w, g.Expire(context.Background(), "k")) }, fetch: value("new"), want: "stored", source: guard.Stale},
		{name: "its tag deleted", before: func(w *world, g *guard.Guard[string]) { must(w, g.DeleteTag(context.Background(), "tag")) }, fetch: value("new"), want: "new", source: guard.Fetched},
		{name: "known not to exist", before: func(w *world, g *guard.Guard[string]) {
			must(w, g.Delete(context.Background(), "k"))
			_, _ = g.Get(context.Background(), "k", fails(guard.ErrNotFound))
		}, fetch: never, err: guard.ErrNotFound},
		{name: "private", before: func(w *world, g *guard.Guard[string]) {
			must(w, g.Delete(context.Background(), "k"))
			_, _ = g.Load(context.Background(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
				f.Private = true
				return "another's", nil
			})
		}, fetch: value("mine"), want: "mine", source: guard.Fetched},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				other := w.fleet(1, p)[0]
				g, reads := coldGuard(w, w.open(), p)
				_, err := loads(other, value("stored"))
				must(w, err)
				c.before(w, other)
				r, err := loads(g, c.fetch)
				if r.Value != c.want || r.Source != c.source || !errors.Is(err, c.err) {
					w.Errorf("got %+v, %v; want %q from %v, %v", r, err, c.want, c.source, c.err)
				}
				if n := reads.n.Load(); n > 2 { // its tags before it is fetched anew, and again to stand in for an error
					w.Errorf("%d reads", n)
				}
			})
		})
	}
}

// One caller fetches and the others wait, in each process, though none has read.
func TestUnreadCallersShareAFetch(t *testing.T) {
	inWorlds(t, func(w *world) {
		var fleet []*guard.Guard[string]
		for range 3 {
			g, _ := coldGuard(w, w.open(), policy())
			fleet = append(fleet, g)
			time.Sleep(2 * time.Minute) // what it has stored is gone
		}
		o := &origin{takes: 200 * time.Millisecond}
		for _, a := range callers(fleet, 20, "k", o.fetch) {
			if a.value != "v1" || a.err != nil {
				w.Errorf("got %+v", a)
			}
		}
		o.fetched(w, 1)
	})
}

// What an exhausted budget leaves a caller is what is stored: that is read, and no
// lease asked for that would come to nothing.
func TestKeysAreReadWhenTheBudgetIsExhausted(t *testing.T) {
	inWorlds(t, func(w *world) {
		other := w.fleet(1, policy())[0]
		p := policy()
		b := &sometimesDrained{}
		p.Budget = b
		g, reads := coldGuard(w, w.open(), p)
		const keys = 40 // more than may ask for a lease without hope
		for i := range keys {
			must(w, other.Set(context.Background(), fmt.Sprint("k", i), "stored"))
		}
		b.drained.Store(true)
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				if v, err := g.Get(context.Background(), fmt.Sprint("k", i), never); v != "stored" || err != nil {
					w.Errorf("got %q, %v", v, err)
				}
			})
		}
		wg.Wait()
		if n := reads.n.Load(); n != keys {
			w.Errorf("%d reads of %d keys", n, keys)
		}
	})
}

// sometimesDrained is a budget without bounds, until it is exhausted.
type sometimesDrained struct{ drained atomic.Bool }

func (b *sometimesDrained) Spend(context.Context, guard.Spending) (guard.Expense, error) {
	if b.drained.Load() {
		return nil, &guard.ExhaustedError{Budget: "b", RetryAfter: time.Second}
	}
	return free{}, nil
}
func (b *sometimesDrained) Exhausted(guard.Priority) bool { return b.drained.Load() }
func (b *sometimesDrained) Known() guard.BudgetState      { return guard.BudgetState{} }

type free struct{}

func (free) Settle(int) {}

// A store that doesn't answer is not one that has nothing.
func TestErrorsAreNoMisses(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.WhenUnavailable = guard.FailClosed })
		g, reads := coldGuard(w, w.open(), p)
		w.server.SetError("LOADING")
		if _, err := g.Get(context.Background(), "k", never); !errors.Is(err, guard.ErrUnavailable) {
			w.Errorf("got %v", err)
		}
		w.server.SetError("")
		time.Sleep(10 * time.Second)
		get(w, g, "k", (&origin{}).fetch)
		if n := reads.n.Load(); n != 1 {
			w.Errorf("%d reads after an error", n)
		}
	})
}
