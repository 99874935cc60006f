package guard_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// An Observer that panics, or ends its goroutine, costs the call that it happens to. It leaves
// no lease, no slot and no flight behind.

func TestPanicAtTheEndOfATurnLeavesTheKeyUsable(t *testing.T) {
	for _, kind := range []cache.EventKind{cache.FetchDone, cache.FillStored} {
		t.Run(string(kind), func(t *testing.T) {
			inWorlds(t, func(w *world) {
				bad := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = panicsWhen{kind} }))
				good := w.fleet(1, policy())[0]
				turn := begin(w, bad, "k")
				func() {
					defer func() { _ = recover() }()
					turn.Store("v")
				}()
				synctest.Wait()
				if n := len(bad.Stats().InFlight); n > 0 {
					w.Errorf("%d flights are left", n)
				}
				start := time.Now()
				if _, turn, err := good.Begin(w.Context(), "k", nil); turn != nil {
					turn.Release()
				} else if err != nil {
					w.Error(err)
				}
				if took := time.Since(start); took > 0 {
					w.Errorf("the lease was left behind for %v", took)
				}
			})
		})
	}
}

func TestPanicAtATurnsTimeoutEndsTheTurn(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = panicsWhen{cache.FetchFailed} }))
		time.Sleep(time.Second)
		begin(w, g, "k")
		time.Sleep(time.Minute)
		if n := len(g.Stats().InFlight); n > 0 {
			w.Errorf("%d flights are left", n)
		}
	})
}

func TestPanickingObserverKeepsNoSlot(t *testing.T) {
	bad := func(p *guard.Policy) {
		p.MaxUnguarded, p.Observer, p.Reserve.MaxBytes = 1, panicsWhen{cache.Unguarded}, guard.Off
	}
	for name, call := range map[string]func(g *guard.Guard[string]){
		"one":  func(g *guard.Guard[string]) { _, _ = g.Get(context.Background(), "k", never) },
		"many": func(g *guard.Guard[string]) { _, _ = g.GetMany(context.Background(), []string{"a", "b"}, neverMany) },
	} {
		t.Run(name, func(t *testing.T) {
			faulty(t, policy(bad), cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
				n.cut()
				for range 2 {
					call(g)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				var panicked *guard.PanicError
				if _, err := g.Get(ctx, "other", never); !errors.As(err, &panicked) {
					w.Errorf("got %v, want the Observer's panic: the slot is free", err)
				}
			})
		})
	}
}

func TestPanickingObserverOfALateCallerKeepsNoSlot(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(1, policy())
		g := w.guard(w.open(), policy(func(p *guard.Policy) {
			p.WaitTimeout, p.OnWaitTimeout, p.MaxUnguarded, p.Observer = time.Second, guard.StaleOrFetch, 1, panicsWhen{cache.Unguarded}
		}))
		time.Sleep(time.Second)
		turn := begin(w, fleet[0], "k")
		defer turn.Release()
		for range 2 {
			panicked := false
			func() {
				defer func() { panicked = recover() != nil }()
				_, _ = g.Get(w.Context(), "k", never)
			}()
			if !panicked {
				w.Error("the Observer did not panic: the slot is taken")
			}
		}
	})
}

func TestPanickingRefreshEndsItsTurn(t *testing.T) {
	inWorlds(t, func(w *world) {
		b := &counting{}
		p := policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Minute, time.Hour })
		old := w.fleet(1, p)[0]
		p.Budget = b
		g := w.guard(w.open(), p)
		time.Sleep(time.Second)
		must(w, old.Set(w.Context(), "k", "old"))
		time.Sleep(2 * time.Minute)
		refreshed := make(chan *guard.Turn[string], 1)
		r, _, err := g.Begin(w.Context(), "k", func(turn *guard.Turn[string]) {
			refreshed <- turn
			panic("refresh")
		})
		if err != nil || r.Source != guard.Stale {
			w.Fatal(r, err)
		}
		turn := <-refreshed
		time.Sleep(time.Second)
		if turn.Context().Err() == nil || b.settled.Load() != b.granted.Load() || len(g.Stats().InFlight) > 0 {
			w.Errorf("the turn's context: %v, %d of %d expenses settled, in flight %v",
				turn.Context().Err(), b.settled.Load(), b.granted.Load(), g.Stats().InFlight)
		}
	})
}

