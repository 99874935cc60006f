package lock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/lock"
)

func TestOneHolderAtATimeOnRedis(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var inside, done atomic.Int64
	var last atomic.Uint64
	var wg sync.WaitGroup
	for range 3 {
		l := newLocker(t, lock.Options{}, lock.On(redisStore(t, server)))
		for range 4 {
			wg.Go(func() {
				for range 20 {
					err := l.Do(within(t), "n", func(_ context.Context, k *lock.Lock) error {
						if inside.Add(1) != 1 {
							t.Error("two holders")
						}
						if before := last.Swap(k.Fence()); before >= k.Fence() {
							t.Errorf("fence %d after %d", k.Fence(), before)
						}
						inside.Add(-1)
						done.Add(1)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if done.Load() != 240 {
		t.Errorf("%d done", done.Load())
	}
}

func TestTryLockTellsHolderAtOnce(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	a := newLocker(t, lock.Options{}, lock.On(redisStore(t, server)))
	b := newLocker(t, lock.Options{}, lock.On(redisStore(t, server)))
	k := mustLock(t, a, "n")
	_, err := b.TryLock(within(t), "n")
	var held *lock.HeldError
	if !errors.As(err, &held) || held.Holder != k.ID() || held.Left <= 9*time.Second || !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("TryLock: %v", err)
	}
	mustUnlock(t, k)
	again := mustLock(t, b, "n")
	if again.Fence() <= k.Fence() || again.Attempt() != 1 {
		t.Errorf("fence %d after %d, attempt %d", again.Fence(), k.Fence(), again.Attempt())
	}
}

// joined are Lockers on one memory, each as of a process of its own. Closing a store is the
// death of its process.
func joined(t *testing.T, opts lock.Options, n int) (all []*lock.Locker, stores []*cache.Memory) {
	t.Helper()
	first := memoryStore(t)
	for range n {
		s := first.Join()
		t.Cleanup(func() { _ = s.Close() })
		stores = append(stores, s)
		all = append(all, newLocker(t, opts, lock.On(s)))
	}
	return all, stores
}

func TestLockIsRenewedWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, _ := joined(t, lock.Options{TTL: time.Second}, 2)
		k := mustLock(t, ls[0], "n")
		time.Sleep(time.Hour)
		if err := k.Context().Err(); err != nil || k.Valid() < 500*time.Millisecond {
			t.Errorf("after an hour: %v, valid for %v", err, k.Valid())
		}
		if _, err := ls[1].TryLock(t.Context(), "n"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("TryLock of a held lock: %v", err)
		}
		mustUnlock(t, k)
		if cause := context.Cause(k.Context()); cause == nil || errors.Is(cause, lock.ErrLost) {
			t.Errorf("the context of an unlocked lock ended with %v", cause)
		}
	})
}

func TestContextEndsBeforeTTLWithoutRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, _ := joined(t, lock.Options{TTL: time.Second, NoRenew: true}, 2)
		began := time.Now()
		k := mustLock(t, ls[0], "n")
		<-k.Lost()
		if d := time.Since(began); d >= time.Second || d < 900*time.Millisecond {
			t.Errorf("the context ended after %v", d)
		}
		if !errors.Is(context.Cause(k.Context()), lock.ErrLost) {
			t.Errorf("its cause is %v", context.Cause(k.Context()))
		}
		if _, err := ls[1].TryLock(t.Context(), "n"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("another process has the lock already: %v", err)
		}
		if err := k.Extend(t.Context(), time.Hour); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Extend of a lost lock that Redis still has: %v", err)
		}
		if err := k.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		mustUnlock(t, mustLock(t, ls[1], "n"))
	})
}

func TestThawedHolderFindsContextEnded(t *testing.T) {
	ls, _ := joined(t, lock.Options{}, 1)
	for name, ended := range map[string]func(*lock.Lock, context.Context) bool{
		"Err":   func(_ *lock.Lock, ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) },
		"Done":  func(_ *lock.Lock, ctx context.Context) bool { return isClosed(ctx.Done()) },
		"Lost":  func(k *lock.Lock, _ context.Context) bool { return isClosed(k.Lost()) },
		"Valid": func(k *lock.Lock, _ context.Context) bool { return k.Valid() == 0 },
		"Extend": func(k *lock.Lock, _ context.Context) bool {
			return errors.Is(k.Extend(t.Context(), time.Hour), lock.ErrLost)
		},
		"Cause": func(_ *lock.Lock, ctx context.Context) bool {
			return ctx.Err() != nil && errors.Is(context.Cause(ctx), lock.ErrLost)
		},
	} {
		k := mustLock(t, ls[0], name)
		ctx := k.Context() // taken before the process is frozen
		if !lock.NoteLoss(k) || !ended(k, ctx) {
			t.Errorf("%s: the lock is lost, and the holder goes on", name)
		}
		if err := k.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%s: Unlock: %v", name, err)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestExtendProlongsLockWithoutRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, _ := joined(t, lock.Options{TTL: time.Second, NoRenew: true}, 1)
		k := mustLock(t, ls[0], "n")
		if err := k.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if k.Context().Err() != nil || k.Valid() == 0 {
			t.Error("the lock is lost")
		}
		time.Sleep(10 * time.Second)
		if k.Context().Err() == nil || k.Valid() != 0 {
			t.Error("the lock is held after its time")
		}
	})
}

