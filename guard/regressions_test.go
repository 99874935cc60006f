package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// Each of these was wrong once.

// pitfall 8
func TestReentrantFetchOfATooLargeValueFails(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.MaxBytes = 2 }))[0]
		large := func(context.Context) (string, error) { return "too large", nil }
		get(w, g, "k", large)
		_, err := g.Get(context.Background(), "k", func(ctx context.Context) (string, error) { return g.Get(ctx, "k", large) })
		if !errors.Is(err, guard.ErrReentrant) {
			w.Errorf("got %v", err)
		}
	})
}

// A refresh in the background that a fetch set off is not a part of that fetch.
func TestRefreshStartedByAFetchIsNotReentrant(t *testing.T) {
	inWorlds(t, func(w *world) {
		events := &recorder{}
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Stale, p.Observer = time.Hour, events }))[0]
		must(w, g.Set(context.Background(), "b", "old"))
		time.Sleep(2 * time.Minute)
		get(w, g, "a", func(ctx context.Context) (string, error) {
			v, err := g.Get(ctx, "b", func(ctx context.Context) (string, error) {
				return g.Get(ctx, "a", (&origin{}).fetch)
			})
			time.Sleep(time.Second)
			return v, err
		})
		synctest.Wait()
		if n := events.count(cache.RefreshFailed); n != 0 {
			w.Errorf("%d refreshes failed", n)
		}
	})
}

type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

// pitfall 7
func TestErrorThatPanicsLeavesTheKeyUsable(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		_, err := fleet[0].Get(context.Background(), "k", func(context.Context) (string, error) {
			var e *typedNil
			return "", e
		})
		var panicked *guard.PanicError
		if !errors.As(err, &panicked) {
			w.Errorf("got %T", err)
		}
		if a := callers(fleet[1:], 1, "k", (&origin{}).fetch)[0]; a.value != "v1" || a.took > 0 {
			w.Errorf("afterwards: %q, %v after %v", a.value, a.err, a.took)
		}
	})
}

type panicky struct{ on cache.EventKind }

func (p panicky) Observe(e cache.Event) {
	if e.Kind == p.on {
		panic("observer")
	}
}

// pitfall 7
func TestObserverThatPanicsLeavesTheKeyUsable(t *testing.T) {
	for _, kind := range []cache.EventKind{cache.LeaseGranted, cache.FetchStarted, cache.FetchDone, cache.FillStored} {
		t.Run(string(kind), func(t *testing.T) {
			inWorlds(t, func(w *world) {
				bad := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = panicky{kind} }))
				good := w.fleet(1, policy())
				_, _ = bad.Get(context.Background(), "k", (&origin{}).fetch)
				if a := callers(good, 1, "k", (&origin{}).fetch)[0]; a.err != nil || a.took > 0 {
					w.Errorf("afterwards: %q, %v after %v", a.value, a.err, a.took)
				}
			})
		})
	}
}

// pitfall 29
func TestNestedUnguardedFetchTakesNoSecondSlot(t *testing.T) {
	faulty(t, policy(func(p *guard.Policy) { p.MaxUnguarded = 1 }), cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.cut()
		v, err := g.Get(context.Background(), "a", func(ctx context.Context) (string, error) {
			return g.Get(ctx, "b", func(context.Context) (string, error) { return "b", nil })
		})
		if v != "b" || err != nil {
			w.Errorf("got %q, %v", v, err)
		}
	})
}

// pitfall 29
func TestFetchWithASlotWaitsForNoSlot(t *testing.T) {
	for name, outer := range map[string]func(ctx context.Context, g *guard.Guard[string]) error{
		"Get": func(ctx context.Context, g *guard.Guard[string]) error {
			_, err := g.Get(ctx, "b", never)
			return err
		},
		"GetMany": func(ctx context.Context, g *guard.Guard[string]) error {
			_, err := g.GetMany(ctx, []string{"b", "c"}, (&manyOrigin{}).fetch)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			faulty(t, policy(noReserve, func(p *guard.Policy) { p.MaxUnguarded = 1 }), cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
				n.cut()
				for range 10 {
					get(w, g, "warm-up", (&origin{}).fetch)
				}
				begun, o := make(chan struct{}), &origin{}
				var wg sync.WaitGroup
				wg.Go(func() {
					get(w, g, "a", func(ctx context.Context) (string, error) {
						close(begun)
						time.Sleep(time.Second)
						return "a", outer(ctx, g)
					})
				})
				<-begun
				start := time.Now()
				wg.Go(func() { get(w, g, "b", o.fetch) }) // queues for the slot
				wg.Wait()
				if took := time.Since(start); took > 1100*time.Millisecond {
					w.Errorf("they waited for each other for %v", took)
				}
				o.fetched(w, 1)
			})
		})
	}
}

// pitfall 29
func TestNestedFetchOfTwoGuardsTakesNoSecondSlot(t *testing.T) {
	inRedis(t, func(w *world) {
		s := w.open()
		p := policy(noReserve, func(p *guard.Policy) { p.MaxUnguarded = 1 })
		g := w.guard(s, p)
		other, err := guard.New[string](s, "other", p)
		must(w, err)
		w.Cleanup(func() { _ = other.Close() })
		must(w, w.server.Stop())
		start := time.Now()
		get(w, g, "a", func(ctx context.Context) (string, error) {
			return other.Get(ctx, "b", func(ctx context.Context) (string, error) {
				return g.Get(ctx, "c", (&origin{}).fetch)
			})
		})
		if took := time.Since(start); took > 10*time.Second {
			w.Errorf("it waited for itself for %v", took)
		}
	})
}

