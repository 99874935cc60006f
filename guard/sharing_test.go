package guard_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

func TestOneFetchServesTheWholeFleet(t *testing.T) {
	inWorlds(t, func(w *world) {
		o := &origin{takes: 200 * time.Millisecond}
		events := &recorder{}
		fleet := w.fleet(4, policy(func(p *guard.Policy) { p.Observer = events }))
		for _, a := range callers(fleet, 50, "k", o.fetch) {
			if a.value != "v1" || a.err != nil {
				w.Fatalf("a caller got %q, %v", a.value, a.err)
			}
			// pitfall 12: no polling latency while the subscription is healthy
			if a.took != 200*time.Millisecond {
				w.Fatalf("a caller waited %v for a fetch of 200ms", a.took)
			}
		}
		o.fetched(w, 1)
		// pitfall 9: one fill, however many callers share the fetch
		if n := events.count(cache.FillStored); n != 1 {
			w.Errorf("%d fills for one fetch", n)
		}
	})
}

// pitfall 1
func TestFailingFetchFailsEveryWaiterOnce(t *testing.T) {
	boom := errors.New("boom")
	inWorlds(t, func(w *world) {
		o := &origin{takes: 200 * time.Millisecond, answer: func(context.Context, int) (string, error) { return "", boom }}
		fleet := w.fleet(4, policy(func(p *guard.Policy) { p.Errors = map[string]error{"boom": boom} }))
		for _, a := range callers(fleet, 5, "k", o.fetch) {
			if !errors.Is(a.err, boom) || a.took != 200*time.Millisecond {
				w.Errorf("a caller got %v after %v", a.err, a.took)
			}
		}
		o.fetched(w, 1)
	})
}

// pitfall 1
func TestRetryAfterHoldsTheFleetOff(t *testing.T) {
	busy := errors.New("busy")
	inWorlds(t, func(w *world) {
		o := &origin{answer: func(context.Context, int) (string, error) { return "", guard.RetryAfter(busy, 3*time.Second) }}
		fleet := w.fleet(3, policy(func(p *guard.Policy) { p.Errors = map[string]error{"busy": busy} }))
		for range 10 {
			for _, a := range callers(fleet, 2, "k", o.fetch) {
				if !errors.Is(a.err, busy) {
					w.Fatalf("a caller got %v", a.err)
				}
				if left, ok := guard.PauseOf(a.err); !ok || left > 3*time.Second {
					w.Fatalf("%v tells a pause of %v, %v", a.err, left, ok)
				}
			}
			time.Sleep(250 * time.Millisecond)
		}
		o.fetched(w, 1)
		time.Sleep(600 * time.Millisecond)
		callers(fleet[:1], 1, "k", o.fetch)
		o.fetched(w, 2)
	})
}

// pitfall 2
func TestCallerReturnsWhenItsOwnContextEnds(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		o := &origin{takes: time.Second}
		var wg sync.WaitGroup
		impatient := func(g *guard.Guard[string], after time.Duration) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), after)
				defer cancel()
				start := time.Now()
				_, err := g.Get(ctx, "k", o.fetch)
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != after {
					w.Errorf("a caller with %v got %v after %v", after, err, time.Since(start))
				}
			})
		}
		impatient(fleet[0], 100*time.Millisecond) // the first: its fetch goes on
		synctest.Wait()
		impatient(fleet[0], 200*time.Millisecond)
		impatient(fleet[1], 300*time.Millisecond) // waits for another process
		for _, a := range callers(fleet, 3, "k", o.fetch) {
			if a.value != "v1" || a.took != time.Second {
				w.Errorf("a patient caller got %q, %v after %v", a.value, a.err, a.took)
			}
		}
		wg.Wait()
		o.fetched(w, 1)
	})
}

func TestCallerWithAnEndedContextSendsNothing(t *testing.T) {
	inWorlds(t, func(w *world) {
		cause := errors.New("the client hung up")
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		g := w.fleet(1, policy())[0]
		if _, err := g.Get(ctx, "k", never); !errors.Is(err, cause) {
			w.Errorf("got %v", err)
		}
	})
}

