package guard_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
)

// waits is the policy of fetches that wait for their budget for as long as it takes.
func waits(p *guard.Policy) { p.MaxBudgetWait, p.FetchTimeout = time.Hour, time.Minute }

// every is a budget of one fetch at a time, which comes back after so long.
func every(d time.Duration) budget.Limit { return budget.Limit{Rate: 1, Per: d, Burst: 1} }

// drained is a budget that has nothing, and finds that out late.
type drained struct{ known bool }

func (drained) Spend(ctx context.Context, s guard.Spending) (guard.Expense, error) {
	time.Sleep(s.MaxWait)
	return nil, &guard.ExhaustedError{Budget: "drained"}
}
func (d drained) Exhausted(guard.Priority) bool { return d.known }
func (drained) Known() guard.BudgetState        { return guard.BudgetState{} }

// tardy is a budget that has everything, after so long.
type tardy time.Duration

func (d tardy) Spend(context.Context, guard.Spending) (guard.Expense, error) {
	time.Sleep(time.Duration(d))
	return d, nil
}
func (tardy) Settle(int)                    {}
func (tardy) Exhausted(guard.Priority) bool { return false }
func (tardy) Known() guard.BudgetState      { return guard.BudgetState{} }

// WaitTimeout bounds the waits for the fetches of others and for a turn. It does not bound
// the later parts of the call's own fetch.
func TestBatchWaitingForItsBudgetDoesNotTimeOut(t *testing.T) {
	for name, prepare := range map[string]func(w *world){
		"under leases":  func(*world) {},
		"without Redis": func(w *world) { must(w, w.server.Stop()) },
	} {
		t.Run(name, func(t *testing.T) {
			inRedis(t, func(w *world) {
				g := w.fleet(1, policy(func(p *guard.Policy) {
					p.Budget, p.MaxBudgetWait, p.FetchTimeout, p.Lease = tardy(2*time.Second), 2*time.Second, time.Second, time.Second
					p.MaxBatch = 1
				}))[0]
				prepare(w)
				keys := keysFrom(0, 5)
				equal(w, getMany(w, g, keys, (&manyOrigin{takes: 100 * time.Millisecond}).fetch), valuesOf(keys))
			})
		})
	}
}

// Nor is a call for one key late that waits for the budget of its own fetch.
func TestCallerWaitingForItsBudgetDoesNotTimeOut(t *testing.T) {
	for name, prepare := range map[string]func(w *world){
		"under a lease, and of a value that is too large": func(*world) {},
		"without Redis": func(w *world) { must(w, w.server.Stop()) },
	} {
		t.Run(name, func(t *testing.T) {
			inRedis(t, func(w *world) {
				g := w.fleet(1, policy(func(p *guard.Policy) {
					p.Budget, p.MaxBudgetWait, p.WaitTimeout, p.MaxBytes = tardy(2*time.Second), 2*time.Second, time.Second, 100
				}))[0]
				prepare(w)
				for range 2 {
					large := &origin{answer: func(context.Context, int) (string, error) { return strings.Repeat("x", 1000), nil }}
					get(w, g, "k", large.fetch)
				}
			})
		})
	}
}

