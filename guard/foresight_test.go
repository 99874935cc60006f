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
	"github.com/stampedeguard/stampede/internal/tap"
)

// coldGuard is a guard that has met a row of misses, and foresees the next.
func coldGuard(w *world, s cache.Store, p guard.Policy) (*guard.Guard[string], *atomic.Int32) {
	w.Helper()
	counter := tap.New(s)
	g := w.guard(counter, p)
	row(w, g, "cold")
	if n := counter.Lone.Swap(0); n != guard.MissesInARow {
		w.Fatalf("%d reads of %d keys", n, guard.MissesInARow)
	}
	return g, &counter.Lone
}

// row is a row of misses, of keys with a prefix.
func row(w *world, g *guard.Guard[string], prefix string) {
	w.Helper()
	for i := range guard.MissesInARow {
		get(w, g, fmt.Sprint(prefix, i), func(context.Context) (string, error) { return "cold", nil })
	}
}

func TestRowOfMissesGoesOnUnread(t *testing.T) {
	inWorlds(t, func(w *world) {
		g, reads := coldGuard(w, w.open(), policy(noReserve))
		o := &origin{}
		for i := range 10 {
			get(w, g, fmt.Sprint("k", i), o.fetch)
		}
		o.fetched(w, 10)
		if n := reads.Load(); n > 0 {
			w.Errorf("%d reads of keys that were foreseen to be missing", n)
		}
		// A key that is there is served without a fetch, and read before it is asked for
		// from then on, as are the next.
		for i := range 10 {
			get(w, g, fmt.Sprint("k", i), never)
		}
		get(w, g, "another", o.fetch)
		if n := reads.Load(); n != 10 {
			w.Errorf("%d reads of 11 keys, the first of which was foreseen to be missing", n)
		}
		if s := g.Stats(); s.Unread != 11 || s.Misled != 1 {
			w.Errorf("%d flights unread, %d misled", s.Unread, s.Misled)
		}
		o.fetched(w, 11)
	})
}

// A caller that didn't foresee the entry gets the same as a caller that reads it. This
// holds for each kind of entry.
func TestWrongForesightIsHarmless(t *testing.T) {
	p := policy(func(p *guard.Policy) {
		p.TTL, p.Stale, p.StaleIfError, p.Negative = time.Minute, time.Minute, 5*time.Minute, time.Minute
		p.Beta = guard.Off
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
		{name: "fresh", before: func(*world, *guard.Guard[string]) {}, fetch: never, want: "stored", source: guard.FromStore},
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
				if n := reads.Load(); n > 2 { // its tags before it is fetched anew, and again to stand in for an error
					w.Errorf("%d reads", n)
				}
			})
		})
	}
}

// The callers that joined a misled flight before its acquire may get the fallback entry. For
// later callers the entry may have been deleted since.
func TestLaterCallersBorrowNoDeletedValue(t *testing.T) {
	p := policy(func(p *guard.Policy) {
		p.StaleIfError, p.SoftTimeout, p.Beta = 5*time.Minute, 100*time.Millisecond, guard.Off
	})
	inRedis(t, func(w *world) { // where the holder of a lease hears late that it has lost it
		other := w.fleet(1, p)[0]
		g, _ := coldGuard(w, w.open(), p)
		must(w, other.Set(context.Background(), "k", "stored"))
		time.Sleep(2 * time.Minute)
		o := &origin{takes: time.Second}
		there := make(chan string, 1)
		go func() { there <- get(w, g, "k", o.fetch) }()
		time.Sleep(10 * time.Millisecond)
		must(w, other.Delete(context.Background(), "k"))
		if v := get(w, g, "k", o.fetch); v != "v2" {
			w.Errorf("the caller after the Delete got %q", v)
		}
		if v := <-there; v != "stored" {
			w.Errorf("the caller from before got %q", v)
		}
		o.fetched(w, 2)
	})
}

