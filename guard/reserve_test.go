package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// away opens a guard in a bubble. The test can cut off the guard's Redis.
func away(t *testing.T, p guard.Policy, test func(w *world, n *network, g *guard.Guard[string])) {
	faulty(t, p, cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) { test(w, n, g) })
}

// back lets Redis answer again and returns when the guard is served by it.
func back(w *world, n *network, g *guard.Guard[string]) {
	w.Helper()
	n.refuses.Store(false)
	n.blackHole.Store(false)
	time.Sleep(10 * time.Second) // fake: until the probe and the subscription have been there
}

// losesAll has the guard keep the values of so many keys, which Redis loses in an outage. It
// returns when the store is at work again.
func losesAll(w *world, n *network, g *guard.Guard[string], keys int, fetch func(context.Context) (string, error)) {
	w.Helper()
	for range 2 {
		for i := range keys {
			get(w, g, fmt.Sprint("k", i), fetch)
		}
	}
	n.cut()
	for i := range keys {
		get(w, g, fmt.Sprint("k", i), never)
	}
	w.server.FlushAll()
	n.refuses.Store(false)
	time.Sleep(3 * time.Second) // fake
}

// findBroken reads keys that are not there until the client has found its broken connections.
func findBroken(g *guard.Guard[string], keys int) {
	for failed := true; failed; {
		var fails atomic.Int32
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				if _, err := g.Peek(ctx, fmt.Sprint("absent", i)); !errors.Is(err, guard.ErrMiss) {
					fails.Add(1)
				}
			})
		}
		wg.Wait()
		failed = fails.Load() > 0
		time.Sleep(10 * time.Millisecond) // fake: the breaker may have opened
	}
}

// load asks for a key and returns the result.
func loadFrom(w *world, g *guard.Guard[string], key string, o *origin) guard.Result[string] {
	w.Helper()
	r, err := g.Load(ctx, key, func(ctx context.Context, _ *guard.Fill[string]) (string, error) { return o.fetch(ctx) })
	must(w, err)
	return r
}

func TestOutageIsServedFromTheReserve(t *testing.T) {
	for name, cut := range map[string]func(n *network){
		"refused":    (*network).cut,
		"black hole": func(n *network) { n.blackHole.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			away(t, policy(func(p *guard.Policy) { p.Observer = rec }), func(w *world, n *network, g *guard.Guard[string]) {
				o := &origin{takes: 100 * time.Millisecond}
				get(w, g, "k", o.fetch)
				many, err := g.GetMany(ctx, []string{"a", "b"}, (&manyOrigin{}).fetch)
				must(w, err)
				_, err = g.GetMany(ctx, []string{"a", "b"}, (&manyOrigin{}).fetch) // read, as the next caller would
				must(w, err)
				time.Sleep(time.Second)
				cut(n)
				for i := range 100 {
					start := time.Now()
					r := loadFrom(w, g, "k", o)
					if r.Value != "v1" || r.Source != guard.FromReserve || r.Stored {
						w.Fatalf("call %d: %+v", i, r)
					}
					if took := time.Since(start); took > 20*time.Millisecond {
						w.Errorf("call %d took %v", i, took)
					}
					if r.Age < time.Second || r.Age+r.TTL != time.Minute {
						w.Errorf("call %d: it is %v old, and fresh for %v", i, r.Age, r.TTL)
					}
					start = time.Now()
					again, err := g.GetMany(ctx, []string{"a", "b", "k"}, (&manyOrigin{}).fetch)
					if err != nil || again["a"] != many["a"] || again["b"] != many["b"] || again["k"] != "v1" {
						w.Fatalf("GetMany %d: %v, %v", i, again, err)
					}
					if took := time.Since(start); took > 20*time.Millisecond {
						w.Errorf("GetMany %d took %v", i, took)
					}
					start = time.Now()
					p, err := g.Peek(ctx, "k")
					if err != nil || p.Value != "v1" || p.Source != guard.FromReserve || time.Since(start) > 20*time.Millisecond {
						w.Errorf("Peek: %+v, %v after %v", p, err, time.Since(start))
					}
					peeked, err := g.PeekMany(ctx, []string{"a", "k", "unknown"})
					if !errors.Is(err, guard.ErrUnavailable) || peeked["a"].Value != many["a"] || peeked["k"].Source != guard.FromReserve || len(peeked) != 2 {
						w.Errorf("PeekMany: %+v, %v", peeked, err)
					}
					start = time.Now()
					peeked, err = g.PeekMany(ctx, []string{"a", "k"})
					if err != nil || len(peeked) != 2 || time.Since(start) > 20*time.Millisecond {
						w.Errorf("PeekMany: %+v, %v after %v", peeked, err, time.Since(start))
					}
					time.Sleep(50 * time.Millisecond)
				}
				o.fetched(w, 1)
				if n := rec.count(cache.ReserveEntered); n != 1 {
					w.Errorf("the reserve was entered %d times", n)
				}
				if s := g.Stats(); s.ReserveEntries != 3 || s.ReserveBytes == 0 || s.ReserveHits < 300 {
					w.Errorf("%+v", s)
				}
				back(w, n, g)
				if r := loadFrom(w, g, "k", o); r.Source != guard.FromStore {
					w.Errorf("with Redis back: %+v", r)
				}
				if n := rec.count(cache.ReserveLeft); n != 1 {
					w.Errorf("the reserve was left %d times", n)
				}
			})
		})
	}
}