// But the wait for the fetch of another caller that may follow has its bound.
func TestLostFetchRestartsWaitTimeout(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, g *guard.Guard[string]) error{
		"one key": func(ctx context.Context, g *guard.Guard[string]) error {
			_, err := g.Get(ctx, "k", never)
			return err
		},
		"many": func(ctx context.Context, g *guard.Guard[string]) error {
			_, err := g.GetMany(ctx, []string{"k"}, neverMany)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRedis(t, func(w *world) {
				late := func(p *guard.Policy) { p.Lease, p.WaitTimeout = time.Second, 5*time.Second }
				all := payers(w, 1, every(time.Minute), policy(waits, late))
				other := w.fleet(1, policy())[0]
				get(w, all[0].Guard, "other", (&origin{}).fetch)
				lost := make(chan time.Time, 1)
				go func() {
					time.Sleep(10 * time.Second) // it has the lease, and waits for its budget
					if err := other.Delete(w.Context(), "k"); err != nil {
						w.Error(err)
					}
					lost <- time.Now()
					_, _ = other.Get(w.Context(), "k", (&origin{takes: 20 * time.Second}).fetch)
				}()
				err := ask(w.Context(), all[0].Guard)
				if took := time.Since(<-lost); !errors.Is(err, guard.ErrWaitTimeout) || !within(took, 5*time.Second, time.Second) {
					w.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}

// A broken budget refuses without saying that it is exhausted.
type broken struct{ drained }

func (broken) Spend(context.Context, guard.Spending) (guard.Expense, error) {
	return nil, errors.New("the budget is closed")
}

// That a process can't pay is no failure of the keys, for one key or for many.
func TestBudgetThatIsBrokenPausesNoKey(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, g *guard.Guard[string]){
		"one key": func(ctx context.Context, g *guard.Guard[string]) { _, _ = g.Get(ctx, "k", never) },
		"many":    func(ctx context.Context, g *guard.Guard[string]) { _, _ = g.GetMany(ctx, []string{"k"}, neverMany) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				p := policy(func(p *guard.Policy) { p.TTL, p.StaleIfError, p.ErrorPause = time.Second, time.Hour, time.Minute })
				other := w.fleet(1, p)[0]
				p.Budget = broken{}
				g := w.fleet(1, p)[0]
				must(w, other.Set(w.Context(), "k", "old"))
				time.Sleep(2 * time.Second)
				ask(w.Context(), g)
				if v := get(w, other, "k", (&origin{}).fetch); v != "v1" {
					w.Errorf("another process was given %q", v)
				}
			})
		})
	}
}

func TestUnwantedBatchEndsItsWaitForABudget(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(time.Minute), policy(waits))
		get(w, all[0].Guard, "other", (&origin{}).fetch)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { _, _ = all[0].GetMany(ctx, []string{"a", "b"}, neverMany) })
		}
		wg.Wait()
		time.Sleep(200 * time.Millisecond)
		if n := len(all[0].Stats().InFlight); n != 0 {
			w.Errorf("%d flights are left", n)
		}
		time.Sleep(time.Minute)
		get(w, all[1].Guard, "a", (&origin{}).fetch) // neither the lease nor the slot was kept
	})
}

func TestDeleteWhileABatchWaitsForItsBudget(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(30*time.Second), policy(waits))
		get(w, all[0].Guard, "other", (&origin{}).fetch)
		o := &manyOrigin{}
		done := make(chan map[string]string, 1)
		go func() { done <- getMany(w, all[0].Guard, []string{"a", "b"}, o.fetch) }()
		time.Sleep(5 * time.Second)
		must(w, all[1].Delete(w.Context(), "a"))
		equal(w, <-done, valuesOf([]string{"a", "b"}))
		o.eachOnce(w, []string{"a", "b"})
		for _, key := range []string{"a", "b"} {
			if _, err := all[1].Peek(w.Context(), key); err != nil {
				w.Errorf("%s was fetched under a lease that was lost before: %v", key, err)
			}
		}
	})
}

func TestDeleteOfAllKeysEndsABatchsBudgetWait(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(30*time.Second), policy(waits))
		get(w, all[0].Guard, "other", (&origin{}).fetch)
		o := &manyOrigin{}
		done := make(chan map[string]string, 1)
		go func() { done <- getMany(w, all[0].Guard, []string{"a", "b"}, o.fetch) }()
		time.Sleep(5 * time.Second)
		must(w, all[1].Delete(w.Context(), "a"))
		must(w, all[1].Delete(w.Context(), "b"))
		equal(w, <-done, valuesOf([]string{"a", "b"}))
		o.called(w, 1) // they went round together
		if st, _ := all[0].budget.Peek(w.Context()); st.Spent != 2 {
			w.Errorf("%d were spent for two calls", st.Spent)
		}
	})
}