// Many callers that find one key missing at the same moment count as one miss.
func TestCallersOfOneMissAreNoRow(t *testing.T) {
	inWorlds(t, func(w *world) {
		counter := tap.New(w.open())
		reads, g := &counter.Lone, w.guard(counter, policy())
		o := &origin{takes: time.Second}
		for _, a := range callers([]*guard.Guard[string]{g}, 10*guard.MissesInARow, "k", o.fetch) {
			must(w, a.err)
		}
		o.fetched(w, 1)
		before := reads.Load()
		get(w, g, "another", o.fetch)
		if n := reads.Load() - before; n != 1 {
			w.Errorf("%d reads of the next key", n)
		}
	})
}

// One caller fetches and the others wait, in each process, though none has read.
func TestUnreadCallersShareAFetch(t *testing.T) {
	inWorlds(t, func(w *world) {
		var fleet []*guard.Guard[string]
		var reads []*atomic.Int32
		for range 3 {
			g, r := coldGuard(w, w.open(), policy())
			fleet, reads = append(fleet, g), append(reads, r)
			time.Sleep(2 * time.Minute) // the entries stored by coldGuard are gone
		}
		o := &origin{takes: 200 * time.Millisecond}
		for _, a := range callers(fleet, 20, "k", o.fetch) {
			if a.value != "v1" || a.err != nil {
				w.Errorf("got %+v", a)
			}
		}
		o.fetched(w, 1)
		for i, r := range reads {
			if n := r.Load(); n != 0 {
				w.Errorf("%d reads in process %d", n, i)
			}
		}
	})
}

// Under an exhausted budget a caller can only get the stored entry. So the caller reads the
// entry and asks for no lease.
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
		if n := reads.Load(); n != keys {
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
		p := policy(func(p *guard.Policy) { p.FailClosed = true })
		g, reads := coldGuard(w, w.open(), p)
		w.server.SetError("LOADING")
		if _, err := g.Get(context.Background(), "k", never); !errors.Is(err, guard.ErrUnavailable) {
			w.Errorf("got %v", err)
		}
		w.server.SetError("")
		time.Sleep(10 * time.Second)
		reads.Store(0)
		get(w, g, "k", (&origin{}).fetch)
		if n := reads.Load(); n != 1 {
			w.Errorf("%d reads after an error", n)
		}
	})
}

// A caller that finds a stale value without a read reports it and has it refreshed. The same
// holds for a value that is due for an early refresh.
func TestStaleValueThatWasUnforeseenIsRefreshed(t *testing.T) {
	for name, age := range map[string]time.Duration{"stale": 90 * time.Second, "due": 59 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				events := &recorder{}
				p := policy(func(p *guard.Policy) { p.Stale, p.Observer = time.Minute, events })
				other := w.fleet(1, p)[0]
				g, reads := coldGuard(w, w.open(), p)
				o := &origin{takes: 2 * time.Second}
				get(w, other, "k", o.fetch)
				time.Sleep(age)
				if v := get(w, g, "k", o.fetch); v != "v1" {
					w.Errorf("got %q", v)
				}
				if n := reads.Load(); n != 0 {
					w.Errorf("%d reads", n)
				}
				time.Sleep(3 * time.Second)
				o.fetched(w, 2)
				if n := events.count(cache.StaleServed); name == "stale" && n != 1 || name == "due" && n != 0 {
					w.Errorf("%d stale values were told of", n)
				}
				if s := g.Stats(); s.Refreshes != 1 {
					w.Errorf("%d refreshes", s.Refreshes)
				}
			})
		})
	}
}

// Misses in between don't keep a key in use from being refreshed early.
func TestWarmKeyAmongMissesIsRefreshedEarly(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		o := &origin{takes: 2 * time.Second}
		get(w, g, "warm", o.fetch)
		for second := range 130 { // more than two TTLs
			start := time.Now()
			get(w, g, "warm", o.fetch)
			if d := time.Since(start); d > time.Second {
				w.Errorf("second %d: waited %v", second, d)
			}
			row(w, g, fmt.Sprint(second, ":"))
			time.Sleep(time.Second)
		}
	})
}

