package promstampede_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/lock"
	"github.com/stampedeguard/stampede/promstampede"
)

func TestCollectorReportsLocks(t *testing.T) {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	metrics := promstampede.New()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics)
	locks, err := lock.New(lock.Options{Observer: metrics}, lock.On(store))
	if err != nil {
		t.Fatal(err)
	}
	active := func(n string) {
		t.Helper()
		want := "# HELP stampede_lock_active Locks that are held now, by this process.\n# TYPE stampede_lock_active gauge\nstampede_lock_active " + n + "\n"
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "stampede_lock_active"); err != nil {
			t.Error(err)
		}
	}
	err = locks.Do(t.Context(), "l", func(context.Context, *lock.Lock) error {
		active("1")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	active("0")
	if n, err := testutil.GatherAndCount(registry, "stampede_lock_held_duration_seconds"); n != 1 || err != nil {
		t.Errorf("%d series of the time that locks are held, error %v, want 1", n, err)
	}
	_ = locks.Close()
	if n, err := testutil.GatherAndCount(registry, "stampede_lock_active"); n != 0 || err != nil {
		t.Errorf("%d series of held locks after Close, error %v, want none", n, err)
	}
}

func TestLockWaitsAreCountedByTheirEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close() }()
		metrics := promstampede.New()
		locks, err := lock.New(lock.Options{Wait: time.Second, Observer: metrics}, lock.On(store))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locks.Close() }()
		jobs, err := lock.NewWorker(store, "jobs", lock.WorkerPolicy{Observer: metrics})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = jobs.Close() }()

		_ = locks.Do(t.Context(), "l", func(ctx context.Context, _ *lock.Lock) error {
			return locks.Do(ctx, "l", func(context.Context, *lock.Lock) error { return nil })
		})
		end := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, _ = jobs.Do(t.Context(), "j", func(context.Context, *lock.Attempt) error { <-end; return nil })
			})
		}
		synctest.Wait()
		close(end)
		wg.Wait()

		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(metrics)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var ends []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "stampede_lock_wait_duration_seconds" {
					ends = append(ends, m.GetLabel()[0].GetValue())
				}
			}
		}
		if !slices.Equal(ends, []string{"held", "job_ended"}) {
			t.Errorf("waits ended as %q, want held and job_ended", ends)
		}
	})
}
