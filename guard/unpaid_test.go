package guard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// dies is a process that dies while it fetches the key: its connections end, and it
// gives nothing back.
func dies(w *world, p guard.Policy, key string) {
	w.Helper()
	client := w.server.Client()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
	must(w, err)
	g, err := guard.New[string](s, "g", p)
	must(w, err)
	fetching := make(chan struct{})
	go func() {
		_, _ = g.Get(ctx, key, func(ctx context.Context) (string, error) {
			close(fetching)
			<-ctx.Done()
			return "", ctx.Err()
		})
	}()
	<-fetching
	_ = client.Close()
	w.Cleanup(func() { _ = g.Close(); _ = s.Close() })
}

// P7: a grant without a fetch says nothing of the key.
func TestGrantWithoutAFetchForgivesNoDeaths(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxAttempts = 2 })
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		// ask has a guard be granted the key's lease.
		ask      func(w *world, s cache.Store, p guard.Policy)
		forgives bool
	}{
		"a fetch that fails": {func(w *world, s cache.Store, p guard.Policy) {
			_, err := w.guard(s, p).Get(ctx, "k", func(context.Context) (string, error) { return "", failed })
			if !errors.Is(err, failed) {
				w.Errorf("Get: %v", err)
			}
		}, true},
		"Get, exhausted": {func(w *world, s cache.Store, p guard.Policy) {
			p.Budget = drained{}
			_, err := w.guard(s, p).Get(ctx, "k", never)
			isExhausted(w, err)
		}, false},
		"Refresh, exhausted": {func(w *world, s cache.Store, p guard.Policy) {
			p.Budget = drained{}
			_, err := w.guard(s, p).Get(ctx, "k", never, guard.MaxAge(0))
			isExhausted(w, err)
		}, false},
		"GetMany, exhausted": {func(w *world, s cache.Store, p guard.Policy) {
			p.Budget, p.MaxBatch = drained{}, 1
			_, err := w.guard(s, p).GetMany(ctx, []string{"other", "k"}, func(context.Context, []string) (map[string]string, error) {
				_, err := never(ctx)
				return nil, err
			})
			isExhausted(w, err)
		}, false},
		"a fetch that is exhausted": {func(w *world, s cache.Store, p guard.Policy) {
			_, err := w.guard(s, p).Get(ctx, "k", func(context.Context) (string, error) {
				return "", &guard.ExhaustedError{Budget: "its own"}
			})
			isExhausted(w, err)
		}, false},
		"a budget that fails": {func(w *world, s cache.Store, p guard.Policy) {
			p.Budget = broken{}
			_, _ = w.guard(s, p).Get(ctx, "k", never)
		}, false},
		"a guard that is closed": {func(w *world, s cache.Store, p guard.Policy) {
			p.Budget, p.MaxBudgetWait = forever{}, time.Second
			g := w.guard(s, p)
			go func() {
				time.Sleep(500 * time.Millisecond) // fake: while it waits for its budget
				_ = g.Close()
			}()
			if _, err := g.Get(ctx, "k", never); !errors.Is(err, guard.ErrClosed) {
				w.Errorf("Get: %v", err)
			}
		}, false},
		"a fetch without callers": {func(w *world, s cache.Store, p guard.Policy) {
			p.Budget, p.MaxBudgetWait = forever{}, time.Second
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			if _, err := w.guard(s, p).Get(ctx, "k", never); !errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("Get: %v", err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inRedis(t, func(w *world) {
				next := w.guard(w.open(), p)
				s := w.open()
				time.Sleep(time.Second) // fake: until the subscriptions are live
				dies(w, p, "k")
				c.ask(w, s, p)
				dies(w, p, "k")
				_, err := next.Get(ctx, "k", (&origin{}).fetch)
				if quarantined := errors.Is(err, guard.ErrQuarantined); quarantined == c.forgives {
					w.Errorf("quarantined: %v; %v", quarantined, err)
				}
			})
		})
	}
}

func isExhausted(w *world, err error) {
	w.Helper()
	var exhausted *guard.ExhaustedError
	if !errors.As(err, &exhausted) {
		w.Errorf("%v, want an ExhaustedError", err)
	}
}

// A forever budget is never there.
type forever struct{ drained }

func (forever) Spend(ctx context.Context, _ guard.Spending) (guard.Expense, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}
