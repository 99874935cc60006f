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

func newWorker(t *testing.T, s cache.Store, p lock.WorkerPolicy) *lock.Worker {
	t.Helper()
	w, err := lock.NewWorker(s, "jobs", p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

var errJob = errors.New("the job failed")

func noBackoff(int) time.Duration { return 0 }

func TestJobIsDoneOnceByManyWorkers(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var runs, mine atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		w := newWorker(t, redisStore(t, server), lock.WorkerPolicy{})
		for range 3 {
			wg.Go(func() {
				r, err := w.Do(within(t), "job", func(_ context.Context, a *lock.Attempt) error {
					runs.Add(1)
					return nil
				})
				if err != nil || !r.Done || r.Attempts != 1 {
					t.Errorf("Do: %+v, %v", r, err)
				}
				if !r.ByOther {
					mine.Add(1)
				}
			})
		}
	}
	wg.Wait()
	if runs.Load() != 1 || mine.Load() != 1 {
		t.Errorf("%d runs, %d of them told", runs.Load(), mine.Load())
	}
}

// eachStore runs a test on both stores. other returns the store of another process.
func eachStore(t *testing.T, f func(t *testing.T, other func() cache.Store)) {
	t.Run("redis", func(t *testing.T) {
		server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
		f(t, func() cache.Store { return redisStore(t, server) })
	})
	t.Run("memory", func(t *testing.T) {
		first := memoryStore(t)
		f(t, func() cache.Store { return first.Join() })
	})
}

func TestFailedAttemptsAreCapped(t *testing.T) {
	eachStore(t, func(t *testing.T, other func() cache.Store) {
		w := newWorker(t, other(), lock.WorkerPolicy{MaxAttempts: 3, Backoff: noBackoff})
		var numbers []int
		var keys []string
		r, err := w.Do(within(t), "job", func(_ context.Context, a *lock.Attempt) error {
			numbers, keys = append(numbers, a.Number), append(keys, a.IdempotencyKey)
			if (a.Previous == nil) != (a.Number == 1) || a.Previous != nil && a.Previous.Error() != errJob.Error() {
				t.Errorf("attempt %d: previous %v", a.Number, a.Previous)
			}
			if a.Last != (a.Number == 3) || a.Lock.Fence() == 0 {
				t.Errorf("attempt %+v", a)
			}
			if s, err := w.Status(t.Context(), "job"); err != nil || s.State != lock.Running || s.Holder != a.Lock.ID() {
				t.Errorf("Status: %+v, %v", s, err)
			}
			return errJob
		})
		var gaveUp *lock.GaveUpError
		if !errors.As(err, &gaveUp) || gaveUp.Attempts != 3 || gaveUp.Cause != errJob.Error() || r.Done || len(numbers) != 3 || keys[0] != keys[2] {
			t.Errorf("Do: %+v, %v; attempts %v", r, err, numbers)
		}
		backup := newWorker(t, other(), lock.WorkerPolicy{MaxAttempts: 3})
		never := func(context.Context, *lock.Attempt) error { t.Error("a job that was given up runs"); return nil }
		if _, err := backup.Do(within(t), "job", never); !errors.As(err, &gaveUp) || gaveUp.Attempts != 3 {
			t.Errorf("Do of another worker: %v", err)
		}
		if s, err := backup.Status(t.Context(), "job"); err != nil || s.State != lock.GaveUp || s.Attempts != 3 || s.Cause != errJob.Error() {
			t.Errorf("Status: %+v, %v", s, err)
		}
		if err := backup.Forget(t.Context(), "job"); err != nil {
			t.Error(err)
		}
		if s, err := backup.Status(t.Context(), "job"); err != nil || s.State != lock.Free || s.Attempts != 0 {
			t.Errorf("Status: %+v, %v", s, err)
		}
		if r, err := backup.TryDo(within(t), "job", func(context.Context, *lock.Attempt) error { return nil }); err != nil || !r.Done || r.ByOther {
			t.Errorf("TryDo: %+v, %v", r, err)
		}
		if s, err := w.Status(t.Context(), "job"); err != nil || s.State != lock.Done || s.Attempts != 1 {
			t.Errorf("Status: %+v, %v", s, err)
		}
	})
}

func TestTryDoMakesOneAttempt(t *testing.T) {
	eachStore(t, func(t *testing.T, other func() cache.Store) {
		w, backup := newWorker(t, other(), lock.WorkerPolicy{}), newWorker(t, other(), lock.WorkerPolicy{})
		runs := 0
		_, err := w.TryDo(within(t), "job", func(context.Context, *lock.Attempt) error {
			runs++
			if _, err := backup.TryDo(within(t), "job", func(context.Context, *lock.Attempt) error { return nil }); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("TryDo of another worker: %v", err)
			}
			if err := backup.Forget(t.Context(), "job"); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("Forget of a job that runs: %v", err)
			}
			return errJob
		})
		if !errors.Is(err, errJob) || runs != 1 {
			t.Errorf("TryDo: %v, %d runs", err, runs)
		}
		var held *lock.HeldError
		if _, err := backup.TryDo(within(t), "job", func(context.Context, *lock.Attempt) error { return nil }); !errors.As(err, &held) || held.Left <= 0 {
			t.Errorf("TryDo during the pause: %v", err)
		}
		if s, err := w.Status(t.Context(), "job"); err != nil || s.State != lock.Failed || s.Attempts != 1 {
			t.Errorf("Status: %+v, %v", s, err)
		}
	})
}