func TestWaitersOfABatchLearnOfAnExhaustedBudget(t *testing.T) {
	inRedis(t, func(w *world) {
		all := w.fleet(2, policy(func(p *guard.Policy) { p.MaxBudgetWait, p.Budget = time.Second, drained{} }))
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := all[0].GetMany(w.Context(), []string{"a", "b"}, neverMany)
			if _, ok := errors.AsType[*guard.ExhaustedError](err); !ok {
				w.Errorf("the batch: %v", err)
			}
		})
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			_, err := all[1].Get(w.Context(), "a", never)
			if _, ok := errors.AsType[*guard.RemoteError](err); !ok {
				w.Errorf("another process, told %v", err)
			}
			if _, ok := errors.AsType[*guard.ExhaustedError](err); !ok {
				w.Errorf("another process, told %v", err)
			}
		})
		wg.Wait()
	})
}

// A batch alone waits no longer than its caller does, as a lone Get.
func TestLoneBatchHeedsItsCallersDeadline(t *testing.T) {
	inRedis(t, func(w *world) {
		g := payers(w, 1, every(time.Minute), policy(waits))[0]
		get(w, g.Guard, "other", (&origin{}).fetch)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		_, err := g.GetMany(ctx, []string{"a", "b"}, neverMany)
		if _, ok := errors.AsType[*guard.ExhaustedError](err); !ok {
			w.Errorf("%v, want to be told that there will be nothing in time", err)
		}
	})
}

// The deadline of a caller that has left does not cause a refusal of other callers.
func TestDeadlineOfADepartedCallerBoundsNoBudgetWait(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(10*time.Second), policy(waits))
		holds, goOn := make(chan struct{}), make(chan struct{})
		go func() {
			_, _ = all[1].Get(context.Background(), "k", func(context.Context) (string, error) {
				close(holds)
				<-goOn
				return "", guard.RetryAfter(errors.New("boom"), 0)
			})
		}()
		<-holds
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		o := &origin{}
		go func() { _, _ = all[0].Get(ctx, "k", o.fetch) }()
		time.Sleep(500 * time.Millisecond)
		done := make(chan error, 1)
		go func() { _, err := all[0].Get(context.Background(), "k", o.fetch); done <- err }()
		time.Sleep(time.Second) // the first has left
		must(w, all[1].Delete(w.Context(), "k"))
		if err := <-done; err != nil {
			w.Error(err)
		}
		close(goOn)
	})
}

// The tag of a stale value may be deleted while the fetch waits for the budget. Then the
// fetch is not told of the stale value, and its own value is stored.
func TestTagDeletedDuringTheWaitForABudget(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(30*time.Second), policy(waits, tagged("t")))
		g := all[0].Guard
		var told *string
		load := func(value string) {
			_, err := g.Load(w.Context(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
				told = f.Stale
				f.TTL, f.StaleFor, f.StaleUse = time.Second, time.Hour, guard.OnlyValidate
				return value, nil
			})
			must(w, err)
		}
		load("old")
		time.Sleep(2 * time.Second)
		go func() {
			time.Sleep(5 * time.Second)
			if err := all[1].DeleteTag(w.Context(), "t"); err != nil {
				w.Error(err)
			}
		}()
		load("new")
		if told != nil {
			w.Errorf("the fetch was told of %q", *told)
		}
		if r, err := g.Peek(w.Context(), "k"); err != nil || r.Value != "new" {
			w.Errorf("stored: %+v, %v", r, err)
		}
	})
}

// A batch must not confirm values that were deleted while it waited.
func TestBatchDoesNotRenewValuesDeletedMeanwhile(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(30*time.Second), policy(waits, tagged("t")))
		g := all[0].Guard
		get(w, g, "other", (&origin{}).fetch)
		for _, key := range []string{"a", "b"} {
			must(w, g.Set(w.Context(), key, "old"))
			must(w, g.Expire(w.Context(), key)) // and keep it, to compare with
		}
		go func() {
			time.Sleep(5 * time.Second)
			if err := all[1].DeleteTag(w.Context(), "t"); err != nil {
				w.Error(err)
			}
		}()
		got, err := g.GetMany(w.Context(), []string{"a", "b"}, func(context.Context, []string) (map[string]string, error) {
			return nil, guard.ErrNotModified
		})
		if len(got) != 0 || err == nil {
			w.Errorf("got %v, %v", got, err)
		}
		if r, err := all[1].Peek(w.Context(), "a"); !errors.Is(err, guard.ErrMiss) {
			w.Errorf("stored: %+v, %v", r, err)
		}
	})
}

