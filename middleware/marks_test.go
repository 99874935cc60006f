package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware"
)

// pitfall 34: requests for a marked page don't each ask the store. What is
// remembered of a mark ends with the mark, and is never more than a second old.
func TestPitfall34MarksAreRememberedForAMoment(t *testing.T) {
	for _, c := range []struct{ mark, readAfter, remembered time.Duration }{
		{mark: time.Minute, readAfter: 30 * time.Second, remembered: time.Second},
		{mark: 300 * time.Millisecond, readAfter: 200 * time.Millisecond, remembered: 100 * time.Millisecond},
	} {
		t.Run(c.mark.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &counting{Store: newStore(t)}
				h := wrap(t, store, middleware.Options{Policy: func(p *guard.Policy) { p.Bypass = c.mark }},
					saying(number(), "Cache-Control: private"))
				once(h)
				synctest.Wait() // it is marked
				time.Sleep(c.readAfter)
				once(h)
				before := store.reads
				time.Sleep(c.remembered - time.Millisecond)
				for range 10 {
					once(h)
				}
				if store.reads != before {
					t.Errorf("%d reads for 10 requests", store.reads-before)
				}
				time.Sleep(time.Millisecond)
				if once(h); store.reads == before {
					t.Errorf("a mark of which %v was left is remembered still", c.remembered)
				}
			})
		})
	}
}

// A budget that has nothing left is 429 with Retry-After, for the one who asks
// and for those who wait.
func TestExhaustedBudgetIs429(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := wrap(t, newStore(t), middleware.Options{Policy: func(p *guard.Policy) { p.Budget = empty{} }}, number())
		w := once(h)
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "3" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	})
}

// A quarantined page is 503 with Retry-After.
func TestQuarantineIs503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := wrap(t, quarantined{newStore(t)}, middleware.Options{}, number())
		if w := once(h); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	})
}

// wrap puts a middleware in front of a handler, without a server.
func wrap(t *testing.T, store cache.Store, o middleware.Options, h http.Handler) http.Handler {
	t.Helper()
	m, err := middleware.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m.Wrap(h)
}

func once(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://site.example/", nil))
	return w
}

// A counting store counts reads.
type counting struct {
	cache.Store
	reads int
}

func (s *counting) Read(ctx context.Context, key string) (*cache.Reading, error) {
	s.reads++
	return s.Store.Read(ctx, key)
}

// empty is a budget with nothing in it.
type empty struct{}

func (empty) Spend(context.Context, guard.Spending) (guard.Expense, error) {
	return nil, fmt.Errorf("refused: %w", &guard.ExhaustedError{Budget: "site", RetryAfter: 2500 * time.Millisecond})
}
func (empty) Exhausted(guard.Priority) bool { return false }
func (empty) Known() guard.BudgetState      { return guard.BudgetState{} }

// A quarantined store is one whose keys keep killing processes.
type quarantined struct{ cache.Store }

func (quarantined) Acquire(context.Context, string, cache.Ask) (cache.Answer, error) {
	return cache.Answer{Verdict: cache.Quarantined, TTL: time.Minute}, nil
}
