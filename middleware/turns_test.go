package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware"
)

// unserved returns a middleware and its handler, without a server.
func unserved(t *testing.T, o middleware.Options, h http.HandlerFunc) (*middleware.Middleware, http.Handler) {
	t.Helper()
	m, err := middleware.New(newStore(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m, m.Wrap(h)
}

func TestPurgedRunStillAnswersItsClient(t *testing.T) {
	for _, flush := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			n := number()
			m, h := unserved(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				if flush {
					_ = http.NewResponseController(w).Flush()
				}
				<-release
				n(w, r)
			})
			var first *httptest.ResponseRecorder
			var wg sync.WaitGroup
			wg.Go(func() { first = once(h) })
			synctest.Wait()
			if err := m.Purge(t.Context(), "http://site.example/"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			close(release)
			wg.Wait()
			if first.Code != 200 || first.Body.String() != "run 1" {
				t.Errorf("the client got %d %q", first.Code, first.Body)
			}
			if w := once(h); w.Body.String() != "run 2" {
				t.Errorf("after the purge: %q", w.Body)
			}
		})
	}
}

func TestClientOfAHungHandlerIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		_, h := unserved(t, middleware.Options{TTL: time.Minute, FetchTimeout: time.Second}, func(http.ResponseWriter, *http.Request) { <-release })
		start := time.Now()
		if w := once(h); w.Code != http.StatusGatewayTimeout || time.Since(start) > 2*time.Second {
			t.Errorf("%d after %v", w.Code, time.Since(start))
		}
	})
}

func TestCloseWaitsForNoHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		var runs atomic.Int32
		m, h := unserved(t, middleware.Options{TTL: time.Second, Stale: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) > 1 {
				<-release
			}
		})
		once(h)
		time.Sleep(2 * time.Second)
		once(h) // refreshes
		synctest.Wait()
		if runs.Load() != 2 {
			t.Fatalf("%d runs", runs.Load())
		}
		start := time.Now()
		if err := m.Close(); err != nil || time.Since(start) > time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestStalePageIsServedAfterSoftTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		o := middleware.Options{Policy: func(p *guard.Policy) { p.SoftTimeout = time.Second }}
		_, h := unserved(t, o, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10, stale-if-error=600")
			n := runs.Add(1)
			if n > 1 {
				time.Sleep(10 * time.Second)
			}
			fmt.Fprint(w, "run ", n)
		})
		once(h)
		time.Sleep(20 * time.Second)
		start := time.Now()
		if w := once(h); w.Body.String() != "run 1" || time.Since(start) != time.Second {
			t.Errorf("%q after %v; %v", w.Body, time.Since(start), w.Header())
		}
		time.Sleep(15 * time.Second)
		if w := once(h); w.Body.String() != "run 2" {
			t.Errorf("the run was not stored: %q", w.Body)
		}
		time.Sleep(time.Minute) // an early refresh may be under way
	})
}

func TestHandlerThatExitsItsGoroutineFailsItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, h := unserved(t, middleware.Options{TTL: time.Minute}, func(http.ResponseWriter, *http.Request) { runtime.Goexit() })
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				t.Errorf("recovered %v", p)
			}
		}()
		w := once(h)
		t.Errorf("answered %d", w.Code)
	})
}

func TestPanicOfAnOptionFailsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := middleware.Options{TTL: time.Minute, Tags: func(*http.Request, http.Header) []string { panic("boom") }}
		_, h := unserved(t, o, func(http.ResponseWriter, *http.Request) {})
		defer func() {
			if recover() == nil {
				t.Error("nothing was recovered")
			}
		}()
		once(h)
	})
}
