package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware"
)

// A budget that has nothing left is 429 with Retry-After, for the leader
// and for waiters.
func TestExhaustedBudgetIs429(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := wrap(t, newStore(t), middleware.Options{Policy: func(p *guard.Policy) { p.Budget = empty{} }}, number())
		w := once(h)
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "3" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	})
}

// A budget pays for runs of the handler, and for nothing else that the
// middleware fetches.
func TestBudgetPaysForRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spent, runs atomic.Int64
		o := middleware.Options{TTL: time.Hour, Headers: []string{"X-Tenant"}, Policy: func(p *guard.Policy) { p.Budget = purse{&spent} }}
		h := wrap(t, newStore(t), o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			w.Header().Set("Vary", "Accept-Language")
		}))
		for _, lang := range []string{"de", "en", "fr", "de", "en", "fr"} {
			r := httptest.NewRequest("GET", "http://site.example/", nil)
			r.Header.Set("Accept-Language", lang)
			h.ServeHTTP(httptest.NewRecorder(), r)
			synctest.Wait()
		}
		if runs.Load() != 3 || spent.Load() != 3 {
			t.Errorf("%d runs cost %d", runs.Load(), spent.Load())
		}
	})
}

// A quarantined page is 503 with Retry-After.
func TestQuarantineIs503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := wrap(t, quarantined(newStore(t)), middleware.Options{}, number())
		if w := once(h); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	})
}

// RFC 9111, 5.2.1.7: only-if-cached never runs the handler, with or without a stored page.
func TestOnlyIfCachedNeverRunsTheHandler(t *testing.T) {
	for _, c := range []struct {
		says  string // of the response
		after time.Duration
		asks  string // besides
		want  int
	}{
		{"private", 0, "", 504},
		{"max-age=60", time.Second, "", 200},
		{"max-age=60", 10 * time.Second, ", max-age=5", 504},
		{"max-age=60", 10 * time.Second, ", min-fresh=55", 504},
		{"max-age=60", 10 * time.Second, ", no-cache", 504},
		{"max-age=60", time.Hour, "", 504},
		{"max-age=60, stale-while-revalidate=60", 90 * time.Second, "", 200},
		{"max-age=60, stale-if-error=3600", 90 * time.Second, "", 504},
		{"max-age=60, stale-if-error=3600", 90 * time.Second, ", max-stale=60", 200},
		{"no-cache", time.Second, "", 504},
	} {
		t.Run(c.says+" after "+c.after.String()+c.asks, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				h := wrap(t, newStore(t), middleware.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					runs.Add(1)
					w.Header().Set("Cache-Control", c.says)
					w.Header().Set("ETag", `"v"`)
				}))
				once(h)
				synctest.Wait()
				time.Sleep(c.after)
				w := once(h, "only-if-cached"+c.asks)
				synctest.Wait()
				if w.Code != c.want || runs.Load() != 1 {
					t.Errorf("%d after %d runs, want %d; %v", w.Code, runs.Load(), c.want, w.Header())
				}
			})
		})
	}
}

// Nor does it with a precondition, which may be the handler's to judge.
func TestOnlyIfCachedWithAPrecondition(t *testing.T) {
	s := open(t, middleware.Options{}, saying(number(), "Cache-Control: max-age=60", `ETag: "a"`))
	s.do("/")
	s.stored("/", "run 1")
	for what, want := range map[string]int{`/ If-Match: "a"`: 200, `/ If-Match: "b"`: 504, `/unknown If-Match: "a"`: 504} {
		path, condition, _ := strings.Cut(what, " ")
		if g := s.do(path, condition, "Cache-Control: only-if-cached"); g.StatusCode != want || strings.Contains(g.status(), "fwd=") {
			t.Errorf("%s: %d, want %d; %s", what, g.StatusCode, want, g.status())
		}
	}
	s.ran(1)
	s.Close() // and so all are counted
	if st := s.m.Stats(); st.Forwarded != 1 || st.Bypassed != 0 {
		t.Errorf("%+v", st)
	}
}

// A client that accepts a stale page doesn't keep it so.
func TestMaxStaleRefreshesPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := wrap(t, newStore(t), middleware.Options{}, saying(number(), "Cache-Control: max-age=60, stale-while-revalidate=60"))
		for i, want := range []string{"run 1", "run 1", "run 2"} {
			if w := once(h, "max-stale"); w.Body.String() != want {
				t.Errorf("%d: %q, want %q", i, w.Body, want)
			}
			synctest.Wait()
			if i == 0 {
				time.Sleep(90 * time.Second)
			}
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

func once(h http.Handler, cacheControl ...string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "http://site.example/", nil)
	r.Header["Cache-Control"] = cacheControl
	h.ServeHTTP(w, r)
	return w
}

// A purse is a budget that has enough, and knows its sum.
type purse struct{ spent *atomic.Int64 }

func (p purse) Spend(context.Context, guard.Spending) (guard.Expense, error) { return p, nil }
func (p purse) Settle(actual int)                                            { p.spent.Add(int64(actual)) }
func (purse) Exhausted(guard.Priority) bool                                  { return false }
func (purse) Known() guard.BudgetState                                       { return guard.BudgetState{} }

// empty is a budget with nothing in it.
type empty struct{}

func (empty) Spend(context.Context, guard.Spending) (guard.Expense, error) {
	return nil, fmt.Errorf("refused: %w", &guard.ExhaustedError{Budget: "site", RetryAfter: 2500 * time.Millisecond})
}
func (empty) Exhausted(guard.Priority) bool { return false }
func (empty) Known() guard.BudgetState      { return guard.BudgetState{} }

// quarantined is a store that answers each acquire with a quarantine.
func quarantined(s cache.Store) cache.Store {
	t := tap.New(s)
	t.OnAcquire = func(requests []store.Request) []store.Answer {
		return slices.Repeat([]store.Answer{{Verdict: store.Quarantined, TTL: time.Minute}}, len(requests))
	}
	return t
}