// A renewal asks for less than an Extend has got. Were it to shorten the lock, and its answer
// lost, the holder would believe in the longer time.
func TestRenewalLeavesExtendedLockItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, _ := joined(t, lock.Options{TTL: time.Second}, 1)
		k := mustLock(t, ls[0], "n")
		if err := k.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		s, err := ls[0].Inspect(t.Context(), "n")
		if err != nil || len(s.Holders) != 1 || s.Holders[0].Left != 50*time.Second || k.Valid() < 49*time.Second {
			t.Errorf("valid for %v, %+v, %v; want 50s", k.Valid(), s, err)
		}
	})
}

func TestPausedRedisEndsContextInTime(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	const ttl = 1500 * time.Millisecond
	l := newLocker(t, lock.Options{TTL: ttl}, lock.On(redisStore(t, server)))
	began := time.Now()
	err := l.Do(within(t), "n", func(ctx context.Context, _ *lock.Lock) error {
		if err := server.Pause(); err != nil {
			t.Error(err)
		}
		now := time.Now() // before the context is looked at, which was good even later
		for ; ctx.Err() == nil; now = time.Now() {
			if d := now.Sub(began); d > ttl {
				t.Errorf("the context was good %v after the request", d)
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err := server.Resume(); err != nil {
			t.Error(err)
		}
		return context.Cause(ctx)
	})
	if !errors.Is(err, lock.ErrLost) {
		t.Errorf("Do: %v", err)
	}
}

func TestUnavailableRedisGrantsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for name, b := range map[string]lock.Backend{"store": lock.On(redisStore(t, server)), "plain": lock.Plain(server.Client())} {
		l := newLocker(t, lock.Options{TTL: 2 * time.Second}, b)
		mustUnlock(t, mustLock(t, l, "n"))
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, get := range []func(context.Context, string) (*lock.Lock, error){l.Lock, l.TryLock} {
			if _, err := get(within(t), "n"); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := l.Inspect(within(t), "n"); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s: Inspect: %v", name, err)
		}
		if err := server.Restart(within(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnwindingFunctionLeavesNothingLocked(t *testing.T) {
	ls, _ := joined(t, lock.Options{}, 1)
	l := ls[0]
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not go on")
			}
		}()
		_ = l.Do(t.Context(), "n", func(context.Context, *lock.Lock) error { panic("boom") })
	}()
	mustUnlock(t, mustLock(t, l, "n"))
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = l.TryDo(t.Context(), "n", func(context.Context, *lock.Lock) error { runtime.Goexit(); return nil })
	})
	wg.Wait()
	mustUnlock(t, mustLock(t, l, "n"))
}