func TestOutageCostsOneFetchPerKeyAndTTL(t *testing.T) {
	for name, stale := range map[string]time.Duration{"no stale values": 0, "stale values": time.Hour} {
		t.Run(name, func(t *testing.T) {
			away(t, policy(func(p *guard.Policy) { p.StaleIfError = stale }), func(w *world, n *network, g *guard.Guard[string]) {
				o := &origin{takes: 100 * time.Millisecond}
				n.cut()
				time.Sleep(time.Second)
				var slow int
				for range 6000 { // ten minutes, ten TTLs
					start := time.Now()
					loadFrom(w, g, "k", o)
					if time.Since(start) > 20*time.Millisecond {
						slow++
					}
					time.Sleep(100 * time.Millisecond)
				}
				if n := o.n.Load(); n < 10 || n > 12 {
					w.Errorf("%d fetches in ten TTLs", n)
				}
				if slow > 3 { // the first call, and those that came before the breaker opened
					w.Errorf("%d callers waited", slow)
				}
			})
		})
	}
}

// A failed refresh is made at most MaxUnguarded times at once, and does not harm.
func TestStaleReserveValueSurvivesItsFailingOrigin(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.StaleIfError, p.MaxUnguarded = time.Hour, 2 })
	away(t, p, func(w *world, n *network, g *guard.Guard[string]) {
		ok := &origin{}
		for i := range 20 {
			get(w, g, fmt.Sprint("k", i), ok.fetch)
		}
		n.cut()
		time.Sleep(2 * time.Minute)
		var running, most atomic.Int32
		bad := func(context.Context, *guard.Fill[string]) (string, error) {
			now := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			}
			time.Sleep(50 * time.Millisecond)
			return "", errors.New("down")
		}
		for range 100 {
			for i := range 20 {
				r, err := g.Load(ctx, fmt.Sprint("k", i), bad)
				if err != nil || r.Source != guard.FromReserve || r.TTL != 0 {
					w.Fatalf("%+v, %v", r, err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if most.Load() > 2 {
			w.Errorf("%d fetches at once, want MaxUnguarded", most.Load())
		}
	})
}

func TestOwnChangeRemovesTheReserveValue(t *testing.T) {
	for name, change := range map[string]func(g *guard.Guard[string]) error{
		"Delete":     func(g *guard.Guard[string]) error { return g.Delete(ctx, "k") },
		"DeleteMany": func(g *guard.Guard[string]) error { return g.DeleteMany(ctx, []string{"j", "k"}) },
		"Set":        func(g *guard.Guard[string]) error { return g.Set(ctx, "k", "new") },
		"Expire":     func(g *guard.Guard[string]) error { return g.Expire(ctx, "k") },
		"DeleteTag":  func(g *guard.Guard[string]) error { return g.DeleteTag(ctx, "t") },
	} {
		for _, when := range []string{"before the outage", "during the outage"} {
			t.Run(name+" "+when, func(t *testing.T) {
				p := policy(func(p *guard.Policy) { p.Tags, p.StaleIfError = []string{"t"}, time.Hour })
				away(t, p, func(w *world, n *network, g *guard.Guard[string]) {
					o := &origin{}
					get(w, g, "k", o.fetch)
					get(w, g, "k", o.fetch)
					if when == "before the outage" {
						must(w, change(g))
						n.cut()
					} else {
						n.cut()
						if change(g) == nil {
							w.Fatal("it was acknowledged")
						}
					}
					if r := loadFrom(w, g, "k", o); r.Source != guard.UnguardedFetch || r.Value != "v2" {
						w.Errorf("%+v", r)
					}
					if r := loadFrom(w, g, "k", o); r.Source != guard.FromReserve || r.Value != "v2" {
						w.Errorf("then: %+v", r)
					}
				})
			})
		}
	}
}

// A fetch that a Delete has met puts nothing into the reserve.
func TestDeleteDuringAnUnguardedFetchIsHeeded(t *testing.T) {
	away(t, policy(), func(w *world, n *network, g *guard.Guard[string]) {
		n.cut()
		time.Sleep(time.Second)
		o := &origin{takes: time.Second}
		done := make(chan guard.Result[string])
		go func() { done <- loadFrom(w, g, "k", o) }()
		time.Sleep(500 * time.Millisecond)
		_ = g.Delete(ctx, "k")
		<-done
		if r := loadFrom(w, g, "k", o); r.Value != "v2" || r.Source != guard.UnguardedFetch {
			w.Errorf("%+v", r)
		}
	})
}

// Another process's change that this one has heard of counts as its own.
func TestHeardChangeRemovesTheReserveValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		w := &world{T: t, server: server}
		o := server.Options()
		n := &network{dial: o.Dialer}
		o.Dialer, o.DialerRetries = n.Dial, 1
		client := redis.NewClient(o)
		mine, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
		must(w, err)
		other, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test"})
		must(w, err)
		g, changer := w.guard(mine, policy()), w.guard(other, policy())
		time.Sleep(time.Second)
		from := &origin{}
		get(w, g, "k", from.fetch)
		get(w, g, "l", from.fetch)
		must(w, changer.Delete(ctx, "k"))
		time.Sleep(time.Second)
		n.cut()
		if r := loadFrom(w, g, "k", from); r.Source != guard.UnguardedFetch {
			w.Errorf("the deleted key: %+v", r)
		}
		if r := loadFrom(w, g, "l", from); r.Source != guard.FromReserve {
			w.Errorf("the other key: %+v", r)
		}
		n.refuses.Store(false)
		_ = g.Close()
		_ = changer.Close()
		time.Sleep(time.Minute)
		must(w, errors.Join(mine.Close(), other.Close(), client.Close()))
		time.Sleep(time.Minute)
	})
}