// pitfall 3
func TestBackgroundRefreshOutlivesTheRequest(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Second, time.Minute }))
		o := &origin{takes: 500 * time.Millisecond}
		get(w, fleet[0], "k", o.fetch)
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		v, err := fleet[0].Get(ctx, "k", o.fetch)
		cancel()
		if v != "v1" || err != nil {
			w.Fatalf("stale: got %q, %v", v, err)
		}
		time.Sleep(600 * time.Millisecond)
		if v := get(w, fleet[1], "k", never); v != "v2" {
			w.Errorf("after the refresh: got %q", v)
		}
		o.fetched(w, 2)
	})
}

// pitfall 22 is about the time of a refresh. This test is about the number: one process
// refreshes, however many serve stale values meanwhile.
func TestOneProcessRefreshesWhileAllServeStale(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(4, policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Second, time.Minute }))
		o := &origin{takes: 500 * time.Millisecond}
		get(w, fleet[0], "k", o.fetch)
		time.Sleep(2 * time.Second)
		for range 20 {
			for _, a := range callers(fleet, 3, "k", o.fetch) {
				if a.err != nil || a.took != 0 {
					w.Fatalf("a caller got %q, %v after %v", a.value, a.err, a.took)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		o.fetched(w, 2)
	})
}

// pitfall 4
func TestFetchLongerThanTheLeaseIsStored(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(3, policy(func(p *guard.Policy) { p.Lease = 60 * time.Millisecond }))
		o := &origin{takes: 2 * time.Second}
		for _, a := range callers(fleet, 2, "k", o.fetch) {
			if a.value != "v1" {
				w.Errorf("a caller got %q, %v", a.value, a.err)
			}
		}
		get(w, fleet[2], "k", never)
		o.fetched(w, 1)
	})
}

// pitfall 6
func TestLeaseIsNotInTheValuesKey(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Second, time.Minute }))
		o := &origin{takes: 500 * time.Millisecond}
		go callers(fleet[:1], 1, "k", o.fetch)
		time.Sleep(100 * time.Millisecond)
		if _, err := fleet[1].Peek(context.Background(), "k"); !errors.Is(err, guard.ErrMiss) {
			w.Errorf("Peek during the first fetch: %v", err)
		}
		time.Sleep(2 * time.Second)
		go callers(fleet[:1], 1, "k", o.fetch)
		time.Sleep(100 * time.Millisecond)
		r, err := fleet[1].Peek(context.Background(), "k")
		if err != nil || r.Value != "v1" || r.Source != guard.Stale {
			w.Errorf("Peek during the refresh: %+v, %v", r, err)
		}
		time.Sleep(time.Second)
	})
}

// pitfall 7
func TestPanicReachesEveryCaller(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		o := &origin{takes: 100 * time.Millisecond, answer: func(_ context.Context, n int) (string, error) {
			if n == 1 {
				panic("kaboom")
			}
			return "fine", nil
		}}
		local, remote := 0, 0
		for _, a := range callers(fleet, 3, "k", o.fetch) {
			var p *guard.PanicError
			var r *guard.RemoteError
			switch {
			case errors.As(a.err, &p) && p.Value == "kaboom" && strings.Contains(string(p.Stack), "sharing_test.go"):
				local++
			case errors.As(a.err, &r) && r.Panicked:
				remote++
			default:
				w.Errorf("a caller got %q, %v", a.value, a.err)
			}
		}
		if local != 3 || remote != 3 {
			w.Errorf("%d callers here and %d elsewhere were told of the panic", local, remote)
		}
		if v := get(w, fleet[1], "k", o.fetch); v != "fine" {
			w.Errorf("afterwards: %q", v)
		}
	})
}

