package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// file serves ranges of a content, and may be stored.
func file(content string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		w.Header().Set("Cache-Control", "public, max-age=60")
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
	}
}

// One run makes the page for a herd of different ranges.
func TestOneRunAnswersAllRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ranged atomic.Int32
		f := newFront(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				ranged.Add(1)
			}
			time.Sleep(time.Second)
			file("0123456789")(w, r)
		})
		for range 2 {
			answers := make(chan *httptest.ResponseRecorder, 3)
			for _, r := range []string{"bytes=0-3", "bytes=4-", "bytes=-1"} {
				go func() { answers <- f.send(t.Context(), "/", "Range: "+r) }()
			}
			for range 3 {
				if w := <-answers; w.Code != 206 || !strings.Contains("0123 456789 9", w.Body.String()) {
					t.Errorf("%d %q", w.Code, w.Body)
				}
			}
		}
		if f.runs.Load() != 1 || ranged.Load() != 0 {
			t.Errorf("%d runs, %d of them with a Range", f.runs.Load(), ranged.Load())
		}
	})
}

// The first request for a range of a long page does not get all of it.
func TestRangeOfALongPageIsTheHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{MaxBody: 1 << 10}, file(strings.Repeat("0123456789", 1<<10)))
		for n, runs := range []int32{2, 3} { // the first one's run without a Range learns the length
			w := f.ask("/", "Range: bytes=2-4")
			f.is(w, 206, "234")
			if got := w.Header().Get("Content-Range"); got != "bytes 2-4/10240" || f.runs.Load() != runs {
				t.Errorf("request %d: %s after %d runs", n, got, f.runs.Load())
			}
		}
		if w := f.ask("/?other"); w.Code != 200 || w.Body.Len() != 10<<10 || f.runs.Load() != 4 {
			t.Errorf("%d, %d bytes after %d runs", w.Code, w.Body.Len(), f.runs.Load())
		}
	})
}

// A transport beneath a reverse proxy stores the parts of pages that the middleware does not keep.
func TestTransportBeneathAProxyStoresParts(t *testing.T) {
	var calls atomic.Int32
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		file(strings.Repeat("0123456789", 1<<10))(w, r)
	}))
	t.Cleanup(upstream.Close)
	store := newStore(t)
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	rt, err := transport.New(store, transport.Options{Base: base, Shared: true, HostPolicy: transport.HostPolicy{MaxBody: 1 << 12}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rt.Close() })
	target, _ := url.Parse(upstream.URL)
	proxy := &httputil.ReverseProxy{Transport: rt, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	s := openOn(t, store, middleware.Options{MaxBody: 1 << 12}, proxy.ServeHTTP)
	s.is(s.do("/", "Range: bytes=0-1999"), 206, strings.Repeat("0123456789", 200))
	before := calls.Load()
	for _, r := range []string{"bytes=0-3", "bytes=10-13"} {
		s.is(s.do("/", "Range: "+r), 206, "0123")
	}
	if n := calls.Load(); n != before {
		t.Errorf("%d more calls of the upstream", n-before)
	}
}