func TestGuardWithoutReserveFetches(t *testing.T) {
	for name, change := range map[string]func(p *guard.Policy){
		"off":         func(p *guard.Policy) { p.Reserve.MaxBytes = guard.Off },
		"fail closed": func(p *guard.Policy) { p.FailClosed = true },
	} {
		t.Run(name, func(t *testing.T) {
			away(t, policy(change), func(w *world, n *network, g *guard.Guard[string]) {
				o := &origin{}
				get(w, g, "k", o.fetch)
				n.cut()
				r, err := g.Load(ctx, "k", func(ctx context.Context, _ *guard.Fill[string]) (string, error) { return o.fetch(ctx) })
				if name == "off" && (err != nil || r.Source != guard.UnguardedFetch) {
					w.Errorf("%+v, %v", r, err)
				}
				if name != "off" && !errors.Is(err, guard.ErrUnavailable) {
					w.Errorf("%+v, %v", r, err)
				}
			})
		})
	}
}

func TestReserveKeepsWithinItsBounds(t *testing.T) {
	for name, bound := range map[string]guard.Reserve{"bytes": {MaxBytes: 100 << 10}, "entries": {MaxEntries: 50}} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(w *world) {
				g := w.fleet(1, policy(func(p *guard.Policy) { p.Reserve = bound }))[0]
				var wg sync.WaitGroup
				for i := range 4 {
					wg.Go(func() {
						for j := range 500 {
							key := fmt.Sprint(i, "-", j)
							get(w, g, key, func(context.Context) (string, error) { return string(make([]byte, j)), nil })
						}
					})
				}
				wg.Wait()
				s := g.Stats()
				if bound.MaxBytes > 0 && (s.ReserveBytes > bound.MaxBytes || s.ReserveBytes < bound.MaxBytes/2) {
					w.Errorf("%d bytes of %d", s.ReserveBytes, bound.MaxBytes)
				}
				if bound.MaxEntries > 0 && s.ReserveEntries != bound.MaxEntries {
					w.Errorf("%d entries of %d", s.ReserveEntries, bound.MaxEntries)
				}
			})
		})
	}
}