// pitfall 7
func TestGoexitInAFetchIsAnError(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		exits := func(context.Context) (string, error) { runtime.Goexit(); return "", nil }
		if _, err := fleet[0].Get(context.Background(), "k", exits); !errors.Is(err, guard.ErrGoexit) {
			w.Errorf("got %v", err)
		}
		get(w, fleet[1], "k", (&origin{}).fetch)
	})
}

// exitsAt is an Observer that ends the goroutine which reports events of a kind.
type exitsAt struct{ kind cache.EventKind }

func (o exitsAt) Observe(ev cache.Event) {
	if ev.Kind == o.kind {
		runtime.Goexit()
	}
}

func TestGoexitInAnObserverIsAnError(t *testing.T) {
	inWorlds(t, func(w *world) {
		for _, kind := range []cache.EventKind{cache.LeaseGranted, cache.FetchStarted, cache.FetchDone, cache.FillStored} {
			key := string(kind)
			bad := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = exitsAt{kind} }))
			if _, err := bad.Get(context.Background(), key, (&origin{}).fetch); !errors.Is(err, guard.ErrGoexit) {
				w.Errorf("%s: got %v", kind, err)
			}
			get(w, w.guard(w.open(), policy()), key, (&origin{}).fetch)
		}
	})
}

// An Observer that exits when the fetch ends costs the callers that stayed their outcome.
// That the lease was lost is reported aside, and costs nothing.
func TestGoexitInAnObserverAfterALostLease(t *testing.T) {
	inWorlds(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		elsewhere := w.open()
		for kind, want := range map[cache.EventKind]error{cache.LeaseLost: nil, cache.FetchDone: guard.ErrGoexit} {
			key := string(kind)
			bad := w.fleet(1, policy(func(p *guard.Policy) { p.Observer = exitsAt{kind} }))[0]
			lease := held(w, elsewhere, "g:"+key)
			o := &origin{takes: time.Second}
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := bad.Get(ctx, key, o.fetch); !errors.Is(err, want) {
					w.Errorf("%s: got %v", kind, err)
				}
			})
			synctest.Wait()
			wg.Go(func() { // joins before the fetch starts, so that it may have the result
				if _, err := bad.GetMany(ctx, []string{key}, neverMany); !errors.Is(err, want) {
					w.Errorf("%s: GetMany: got %v", kind, err)
				}
			})
			synctest.Wait()
			released(w, elsewhere, lease)
			time.Sleep(500 * time.Millisecond)
			must(w, bad.Delete(ctx, key))
			wg.Wait()
			get(w, w.guard(w.open(), policy()), key, (&origin{}).fetch)
		}
	})
}

// pitfall 8
func TestFetchThatAsksForItsOwnKeyFails(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		other := func(ctx context.Context) (string, error) {
			return g.Get(ctx, "k", never) // by way of another key
		}
		_, err := g.Get(context.Background(), "k", func(ctx context.Context) (string, error) {
			return g.Get(ctx, "other", other)
		})
		if !errors.Is(err, guard.ErrReentrant) {
			w.Errorf("got %v", err)
		}
		// The context of a fetch that has ended is no fetch.
		var left context.Context
		get(w, g, "k2", func(ctx context.Context) (string, error) { left = ctx; return "v", nil })
		must(w, g.Delete(context.Background(), "k2"))
		if _, err := g.Get(context.WithoutCancel(left), "k2", (&origin{}).fetch); err != nil {
			w.Errorf("with the context of a fetch that ended: %v", err)
		}
	})
}

// pitfall 10
func TestOneWaiterIsElectedWhenALeaseExpires(t *testing.T) {
	inWorlds(t, func(w *world) {
		// A holder that can't be seen to be dead: its lease isn't renewed.
		frozen, fleet := w.open(), w.fleet(4, policy())
		r := store.Request{Key: "g:k", TTL: 2 * time.Second, RenewFor: time.Millisecond, MaxAttempts: 3, Window: time.Minute}
		if a := frozen.Unwrap().Acquire(context.Background(), []store.Request{r})[0]; a.Verdict != store.Granted {
			w.Fatalf("answered %v, %v", a.Verdict, a.Err)
		}
		o := &origin{takes: 100 * time.Millisecond}
		for _, a := range callers(fleet, 5, "k", o.fetch) {
			if a.value != "v1" || !within(a.took, 2100*time.Millisecond, 10*time.Millisecond) {
				w.Errorf("a caller got %q, %v after %v", a.value, a.err, a.took)
			}
		}
		o.fetched(w, 1)
	})
}

