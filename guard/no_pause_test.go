package guard_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

func TestRetryAfterZeroLeavesOutTheErrorPause(t *testing.T) {
	for _, c := range []struct {
		err       error
		refreshes int
	}{
		{errors.New("boom"), 1},
		{guard.RetryAfter(errors.New("boom"), 0), 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			store, err := cache.NewMemory(cache.MemoryOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			g, err := guard.New[string](store, "g", guard.Policy{TTL: time.Second, Stale: time.Hour, ErrorPause: time.Minute, Beta: guard.Off})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if _, err := g.Get(t.Context(), "k", func(context.Context) (string, error) { return "v", nil }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			var refreshes atomic.Int32
			for range 3 {
				v, err := g.Get(t.Context(), "k", func(context.Context) (string, error) { refreshes.Add(1); return "", c.err })
				time.Sleep(time.Second)
				if v != "v" || err != nil {
					t.Errorf("%q, %v", v, err)
				}
			}
			if n := int(refreshes.Load()); n != c.refreshes {
				t.Errorf("%v: %d refreshes, want %d", c.err, n, c.refreshes)
			}
		})
	}
}
