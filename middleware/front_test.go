package middleware_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware"
)

// A front is a middleware that a test calls without a server, in a bubble.
type front struct {
	*testing.T
	m    *middleware.Middleware
	h    http.Handler
	runs atomic.Int32

	mu       sync.Mutex
	now, max int // runs at the same time
}

func newFront(t *testing.T, o middleware.Options, h http.HandlerFunc) *front {
	t.Helper()
	return newFrontOn(t, newStore(t), o, h)
}

func newFrontOn(t *testing.T, store cache.Store, o middleware.Options, h http.HandlerFunc) *front {
	t.Helper()
	f := &front{T: t}
	if o.Policy == nil {
		o.Policy = func(p *guard.Policy) { p.Beta = guard.Off } // refreshes at random would be runs at random
	}
	var err error
	if f.m, err = middleware.New(store, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.m.Close(); time.Sleep(time.Minute) }) // handlers return
	f.h = f.m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.runs.Add(1)
		f.count(1)
		defer f.count(-1)
		h(w, r)
	}))
	return f
}

func (f *front) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now += n
	f.max = max(f.max, f.now)
}

// request makes a request of "METHOD /path" or "/path", and headers "Name: value".
func request(what string, headers ...string) *http.Request {
	method, path, ok := strings.Cut(what, " ")
	if !ok {
		method, path = "GET", what
	}
	r := httptest.NewRequest(method, "http://site.example"+path, nil)
	r.RequestURI, r.URL.Scheme, r.URL.Host = path, "", ""
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	return r
}

// ask sends a request and waits until all that it set off is over.
func (f *front) ask(what string, headers ...string) *httptest.ResponseRecorder {
	w := f.send(context.Background(), what, headers...)
	synctest.Wait()
	return w
}

func (f *front) send(ctx context.Context, what string, headers ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	f.h.ServeHTTP(w, request(what, headers...).WithContext(ctx))
	return w
}

// overTLS is ask over a connection that named a server.
func (f *front) overTLS(serverName, what string, headers ...string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), request(what, headers...)
	r.TLS = &tls.ConnectionState{ServerName: serverName}
	f.h.ServeHTTP(w, r)
	synctest.Wait()
	return w
}

// herd sends n requests at once and returns how many had each answer.
func (f *front) herd(n int, what string, headers ...string) map[string]int {
	answers := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			w := f.send(context.Background(), what, headers...)
			mu.Lock()
			defer mu.Unlock()
			answers[fmt.Sprintf("%d %s", w.Code, w.Body)]++
		})
	}
	wg.Wait()
	synctest.Wait()
	return answers
}

// since returns the number of runs since a number.
func (f *front) since(before int32) int { return int(f.runs.Load() - before) }

// is fails the test unless the response has the status and the body.
func (f *front) is(w *httptest.ResponseRecorder, status int, body string) {
	f.Helper()
	if w.Code != status || w.Body.String() != body {
		f.Errorf("%d %q, want %d %q; %s", w.Code, w.Body, status, body, w.Header().Get("Cache-Status"))
	}
}

// all fails the test unless n answers were the same.
func (f *front) all(answers map[string]int, n int, answer string) {
	f.Helper()
	if answers[answer] != n || len(answers) != 1 {
		f.Errorf("%v, want %d times %q", answers, n, answer)
	}
}