func TestEndedContextCostsNoAttempt(t *testing.T) {
	eachStore(t, func(t *testing.T, other func() cache.Store) {
		w := newWorker(t, other(), lock.WorkerPolicy{})
		ctx, cancel := context.WithCancel(within(t))
		_, err := w.Do(ctx, "job", func(ctx context.Context, _ *lock.Attempt) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Do: %v", err)
		}
		if _, err := w.Do(within(t), "job", func(_ context.Context, a *lock.Attempt) error {
			if a.Number != 1 || a.Previous != nil {
				t.Errorf("attempt %d after %v", a.Number, a.Previous)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

func TestPanicOfJobCountsAsFailure(t *testing.T) {
	w := newWorker(t, memoryStore(t), lock.WorkerPolicy{Backoff: noBackoff})
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not go on")
			}
		}()
		_, _ = w.Do(t.Context(), "job", func(context.Context, *lock.Attempt) error { panic("boom") })
	}()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = w.Do(t.Context(), "job", func(context.Context, *lock.Attempt) error { runtime.Goexit(); return nil })
	})
	wg.Wait()
	if s, err := w.Status(t.Context(), "job"); err != nil || s.State != lock.Failed || s.Attempts != 2 || !strings.Contains(s.Cause, "Goexit") {
		t.Errorf("Status: %+v, %v", s, err)
	}
}

func TestDeadWorkersAreCountedAndReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := memoryStore(t)
		stuck := func(ctx context.Context, _ *lock.Attempt) error {
			<-ctx.Done()
			return ctx.Err()
		}
		var wg sync.WaitGroup
		for range 3 {
			s := first.Join()
			w := newWorker(t, s, lock.WorkerPolicy{MaxAttempts: 3})
			ctx, cancel := context.WithCancel(t.Context())
			wg.Go(func() { _, _ = w.Do(ctx, "job", stuck) })
			time.Sleep(time.Second) // the last one is replaced, its attempt runs
			_ = s.Close()           // its process dies
			cancel()
		}
		backup := newWorker(t, first.Join(), lock.WorkerPolicy{MaxAttempts: 3})
		began := time.Now()
		_, err := backup.Do(t.Context(), "job", stuck)
		var gaveUp *lock.GaveUpError
		if !errors.As(err, &gaveUp) || gaveUp.Attempts != 3 || !errors.Is(err, lock.ErrDied) {
			t.Errorf("Do: %v", err)
		}
		if d := time.Since(began); d > 300*time.Millisecond {
			t.Errorf("after %v", d)
		}
		wg.Wait()
	})
}

func TestLostLeaseOfLiveWorkerCostsNoAttempt(t *testing.T) {
	eachStore(t, func(t *testing.T, other func() cache.Store) {
		slow := newWorker(t, other(), lock.WorkerPolicy{Lease: 300 * time.Millisecond})
		backup := newWorker(t, other(), lock.WorkerPolicy{Lease: 300 * time.Millisecond})
		attempts := 0
		_, err := slow.Do(within(t), "job", func(ctx context.Context, a *lock.Attempt) error {
			if attempts++; attempts > 1 {
				t.Error("the slow worker does a job again that is done")
			}
			// An operator ends its lease; another worker does the job meanwhile.
			forceUnlock(t, other(), a.Lock.ID())
			r, err := backup.Do(within(t), "job", func(_ context.Context, a *lock.Attempt) error {
				if a.Number != 1 {
					t.Errorf("attempt %d", a.Number)
				}
				return nil
			})
			if err != nil || !r.Done {
				t.Errorf("backup: %+v, %v", r, err)
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil || attempts != 1 {
			t.Errorf("Do: %v after %d attempts", err, attempts)
		}
	})
}

func TestBadWorkerPolicyIsRefused(t *testing.T) {
	if _, err := lock.NewWorker(nil, "", lock.WorkerPolicy{MaxAttempts: -1, Lease: 1, Keep: -1}); err == nil ||
		!strings.Contains(err.Error(), "MaxAttempts") || !strings.Contains(err.Error(), "Lease") || !strings.Contains(err.Error(), "Keep") ||
		!strings.Contains(err.Error(), "the store is nil") || !strings.Contains(err.Error(), "the name has 0 bytes") {
		t.Errorf("NewWorker: %v", err)
	}
	// Job "c" of worker "a:b" would be job "b:c" of worker "a".
	for _, name := range []string{"a:b", "a\x00b"} {
		if _, err := lock.NewWorker(memoryStore(t), name, lock.WorkerPolicy{}); err == nil || !strings.Contains(err.Error(), "colon") {
			t.Errorf("a worker of the name %q: %v", name, err)
		}
	}
	w := newWorker(t, memoryStore(t), lock.WorkerPolicy{})
	if _, err := w.Do(t.Context(), "job", nil); err == nil {
		t.Error("Do without a function")
	}
}

func TestJobEndsWithTheContextOfALostLock(t *testing.T) {
	w := newWorker(t, memoryStore(t), lock.WorkerPolicy{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lock.ErrLost)
	ended := make(chan error, 1)
	go func() {
		_, err := w.Do(ctx, "job", func(context.Context, *lock.Attempt) error { return nil })
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Do goes on")
	}
}