func TestBadInputIsRefused(t *testing.T) {
	b := lock.On(memoryStore(t))
	for name, c := range map[string]struct {
		opts     lock.Options
		backends []lock.Backend
		says     string
	}{
		"short TTL":      {lock.Options{TTL: 9 * time.Millisecond}, []lock.Backend{b}, "Options.TTL is 9ms, must be at least 10ms"},
		"no backend":     {lock.Options{}, nil, "no backend"},
		"even":           {lock.Options{}, []lock.Backend{b, lock.On(memoryStore(t))}, "even number"},
		"twice":          {lock.Options{}, []lock.Backend{b, b, b}, "same server"},
		"nil":            {lock.Options{}, []lock.Backend{nil}, "backend 0 is nil"},
		"nil store":      {lock.Options{}, []lock.Backend{lock.On((*cache.Memory)(nil))}, "the store is nil"},
		"nil client":     {lock.Options{}, []lock.Backend{lock.Plain(nil)}, "the client is nil"},
		"negative":       {lock.Options{Wait: -1, Attempts: -1, Retry: -1, Drift: -1, Holders: -1}, []lock.Backend{b}, "Options.Holders is -1"},
		"quorum of many": {lock.Options{Holders: 2}, []lock.Backend{b, lock.On(memoryStore(t)), lock.On(memoryStore(t))}, "a semaphore needs a single backend, as 3 holders could each have a majority of 2"},
	} {
		if l, err := lock.New(c.opts, c.backends...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
	l := newLocker(t, lock.Options{}, b)
	for name, err := range map[string]error{
		"Do":    l.Do(t.Context(), "n", nil),
		"TryDo": l.TryDo(t.Context(), "n", nil),
		"Lead":  l.Lead(t.Context(), "n", nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "nil function") {
			t.Errorf("%s without a function: %v", name, err)
		}
	}
	k := mustLock(t, l, "n")
	if err := k.Extend(t.Context(), time.Millisecond); err == nil {
		t.Error("Extend by 1ms")
	}
	mustUnlock(t, k)
	if held, err := l.Unlock(t.Context(), "n", k.ID()); held || err != nil {
		t.Errorf("Unlock of a lock that is gone: %v, %v", held, err)
	}
}

func TestForeignValueIsNamed(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client := server.Client()
	l := newLocker(t, lock.Options{}, lock.On(redisStore(t, server)))
	ctx := within(t)
	for _, name := range []string{"lock", "fence"} {
		key := "test:{!l:" + name + "}:" + name
		for kind, set := range map[string]func() error{
			"string": func() error { return client.Set(ctx, key, "foreign", 0).Err() },
			"list":   func() error { return client.LPush(ctx, key, "foreign").Err() },
		} {
			client.FlushAll(ctx)
			if err := set(); err != nil {
				t.Fatal(err)
			}
			for call, err := range map[string]error{
				"Lock":    second(l.Lock(ctx, name)),
				"TryLock": second(l.TryLock(ctx, name)),
			} {
				if !errors.Is(err, lock.ErrForeign) || !strings.Contains(err.Error(), key) {
					t.Errorf("%s with a %s under %s: %v", call, kind, key, err)
				}
			}
			if n := client.Keys(ctx, "test:*").Val(); len(n) != 1 {
				t.Errorf("%s with a %s: left %q", name, kind, n)
			}
		}
	}
	client.Set(ctx, "test:{!w:jobs:j}:job", "foreign", 0)
	w := newWorker(t, redisStore(t, server), lock.WorkerPolicy{})
	if _, err := w.TryDo(ctx, "j", func(context.Context, *lock.Attempt) error { return nil }); !errors.Is(err, lock.ErrForeign) {
		t.Errorf("TryDo of a job: %v", err)
	}
	p := newLocker(t, lock.Options{}, lock.Plain(client))
	client.LPush(ctx, "plain", "foreign")
	if _, err := p.TryLock(ctx, "plain"); !errors.Is(err, lock.ErrForeign) {
		t.Errorf("Plain: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestWaitersOfProcessTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, _ := joined(t, lock.Options{}, 1)
		k := mustLock(t, ls[0], "n")
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				k, err := ls[0].Lock(t.Context(), "n")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				mustUnlock(t, k)
			})
			synctest.Wait()
		}
		mustUnlock(t, k)
		wg.Wait()
		for i, who := range order {
			if who != i {
				t.Fatalf("the order was %v", order)
			}
		}
	})
}

func TestWaitAndAttemptsBoundLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := memoryStore(t)
		holder := newLocker(t, lock.Options{}, lock.On(first))
		k := mustLock(t, holder, "n")
		began := time.Now()
		l := newLocker(t, lock.Options{Wait: 3 * time.Second}, lock.On(first.Join()))
		if _, err := l.Lock(t.Context(), "n"); !errors.Is(err, lock.ErrHeld) || time.Since(began) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		l = newLocker(t, lock.Options{Attempts: 3}, lock.On(first.Join()))
		if err := l.Do(t.Context(), "n", func(context.Context, *lock.Lock) error { return nil }); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("Do: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		l = newLocker(t, lock.Options{}, lock.On(first.Join()))
		if _, err := l.Lock(ctx, "n"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, lock.ErrHeld) {
			t.Errorf("Lock: %v", err)
		}
		mustUnlock(t, k)
	})
}

func TestDeadHolderIsReplacedWithTakeOver(t *testing.T) {
	for _, takeOver := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ls, stores := joined(t, lock.Options{TTL: 10 * time.Second, TakeOver: takeOver}, 2)
			k := mustLock(t, ls[0], "n")
			died := time.Now()
			_ = stores[0].Close()
			next := mustLock(t, ls[1], "n")
			d := time.Since(died)
			if takeOver && (d > 300*time.Millisecond || !next.TakenOver()) || !takeOver && (d < 10*time.Second || d > 11*time.Second) {
				t.Errorf("TakeOver %v: replaced after %v", takeOver, d)
			}
			if next.Attempt() != 2 || next.Fence() <= k.Fence() {
				t.Errorf("attempt %d, fence %d after %d", next.Attempt(), next.Fence(), k.Fence())
			}
			mustUnlock(t, next)
		})
	}
}