func TestTagDeletedDuringABatchsBudgetWait(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(30*time.Second), policy(waits, tagged("t")))
		get(w, all[0].Guard, "other", (&origin{}).fetch)
		go func() {
			time.Sleep(5 * time.Second)
			if err := all[1].DeleteTag(w.Context(), "t"); err != nil {
				w.Error(err)
			}
		}()
		getMany(w, all[0].Guard, []string{"a", "b"}, (&manyOrigin{}).fetch)
		if _, err := all[0].Peek(w.Context(), "a"); err != nil {
			w.Errorf("a value fetched after the tag was deleted isn't stored: %v", err)
		}
	})
}

// A caller that asks for a new value can't use a stale one.
func TestRefreshWaitsForItsBudget(t *testing.T) {
	inRedis(t, func(w *world) {
		g := payers(w, 1, every(10*time.Second), policy(waits, func(p *guard.Policy) { p.Stale = time.Hour }))[0]
		o := &origin{}
		get(w, g.Guard, "k", o.fetch)
		if v, err := g.Get(w.Context(), "k", o.fetch, guard.MaxAge(0)); err != nil || v != "v2" {
			w.Errorf("%q, %v", v, err)
		}
	})
}

// A caller that may not get the stale value in place of this error can't use it either.
func TestCallerWithoutStaleRightsWaitsForTheBudget(t *testing.T) {
	inRedis(t, func(w *world) {
		g := payers(w, 1, every(10*time.Second), policy(waits, func(p *guard.Policy) {
			p.StaleIfError = time.Hour
			p.StaleOn = func(err error) bool { _, ok := errors.AsType[*guard.ExhaustedError](err); return !ok }
		}))[0]
		o := &origin{}
		get(w, g.Guard, "k", o.fetch)
		getMany(w, g.Guard, []string{"m"}, (&manyOrigin{}).fetch)
		time.Sleep(2 * time.Minute)
		get(w, g.Guard, "other", o.fetch)
		if v, err := g.Get(w.Context(), "k", o.fetch); err != nil || v != "v3" {
			w.Errorf("%q, %v", v, err)
		}
		if _, err := g.GetMany(w.Context(), []string{"m"}, (&manyOrigin{}).fetch); err != nil {
			w.Error(err)
		}
	})
}

// Nor can a caller that waited for another's fetch until the stale value was too old.
func TestCallerWaitsForTheBudgetOnceStaleIsGone(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(30*time.Second), policy(waits, func(p *guard.Policy) { p.TTL, p.StaleIfError = time.Second, 10*time.Second }))
		ctx := w.Context()
		for _, key := range []string{"k", "m"} {
			must(w, all[0].Set(ctx, key, "set"))
		}
		time.Sleep(2 * time.Second)
		go func() { _, _ = all[0].GetMany(ctx, []string{"k", "m"}, (&manyOrigin{takes: time.Hour}).fetch) }()
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { get(w, all[1].Guard, "k", (&origin{}).fetch) })
		wg.Go(func() { getMany(w, all[1].Guard, []string{"m"}, (&manyOrigin{}).fetch) })
		time.Sleep(10 * time.Second)
		_ = all[0].Close() // and the other one is to fetch
		wg.Wait()
	})
}

// Stale keys of a batch ask for no lease to be told that there is nothing left.
func TestStaleKeysOfABatchDoNotWait(t *testing.T) {
	inWorlds(t, func(w *world) {
		events := &recorder{}
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Stale, p.Budget, p.Observer = time.Hour, drained{known: true}, events }))[0]
		must(w, g.Set(w.Context(), "a", "v of a"))
		must(w, g.Set(w.Context(), "b", "v of b"))
		time.Sleep(2 * time.Minute)
		for range 10 {
			equal(w, getMany(w, g, []string{"a", "b"}, neverMany), valuesOf([]string{"a", "b"}))
			time.Sleep(time.Second)
		}
		if n := events.count(cache.LeaseGranted); n > 0 {
			w.Errorf("%d leases were granted", n)
		}
	})
}