func TestPanickingObserverOfALoneTurnLosesNoExpense(t *testing.T) {
	inWorlds(t, func(w *world) {
		b := &counting{}
		old := w.fleet(1, policy())[0]
		g := w.guard(w.open(), policy(func(p *guard.Policy) { p.Budget, p.Observer = b, panicsWhen{cache.FetchStarted} }))
		time.Sleep(time.Second)
		_, err := old.Load(w.Context(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			f.Private = true
			return "private", nil
		})
		must(w, err)
		func() {
			defer func() { _ = recover() }()
			_, _, _ = g.Begin(w.Context(), "k", nil)
		}()
		if b.granted.Load() != 1 || b.settled.Load() != 1 {
			w.Errorf("%d of %d expenses settled", b.settled.Load(), b.granted.Load())
		}
	})
}

func TestPanicAtALoneTurnsTimeoutEndsNoProcess(t *testing.T) {
	inWorlds(t, func(w *world) {
		old := w.fleet(1, policy())[0]
		g := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = panicsWhen{cache.FetchFailed} }))
		time.Sleep(time.Second)
		_, err := old.Load(w.Context(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			f.Private = true
			return "private", nil
		})
		must(w, err)
		turn := begin(w, g, "k")
		time.Sleep(45 * time.Second)
		if turn.Context().Err() == nil {
			w.Error("the turn has not ended")
		}
	})
}

// A guard whose budget is exhausted still asks whether another process fetches the key.
func TestPanickingObserverOfABudgetKeepsAsking(t *testing.T) {
	inWorlds(t, func(w *world) {
		other := w.fleet(1, policy())[0]
		g := w.guard(w.open(), policy(func(p *guard.Policy) { p.Budget, p.Observer = drained{known: true}, panicsWhen{cache.BudgetExhausted} }))
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		for _, key := range keysFrom(0, 100) {
			wg.Go(func() { _, _ = g.Get(w.Context(), key, never) })
		}
		wg.Wait()
		turn := begin(w, other, "k")
		got := make(chan string, 1)
		go func() {
			v, _ := g.Get(w.Context(), "k", never)
			got <- v
		}()
		time.Sleep(time.Second)
		turn.Store("v")
		if v := <-got; v != "v" {
			w.Errorf("got %q, want the value that another process fetched", v)
		}
	})
}

func TestPanicOfAWaitingCallerLeavesItsFlight(t *testing.T) {
	inWorlds(t, func(w *world) {
		p := policy(func(p *guard.Policy) {
			p.SoftTimeout, p.StaleIfError, p.StaleOn = 100*time.Millisecond, time.Hour, nil
		})
		fleet := w.fleet(1, p)
		p.Observer = panicsWhen{cache.StaleServed}
		g := w.guard(w.open(), p)
		time.Sleep(time.Second)
		must(w, fleet[0].Set(w.Context(), "k", "old"))
		time.Sleep(2 * time.Minute)
		turn := begin(w, fleet[0], "k")
		func() {
			defer func() {
				if recover() == nil {
					w.Error("the Observer did not panic")
				}
			}()
			_, _, _ = g.Begin(w.Context(), "k", nil)
		}()
		turn.Release()
		time.Sleep(time.Second)
		// A turn that was given to the caller that has left would hold the lease.
		start := time.Now()
		begin(w, fleet[0], "k").Release()
		if took := time.Since(start); took > 0 {
			w.Errorf("the lease was held for %v", took)
		}
	})
}

// exitsWhen is an Observer that deletes the key and ends its goroutine at events of a kind.
type exitsWhen struct {
	kind   cache.EventKind
	change func()
}

func (x exitsWhen) Observe(e cache.Event) {
	if e.Kind == x.kind {
		x.change()
		runtime.Goexit()
	}
}

func TestLossOfALeaseAfterItsGoroutineExited(t *testing.T) {
	inMemory(t, func(w *world) {
		s := w.open()
		other := w.guard(w.open(), policy())
		g := w.guard(s, policy(func(p *guard.Policy) {
			p.Observer = exitsWhen{cache.FetchStarted, func() { must(w, other.Delete(w.Context(), "k")) }}
		}))
		for range 20 {
			if _, err := g.Get(w.Context(), "k", never); err == nil {
				w.Error("no error")
			}
		}
	})
}

func TestPanickingObserverLeavesNoReadBehind(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	w := &world{T: t}
	must(w, server.Client().Set(t.Context(), "test:{g:k}", "foreign bytes", 0).Err())
	client, count := server.Client(), &acquires{}
	client.AddHook(count)
	g := onClient(t, client, policy(func(p *guard.Policy) { p.Observer = panicsWhen{cache.EntryDamaged} }))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the Observer did not panic")
			}
		}()
		_, _ = g.Get(t.Context(), "k", never)
	}()
	must(w, onClient(t, server.Client(), policy()).Set(t.Context(), "k", "v"))
	before := count.n.Load()
	if v := get(w, g, "k", never); v != "v" || count.n.Load() > before {
		t.Errorf("got %q and asked for %d leases", v, count.n.Load()-before)
	}
}
