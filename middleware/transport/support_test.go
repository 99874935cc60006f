package transport_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// A vendor is an upstream that counts.
type vendor struct {
	*httptest.Server
	calls atomic.Int64
	mu    sync.Mutex
	seen  []*http.Request
}

func newVendor(t testing.TB, handle http.HandlerFunc) *vendor {
	v := &vendor{}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.calls.Add(1)
		v.mu.Lock()
		v.seen = append(v.seen, r.Clone(context.Background()))
		v.mu.Unlock()
		handle(w, r)
	}))
	t.Cleanup(v.Close)
	return v
}

func (v *vendor) wantCalls(t testing.TB, want int64) {
	t.Helper()
	if got := v.calls.Load(); got != want {
		t.Errorf("the vendor was called %d times, want %d", got, want)
	}
}

func (v *vendor) last() *http.Request {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen[len(v.seen)-1]
}

// openFleet opens a store for each process of a fleet.
type openFleet func() cache.Store

// inFleets runs a test on the memory store and on a real Redis.
func inFleets(t *testing.T, test func(t *testing.T, open openFleet)) {
	t.Run("memory", func(t *testing.T) { test(t, memoryFleet(t)) })
	t.Run("redis", func(t *testing.T) {
		open, _ := redisFleet(t)
		test(t, open)
	})
}

func memoryFleet(t testing.TB) openFleet {
	first, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Close() })
	return func() cache.Store {
		s := first.Join()
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}

func redisFleet(t testing.TB) (openFleet, *redistest.Server) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	return func() cache.Store {
		rdb := server.Client()
		s, err := cache.NewRedis(rdb, cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}, server
}

// newTransport is of one process.
func newTransport(t testing.TB, s cache.Store, change ...func(*transport.Options)) *transport.Transport {
	t.Helper()
	base := &http.Transport{MaxIdleConnsPerHost: 64}
	o := transport.Options{Base: base}
	for _, c := range change {
		c(&o)
	}
	tr, err := transport.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tr.Close()
		tr.CloseIdleConnections()
	})
	return tr
}

// An answered is a response that was read to its end.
type answered struct {
	*http.Response
	body string
	err  error // of reading
}

func (a answered) cacheStatus() string { return strings.Join(a.Header["Cache-Status"], ", ") }

func ask(t testing.TB, rt http.RoundTripper, url string, header ...string) answered {
	t.Helper()
	return askWith(t, rt, http.MethodGet, url, header...)
}

func askWith(t testing.TB, rt http.RoundTripper, method, url string, header ...string) answered {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	before := req.Header.Clone()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
		return answered{Response: &http.Response{Header: http.Header{}}, err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if len(req.Header) != len(before) {
		t.Errorf("the request's header was changed from %v to %v", before, req.Header)
	}
	return answered{resp, string(body), err}
}

// askStored makes a request, for one URL after the other, until its response is stored. A
// transport that gets a turn too late stores nothing: a busy machine is no fault. It returns the
// URL, and resets the vendor's calls to one.
func askStored(t testing.TB, rt http.RoundTripper, v *vendor, method string, header ...string) (url string, first answered) {
	t.Helper()
	for n := range 100 {
		url := fmt.Sprint(v.URL, "/form?", n)
		if got := askWith(t, rt, method, url, header...); strings.Contains(got.cacheStatus(), "stored") {
			v.calls.Store(1)
			return url, got
		}
	}
	t.Fatal("no response was stored")
	return "", answered{}
}

func purge(t testing.TB, tr *transport.Transport, url string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err == nil {
		err = tr.Purge(req)
	}
	if err != nil {
		t.Error(err)
	}
}

func wantAnswer(t testing.TB, a answered, status int, body string) {
	t.Helper()
	if a.StatusCode != status || a.body != body || a.err != nil {
		t.Errorf("got %d %q (%v), want %d %q; Cache-Status: %s", a.StatusCode, a.body, a.err, status, body, a.cacheStatus())
	}
}

func wantCacheStatus(t testing.TB, a answered, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(a.cacheStatus(), p) {
			t.Errorf("Cache-Status is %q, want it to have %q", a.cacheStatus(), p)
		}
	}
}

// failing makes a request that gets no answer, and returns why.
func failing(t testing.TB, rt http.RoundTripper, method, url string) error {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Body = io.NopCloser(strings.NewReader("x"))
	}
	resp, err := rt.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err
}