// pitfall 14
func TestHungFetchIsGivenUp(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.FetchTimeout = time.Second }))
		release := make(chan struct{})
		defer close(release)
		hung := func(context.Context) (string, error) { <-release; return "late", nil } // heeds nothing
		for i, a := range callers(fleet, 2, "k", hung) {
			if a.err == nil || a.took != time.Second {
				w.Errorf("caller %d got %q, %v after %v", i, a.value, a.err, a.took)
			}
		}
		if v := get(w, fleet[1], "k", (&origin{}).fetch); v != "v1" {
			w.Errorf("afterwards: %q", v)
		}
	})
}

func TestLateEndOfAHungFetchIsIgnored(t *testing.T) {
	inWorlds(t, func(w *world) {
		for way, end := range map[string]func(){"returns": func() {}, "panics": func() { panic("late") }, "exits": runtime.Goexit} {
			g := w.fleet(1, policy(func(p *guard.Policy) { p.FetchTimeout = time.Second }))
			release := make(chan struct{})
			hung := func(context.Context) (string, error) { <-release; end(); return "late", nil }
			for i, a := range callers(g, 3, way, hung) {
				if !errors.Is(a.err, guard.ErrFetchTimeout) {
					w.Errorf("%s: caller %d got %q, %v", way, i, a.value, a.err)
				}
			}
			o := &origin{takes: 500 * time.Millisecond}
			time.AfterFunc(100*time.Millisecond, func() { close(release) })
			for i, a := range callers(g, 3, way, o.fetch) {
				if a.value != "v1" {
					w.Errorf("%s: caller %d of the next fetch got %q, %v", way, i, a.value, a.err)
				}
			}
			o.fetched(w, 1)
		}
	})
}

func TestObedientFetchEndsWithErrFetchTimeout(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.FetchTimeout = time.Second }))[0]
		_, err := g.Get(context.Background(), "k", (&origin{takes: time.Hour}).fetch)
		if !errors.Is(err, guard.ErrFetchTimeout) {
			w.Errorf("got %v", err)
		}
	})
}

func TestWaitTimeoutEndsTheWaitForAnother(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.WaitTimeout = 300 * time.Millisecond }))
		o := &origin{takes: time.Second}
		done := make(chan answer)
		go func() { done <- callers(fleet[:1], 1, "k", o.fetch)[0] }()
		synctest.Wait()
		for where, g := range map[string]*guard.Guard[string]{"another process": fleet[1], "the same": fleet[0]} {
			a := callers([]*guard.Guard[string]{g}, 1, "k", never)[0]
			if !errors.Is(a.err, guard.ErrWaitTimeout) || a.took != 300*time.Millisecond {
				w.Errorf("the waiter in %s got %v after %v", where, a.err, a.took)
			}
		}
		if a := <-done; a.value != "v1" {
			w.Errorf("the caller that fetches got %q, %v after %v", a.value, a.err, a.took)
		}
	})
}

// A staged store hands over the watches of flights that wait. So a test can push the
// messages that a store might push. The store also gives the first requests for a lease the
// answers of the test.
type staged struct {
	*tap.Store
	watches  chan *store.Watch
	requests []store.Request
}

func newStaged(s cache.Store, answers ...func() store.Answer) *staged {
	st := &staged{Store: tap.New(s), watches: make(chan *store.Watch, 1)}
	st.OnWatch = func(key string) *store.Watch {
		w := st.Store.Store.Watch(key)
		st.watches <- w
		return w
	}
	st.OnAcquire = func(requests []store.Request) []store.Answer {
		st.requests = append(st.requests, requests...)
		if n := len(st.requests); n <= len(answers) {
			return []store.Answer{answers[n-1]()}
		}
		return nil
	}
	return st
}

