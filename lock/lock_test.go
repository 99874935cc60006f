package lock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/redistest"
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

func TestHandOverTakesOneHop(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	a := newLocker(t, lock.Options{}, lock.On(redisStore(t, server)))
	b := newLocker(t, lock.Options{}, lock.On(redisStore(t, server)))
	var times []time.Duration
	for range 20 {
		k := mustLock(t, a, "n")
		got := make(chan time.Time)
		go func() {
			k := mustLock(t, b, "n")
			got <- time.Now()
			mustUnlock(t, k)
		}()
		time.Sleep(20 * time.Millisecond) // the waiter subscribes meanwhile; no check depends on it
		released := time.Now()
		mustUnlock(t, k)
		times = append(times, (<-got).Sub(released))
	}
	t.Logf("hand-over: %v", times)
}