// A fetch that replaces the stored value may ask for that value.
func TestRefreshMayAskForItsOwnKey(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		must(w, g.Set(context.Background(), "k", "stored"))
		v, err := g.Get(context.Background(), "k", func(ctx context.Context) (string, error) {
			row(w, g, "cold")
			return g.Get(ctx, "k", never)
		}, guard.MaxAge(0))
		if v != "stored" || err != nil {
			w.Errorf("got %q, %v", v, err)
		}
	})
}

// The entry from an acquire stands in for an error, though Redis is away by then.
func TestUnforeseenValueStandsInWhenRedisIsGone(t *testing.T) {
	for _, c := range []struct {
		name  string
		soft  time.Duration
		fetch func(context.Context) (string, error)
	}{
		{"the fetch fails", 0, func(context.Context) (string, error) { return "", errors.New("the origin is broken") }},
		{"the fetch takes long", time.Second, (&origin{takes: 10 * time.Second}).fetch},
	} {
		t.Run(c.name, func(t *testing.T) {
			inRedis(t, func(w *world) {
				p := policy(func(p *guard.Policy) { p.StaleIfError, p.SoftTimeout = time.Hour, c.soft })
				other := w.fleet(1, p)[0]
				must(w, other.Set(context.Background(), "k", "stored"))
				time.Sleep(2 * time.Minute)
				g, _ := coldGuard(w, w.open(), p)
				start := time.Now()
				v, err := g.Get(context.Background(), "k", func(ctx context.Context) (string, error) {
					w.server.SetError("LOADING")
					defer w.server.SetError("")
					return c.fetch(ctx)
				})
				if d := time.Since(start); v != "stored" || err != nil || d > c.soft+redisTimeout {
					w.Errorf("got %q, %v after %v", v, err, d)
				}
				time.Sleep(20 * time.Second)
			})
		})
	}
}

// No answer is asked for twice. After a miss and a failed fetch, no read is needed to learn
// that there is no entry to stand in for the error.
func TestFailedMissIsNotReadForStale(t *testing.T) {
	inWorlds(t, func(w *world) {
		g, reads := coldGuard(w, w.open(), policy(func(p *guard.Policy) { p.StaleIfError = time.Hour }))
		broken := errors.New("the origin is broken")
		if _, err := g.Get(context.Background(), "k", func(context.Context) (string, error) { return "", broken }); !errors.Is(err, broken) {
			w.Errorf("got %v", err)
		}
		if n := reads.Load(); n != 0 {
			w.Errorf("%d reads", n)
		}
	})
}

// A Redis that is about to fail over by plan, say, holds scripts back and answers
// reads.
func TestStoredIsServedUnforeseenWhileWritesArePaused(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.FailClosed = true })
	g, _, server := behindProxy(t, p, nil)
	w := &world{T: t}
	must(w, g.Set(context.Background(), "k", "stored"))
	row(w, g, "cold")
	must(w, server.Client().Do(context.Background(), "client", "pause", "1000", "write").Err())
	for range 2 {
		if v, err := g.Get(context.Background(), "k", never); v != "stored" || err != nil {
			t.Errorf("got %q, %v", v, err)
		}
	}
}

// A lease's key of a foreign type keeps a key from being fetched, not from being
// served.
func TestStoredIsServedUnforeseenBesideAForeignLease(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.FailClosed = true })
		other := w.fleet(1, p)[0]
		must(w, other.Set(context.Background(), "k", "stored"))
		g, _ := coldGuard(w, w.open(), p)
		must(w, w.server.Client().HSet(context.Background(), "test:{g:k}:lease", "a", "b").Err())
		if v, err := g.Get(context.Background(), "k", never); v != "stored" || err != nil {
			w.Errorf("got %q, %v", v, err)
		}
	})
}
