package middleware_test

import (
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// The lifetime of a response that the handler makes counts from the time of its header. A
// handler may take longer than that lifetime: its response is still shared with the waiters,
// and is then fresh for its whole lifetime.
func TestHandlerSlowerThanItsLifetimeIsShared(t *testing.T) {
	for name, c := range map[string]struct {
		o    middleware.Options
		says http.Header
	}{
		"TTL of the options": {middleware.Options{TTL: time.Second}, nil},
		"max-age":            {middleware.Options{}, http.Header{"Cache-Control": {"max-age=1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				h := wrap(t, newStore(t), c.o, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					runs.Add(1)
					maps.Copy(w.Header(), c.says)
					time.Sleep(3 * time.Second)
				}))
				atOnce(10, func() { once(h) })
				time.Sleep(time.Second/2 - time.Millisecond) // from then on it may be due early
				if once(h); runs.Load() != 1 {
					t.Errorf("%d runs for requests within its lifetime, want 1", runs.Load())
				}
				time.Sleep(time.Second/2 + time.Millisecond)
				if once(h); runs.Load() != 2 {
					t.Errorf("%d runs after it, want 2", runs.Load())
				}
			})
		})
	}
}

// A response from another server, through a proxy's handler, has aged on its way.
func TestResponseFromElsewhereAgesWhileItIsFetched(t *testing.T) {
	for _, field := range []string{"Date", "Age"} {
		t.Run(field, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				h := wrap(t, newStore(t), middleware.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					runs.Add(1)
					w.Header().Set("Cache-Control", "max-age=2")
					time.Sleep(3 * time.Second)
					w.Header().Set(field, map[string]string{"Date": time.Now().UTC().Format(http.TimeFormat), "Age": "0"}[field])
				}))
				once(h)
				synctest.Wait()
				if once(h); runs.Load() != 2 {
					t.Errorf("%d runs, want 2", runs.Load())
				}
			})
		})
	}
}

// atOnce calls f n times, and returns when all that follows from it is done.
func atOnce(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
	synctest.Wait()
}