func TestSemaphoreAdmitsItsHolders(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var inside, most atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		l := newLocker(t, lock.Options{Holders: 3}, lock.On(redisStore(t, server)))
		for range 5 {
			wg.Go(func() {
				for range 10 {
					if err := l.Do(within(t), "n", func(context.Context, *lock.Lock) error {
						n := inside.Add(1)
						for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
						}
						time.Sleep(time.Millisecond)
						inside.Add(-1)
						return nil
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if most.Load() != 3 {
		t.Errorf("%d holders at a time, want 3", most.Load())
	}
}

func TestUnlockByIDEndsLock(t *testing.T) {
	ls, _ := joined(t, lock.Options{TTL: 300 * time.Millisecond}, 2)
	k := mustLock(t, ls[0], "n")
	id, err := lock.ParseID(k.ID().String())
	if err != nil {
		t.Fatal(err)
	}
	if held, err := ls[1].Unlock(t.Context(), "n", id); !held || err != nil {
		t.Fatalf("Unlock: %v, %v", held, err)
	}
	mustUnlock(t, mustLock(t, ls[1], "n"))
	<-k.Lost() // at its next renewal
	if err := k.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of the holder: %v", err)
	}
}

func TestInspectTellsHolderAndFence(t *testing.T) {
	ls, _ := joined(t, lock.Options{}, 2)
	k := mustLock(t, ls[0], "n")
	s, err := ls[1].Inspect(t.Context(), "n")
	if err != nil || len(s.Holders) != 1 || s.Holders[0].ID != k.ID() || s.Fence != k.Fence() || s.Holders[0].Dead {
		t.Errorf("Inspect: %+v, %v", s, err)
	}
}

func TestCloseReleasesLocks(t *testing.T) {
	ls, _ := joined(t, lock.Options{}, 2)
	k := mustLock(t, ls[0], "n")
	waits := make(chan error)
	go func() {
		_, err := ls[0].Lock(t.Context(), "n")
		waits <- err
	}()
	if err := ls[0].Close(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(context.Cause(k.Context()), lock.ErrClosed) {
		t.Errorf("the context ended with %v", context.Cause(k.Context()))
	}
	if err := <-waits; !errors.Is(err, lock.ErrClosed) {
		t.Errorf("the waiter: %v", err)
	}
	if _, err := ls[0].TryLock(t.Context(), "n"); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("TryLock: %v", err)
	}
	mustUnlock(t, mustLock(t, ls[1], "n"))
}

func TestLeadLeadsAgainAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, stores := joined(t, lock.Options{TTL: time.Second}, 2)
		ctx, cancel := context.WithCancel(t.Context())
		var leaders, terms, most atomic.Int64
		var wg sync.WaitGroup
		for _, l := range ls {
			wg.Go(func() {
				err := l.Lead(ctx, "n", func(ctx context.Context, _ *lock.Lock) error {
					terms.Add(1)
					most.Store(max(most.Load(), leaders.Add(1)))
					<-ctx.Done()
					leaders.Add(-1)
					return nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Lead: %v", err)
				}
			})
		}
		synctest.Wait()
		s, err := ls[1].Inspect(ctx, "n")
		if err != nil || len(s.Holders) != 1 {
			t.Fatalf("Inspect: %+v, %v", s, err)
		}
		if held, err := ls[1].Unlock(ctx, "n", s.Holders[0].ID); !held || err != nil {
			t.Fatalf("Unlock: %v, %v", held, err)
		}
		time.Sleep(time.Minute)
		if terms.Load() < 2 || leaders.Load() != 1 {
			t.Errorf("%d terms, %d leaders", terms.Load(), leaders.Load())
		}
		cancel()
		wg.Wait()
		_ = stores
	})
}

func TestLeadReturnsErrorOfFunction(t *testing.T) {
	ls, _ := joined(t, lock.Options{}, 1)
	boom := errors.New("boom")
	if err := ls[0].Lead(t.Context(), "n", func(context.Context, *lock.Lock) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("Lead: %v", err)
	}
	mustUnlock(t, mustLock(t, ls[0], "n"))
}

type events struct {
	mu    sync.Mutex
	kinds []cache.EventKind
}

func (e *events) Observe(ev cache.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kinds = append(e.kinds, ev.Kind)
}

func (e *events) text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []string
	for _, k := range e.kinds {
		all = append(all, string(k))
	}
	return strings.Join(all, " ")
}

func TestObserverHearsOfLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &events{}
		ls, _ := joined(t, lock.Options{Observer: seen, NoRenew: true, TTL: time.Second}, 2)
		mustLock(t, ls[0], "n")
		k := mustLock(t, ls[1], "n")
		mustUnlock(t, k)
		const want = "lease_granted lease_held wait_began lease_lost lease_granted wait_ended lease_released"
		if got := seen.text(); got != want {
			t.Errorf("events %s, want %s", got, want)
		}
	})
}