func TestNotFoundIsServedFromTheReserve(t *testing.T) {
	away(t, policy(func(p *guard.Policy) { p.Negative = time.Minute }), func(w *world, n *network, g *guard.Guard[string]) {
		n.cut()
		time.Sleep(time.Second)
		var fetches int
		for range 20 {
			if _, err := g.Get(ctx, "k", func(context.Context) (string, error) { fetches++; return "", guard.ErrNotFound }); !errors.Is(err, guard.ErrNotFound) {
				w.Errorf("%v", err)
			}
		}
		if fetches != 1 {
			w.Errorf("%d fetches", fetches)
		}
	})
}

// A caller that accepts no stored value gets none of the reserve either.
func TestMaxAgeBoundsTheReserve(t *testing.T) {
	away(t, policy(), func(w *world, n *network, g *guard.Guard[string]) {
		o := &origin{}
		get(w, g, "k", o.fetch)
		n.cut()
		time.Sleep(10 * time.Second)
		for _, age := range []time.Duration{0, 5 * time.Second} {
			if v, err := g.Get(ctx, "k", o.fetch, guard.MaxAge(age)); err != nil || !slices.Contains([]string{"v2", "v3"}, v) {
				w.Errorf("MaxAge(%v): %q, %v", age, v, err)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

func TestEmptyRedisIsRefilledAtABoundedRate(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxUnguarded = 8 }) // two refreshes at once
	away(t, p, func(w *world, n *network, g *guard.Guard[string]) {
		const keys = 50
		var running, most, fetches atomic.Int32
		fetch := func(context.Context) (string, error) {
			now := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			}
			fetches.Add(1)
			time.Sleep(20 * time.Millisecond)
			return "v", nil
		}
		losesAll(w, n, g, keys, fetch)
		fetches.Store(0)
		most.Store(0)
		for range 100 {
			var wg sync.WaitGroup
			for i := range keys {
				wg.Go(func() {
					start := time.Now()
					get(w, g, fmt.Sprint("k", i), fetch)
					if took := time.Since(start); took > time.Millisecond {
						w.Errorf("a caller waited %v", took)
					}
				})
			}
			wg.Wait()
			time.Sleep(20 * time.Millisecond)
		}
		if fetches.Load() != keys || most.Load() > 2 {
			w.Errorf("%d fetches of %d keys, %d at once", fetches.Load(), keys, most.Load())
		}
		for i := range keys {
			if _, src := source(w, g, fmt.Sprint("k", i)); src != guard.FromStore {
				w.Errorf("k%d is from %v", i, src)
			}
		}
	})
}

func TestReserveKeepsAllValuesThatFit(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		const keys = 5000
		for i := range 2 * keys {
			get(w, g, fmt.Sprint("k", i%keys), func(context.Context) (string, error) { return "v", nil })
		}
		if n := g.Stats().ReserveEntries; n != keys {
			w.Errorf("%d entries of %d", n, keys)
		}
	})
}