// A message about another lease than the awaited one decides nothing. That lease was over
// before the waiters came, and a Delete may have come in between.
func TestWordOfAnotherLeaseIsNoOutcome(t *testing.T) {
	inWorlds(t, func(w *world) {
		holder := w.fleet(1, policy())[0]
		s := newStaged(w.open())
		waiter := w.guard(s, policy())
		time.Sleep(time.Second) // until the subscription is live
		o := &origin{takes: time.Second}
		go callers([]*guard.Guard[string]{holder}, 1, "k", o.fetch)
		synctest.Wait()
		got := make(chan answer, 1)
		go func() { got <- callers([]*guard.Guard[string]{waiter}, 1, "k", o.fetch)[0] }()
		watch := <-s.watches
		codec := cache.CodecFor[string]().ID()
		for _, e := range []store.Entry{
			{Kind: store.Value, Codec: codec, Payload: []byte("old")}, {Kind: store.Negative}, {Kind: store.Bypass},
		} {
			e.Version, e.TTL, e.FreshFor = store.NewMinter().Token(), time.Minute, time.Minute
			watch.Push(store.Message{Signal: store.Filled, Token: e.Version, Body: e.Encode()})
			watch.Push(store.Message{Signal: store.FailedSignal, Token: e.Version})
			synctest.Wait()
		}
		if a := <-got; a.value != "v1" || a.err != nil || a.took != time.Second {
			w.Errorf("the waiter got %q, %v after %v", a.value, a.err, a.took)
		}
		o.fetched(w, 1)
	})
}

// A waiter's observations of the previous holder say nothing of the new holder.
func TestNewHolderIsLookedAtTwiceToo(t *testing.T) {
	inMemory(t, func(w *world) {
		minter := store.NewMinter()
		first, second := minter.Token(), minter.Token()
		unseen := func(holder store.Token) store.Answer {
			return store.Answer{Verdict: store.Held, Holder: holder, Unwatched: true, TTL: time.Minute}
		}
		before := func() store.Answer { return unseen(first) }
		var s *staged
		s = newStaged(w.open(), before, before, before, func() store.Answer {
			(<-s.watches).Push(store.Message{Signal: store.Released, Token: first}) // so that it asks again at once
			return unseen(second)
		})
		get(w, w.guard(s, policy()), "k", (&origin{}).fetch)
		if len(s.requests) != 5 || s.requests[3].Suspect != first || s.requests[4].Suspect != (store.Token{}) {
			w.Errorf("the flight's asks: %+v", s.requests)
		}
	})
}

// A flight that missed the wake-up is told of a failure when it asks again. The failure is
// of a fetch that was under way at the flight's last request. A caller that has joined since
// wants another fetch.
func TestJoinersGetNoEarlierFailure(t *testing.T) {
	inMemory(t, func(w *world) {
		holder := store.NewMinter().Token()
		held := func() store.Answer { return store.Answer{Verdict: store.Held, Holder: holder, TTL: time.Minute} }
		s := newStaged(w.open(), held, held, func() store.Answer { return store.Answer{Verdict: store.Failed} })
		g := w.guard(s, policy())
		o := &origin{}
		failed := make(chan error, 1)
		go func() {
			_, err := g.Get(context.Background(), "k", o.fetch)
			failed <- err
		}()
		time.Sleep(10 * time.Millisecond) // it has asked twice
		if v := get(w, g, "k", o.fetch); v != "v1" {
			w.Errorf("the caller that joined got %q", v)
		}
		var remote *guard.RemoteError
		if err := <-failed; !errors.As(err, &remote) {
			w.Errorf("the caller from before got %v", err)
		}
		o.fetched(w, 1)
	})
}