// pitfall 29
func TestNestedStaleOrFetchTakesNoSecondSlot(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) {
			p.WaitTimeout, p.OnWaitTimeout, p.MaxUnguarded = time.Second, guard.StaleOrFetch, 1
		}))
		slow := &manyOrigin{takes: 20 * time.Second}
		go getMany(w, fleet[0], keysFrom(0, 4), slow.fetch)
		time.Sleep(100 * time.Millisecond)
		g, o := fleet[1], &manyOrigin{}
		one := func(ctx context.Context, key string, fetch fetcher) error {
			_, err := g.Get(ctx, key, fetch)
			return err
		}
		many := func(ctx context.Context, key string, fetch fetcher) error {
			_, err := g.GetMany(ctx, []string{key}, func(ctx context.Context, _ []string) (map[string]string, error) {
				v, err := fetch(ctx)
				return map[string]string{key: v}, err
			})
			return err
		}
		for i, get := range []func(context.Context, string, fetcher) error{one, many} {
			outer, inner := fmt.Sprint("k", 2*i), fmt.Sprint("k", 2*i+1)
			start := time.Now()
			err := get(context.Background(), outer, func(ctx context.Context) (string, error) {
				return "v", get(ctx, inner, o.one(inner))
			})
			if err != nil || time.Since(start) != 2*time.Second {
				w.Errorf("%v after %v", err, time.Since(start))
			}
		}
		o.called(w, 2)
		time.Sleep(20 * time.Second)
	})
}

func TestFetchTimeoutIsToldAcrossProcesses(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.FetchTimeout = time.Second }))
		for i, a := range callers(fleet, 1, "k", (&origin{takes: time.Hour}).fetch) {
			if !errors.Is(a.err, guard.ErrFetchTimeout) {
				w.Errorf("caller %d: %v", i, a.err)
			}
		}
	})
}

func TestDurationsDoNotOverflow(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		_, err := g.Load(context.Background(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			f.StaleFor = math.MaxInt64
			return "v", nil
		})
		must(w, err)
		if _, err := g.Peek(context.Background(), "k"); err != nil {
			w.Errorf("kept for ever: %v", err)
		}
		const ever = time.Duration(math.MaxInt64)
		for name, p := range map[string]guard.Policy{
			"TTL and Stale": {TTL: ever, Stale: ever},
			"FetchTimeout":  {TTL: time.Minute, FetchTimeout: ever, WaitTimeout: time.Minute},
			"Lease":         {TTL: time.Minute, Lease: ever, WaitTimeout: time.Minute},
		} {
			if _, err := guard.New[string](w.open(), "g", p); err == nil {
				w.Errorf("%s of 292 years: accepted", name)
			}
		}
	})
}

func TestValueForWaitersOnlyIsNotServedLater(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	g := onClient(t, server.Client(), policy())
	for range 200 {
		for _, want := range []string{"one", "two"} {
			r, err := g.Load(context.Background(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
				f.TTL, f.StaleFor = 0, guard.Off
				return want, nil
			})
			if r.Value != want || err != nil {
				t.Fatalf("got %+v, %v, want %q", r, err, want)
			}
		}
	}
}

// acquires counts them: acquire is the one script of six keys.
type acquires struct{ n atomic.Int64 }

func (a *acquires) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *acquires) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 2 && args[2] == 6 {
			a.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (a *acquires) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// pitfall 31
func TestForeignBytesBesideAnEntryAreHarmless(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	admin := server.Client()
	client := server.Client()
	count := &acquires{}
	client.AddHook(count)
	g := onClient(t, client, policy(func(p *guard.Policy) { p.Lease, p.WaitTimeout = time.Second, 5*time.Second }))
	fetch := func(context.Context) (string, error) { return "v", nil }
	for name, plant := range map[string]func(key string) error{
		"a lease of foreign bytes": func(k string) error { return admin.Set(t.Context(), k+":lease", "abc", 0).Err() },
		"a lease without an end":   func(k string) error { return admin.Set(t.Context(), k+":lease", "0123456789abcdef0", 0).Err() },
		"a pause without an end":   func(k string) error { return admin.Set(t.Context(), k+":pause", "abc", 0).Err() },
		"failures of no number":    func(k string) error { return admin.Set(t.Context(), k+":failures", "many", 0).Err() },
		"attempts of no process":   func(k string) error { return admin.SAdd(t.Context(), k+":tries", "a", "b", "c", "d").Err() },
	} {
		t.Run(name, func(t *testing.T) {
			if err := plant("test:{g:" + name + "}"); err != nil {
				t.Fatal(err)
			}
			count.n.Store(0)
			if v, err := g.Get(t.Context(), name, fetch); v != "v" || err != nil {
				t.Errorf("got %q, %v", v, err)
			}
			if n := count.n.Load(); n > 40 {
				t.Errorf("%d acquires", n)
			}
			if r, err := g.Peek(t.Context(), name); r.Value != "v" || err != nil {
				t.Errorf("the stored value is %q, %v", r.Value, err)
			}
		})
	}
}