// All callers of a short outage were served after 15 ms of silence, and no call has failed.
func TestShortOutageIsNotFollowedByAHerd(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxUnguarded = 8 }) // two refreshes at once
	away(t, p, func(w *world, n *network, g *guard.Guard[string]) {
		const keys = 50
		o := &origin{takes: 20 * time.Millisecond}
		for i := range 2 * keys {
			get(w, g, fmt.Sprint("k", i%keys), o.fetch)
		}
		n.blackHole.Store(true)
		get(w, g, "k0", never)
		time.Sleep(400 * time.Millisecond)
		w.server.FlushAll()
		n.cut() // ends the connections from the black hole
		n.refuses.Store(false)
		n.blackHole.Store(false)
		time.Sleep(3 * time.Second) // fake: until the store is at work
		findBroken(g, 10*keys)
		o.n.Store(0)
		for i := range keys {
			go get(w, g, fmt.Sprint("k", i), o.fetch)
		}
		time.Sleep(10 * time.Millisecond)
		if n := o.n.Load(); n == 0 || n > 2 {
			w.Errorf("%d fetches at once", n)
		}
		time.Sleep(time.Second)
	})
}

// A value that Redis has disowned between two outages is not served in the second.
func TestReserveForgetsAValueThatBecamePrivate(t *testing.T) {
	away(t, policy(), func(w *world, n *network, g *guard.Guard[string]) {
		s, err := cache.NewRedis(w.server.Client(), cache.Options{Namespace: "test"})
		must(w, err)
		other := w.guard(s, policy())
		get(w, g, "k", (&origin{}).fetch)
		get(w, g, "k", never)
		n.cut()
		get(w, g, "k", never)
		must(w, other.Delete(ctx, "k"))
		private := func(_ context.Context, f *guard.Fill[string]) (string, error) {
			f.Private = true
			return "private", nil
		}
		_, err = other.Load(ctx, "k", private)
		must(w, err)
		n.refuses.Store(false)
		time.Sleep(3 * time.Second) // fake: until the store is at work
		findBroken(g, 100)
		_, err = g.Load(ctx, "k", private)
		must(w, err)
		n.cut()
		if r, err := g.Load(ctx, "k", private); err != nil || r.Value != "private" {
			w.Errorf("%+v, %v", r, err)
		}
		must(w, errors.Join(other.Close(), s.Close()))
	})
}

func TestReserveLastsThroughOutagesInARow(t *testing.T) {
	away(t, policy(), func(w *world, n *network, g *guard.Guard[string]) {
		o := &origin{}
		for _, key := range []string{"a", "b", "a", "b"} {
			get(w, g, key, o.fetch)
		}
		for range 3 {
			n.cut()
			get(w, g, "a", never)
			n.refuses.Store(false)
			time.Sleep(3 * time.Second) // fake: until the store is at work
			findBroken(g, 100)
			if r := loadFrom(w, g, "a", o); r.Source != guard.FromStore {
				w.Errorf("%+v", r)
			}
		}
		n.cut()
		get(w, g, "b", never)
	})
}