// panicsWhen is an Observer that panics at events of a kind.
type panicsWhen struct{ kind cache.EventKind }

func (p panicsWhen) Observe(e cache.Event) {
	if e.Kind == p.kind {
		panic("observer")
	}
}

func TestPanickingObserverOfABudgetLeavesNoLease(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(1, policy())
		g := w.guard(w.open(), policy(func(p *guard.Policy) { p.Budget, p.Observer = drained{}, panicsWhen{cache.BudgetExhausted} }))
		time.Sleep(time.Second)
		if _, err := g.GetMany(w.Context(), []string{"a", "b"}, neverMany); err == nil {
			w.Error("no error of many")
		}
		if _, err := g.Get(w.Context(), "c", never); err == nil {
			w.Error("no error of one")
		}
		start := time.Now()
		getMany(w, fleet[0], []string{"a", "b", "c"}, (&manyOrigin{}).fetch)
		if took := time.Since(start); took > 50*time.Millisecond {
			w.Errorf("a lease was left behind: %v", took)
		}
	})
}

// counting is a budget that counts its grants, refunds and settled expenses.
type counting struct{ granted, refunded, settled atomic.Int64 }

func (c *counting) Spend(context.Context, guard.Spending) (guard.Expense, error) {
	time.Sleep(2 * time.Millisecond) // fake: it is an event
	c.granted.Add(1)
	return &counted{c: c}, nil
}

func (c *counting) Exhausted(guard.Priority) bool { return false }
func (c *counting) Known() guard.BudgetState      { return guard.BudgetState{} }

type counted struct {
	c    *counting
	done atomic.Bool
}

func (e *counted) Settle(actual int) {
	if e.done.Swap(true) {
		return
	}
	e.c.settled.Add(1)
	if actual == 0 {
		e.c.refunded.Add(1)
	}
}

// An Observer that panics between the budget's grant and the fetch loses no expense. A lost
// expense would hold its place among the calls under way for as long as a fetch may take.
func TestObserverThatPanicsLosesNoExpense(t *testing.T) {
	for _, kind := range []cache.EventKind{cache.BudgetWaited, cache.FetchStarted, cache.FetchDone} {
		t.Run(string(kind), func(t *testing.T) {
			inWorlds(t, func(w *world) {
				b := &counting{}
				g := w.guard(w.open(), policy(func(p *guard.Policy) { p.Budget, p.Observer = b, panicsWhen{kind} }))
				time.Sleep(time.Second)
				o, many := &origin{}, &manyOrigin{}
				_, _ = g.Get(w.Context(), "a", o.fetch)
				_, _ = g.GetMany(w.Context(), []string{"b", "c"}, many.fetch)
				time.Sleep(time.Second)
				many.mu.Lock()
				fetched := int64(o.n.Load()) + int64(len(many.calls))
				many.mu.Unlock()
				if b.granted.Load() != 2 || b.settled.Load() != 2 || b.refunded.Load() != 2-fetched {
					w.Errorf("%d granted, %d settled, %d of them refunded for %d fetches", b.granted.Load(), b.settled.Load(), b.refunded.Load(), fetched)
				}
			})
		})
	}
}

// A guard that is closed while a batch waits for its budget gives the leases back.
func TestCloseEndsABatchsWaitForItsBudget(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, every(30*time.Minute), policy(waits))
		get(w, all[0].Guard, "other", (&origin{}).fetch)
		done := make(chan error, 1)
		go func() {
			_, err := all[0].GetMany(w.Context(), []string{"a", "b"}, neverMany)
			done <- err
		}()
		time.Sleep(time.Second)
		must(w, all[0].Close())
		if err := <-done; !errors.Is(err, guard.ErrClosed) {
			w.Error(err)
		}
		free := w.guard(w.open(), policy())
		time.Sleep(time.Second)
		start := time.Now()
		getMany(w, free, []string{"a", "b"}, (&manyOrigin{}).fetch)
		if took := time.Since(start); took > 50*time.Millisecond {
			w.Errorf("a lease was left behind: %v", took)
		}
	})
}
