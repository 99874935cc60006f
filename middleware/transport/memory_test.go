package transport_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"testing"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// thrifty returns a transport with a small reserve, on a Redis that evicts entries.
func thrifty(t *testing.T, reserve int, answer func(r *http.Request) *http.Response) *transport.Transport {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{Args: []string{"--maxmemory", "32mb", "--maxmemory-policy", "allkeys-lru"}})
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return newTransport(t, s, func(o *transport.Options) {
		o.Reserve = guard.Reserve{MaxBytes: reserve}
		o.Base = roundTripper(func(r *http.Request) (*http.Response, error) { return answer(r), nil })
	})
}

// fetch reads a response to its end, and keeps none of it.
func fetch(t *testing.T, rt http.RoundTripper, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
}

// The bounds hold for 4,096 responses, and for fewer in a short run: these are many times the
// bounds, too.
func TestManyLargeResponsesTakeLittleMemory(t *testing.T) {
	const size, reserve, mostAfter, mostDuring = 1 << 20, 4 << 20, 8 << 20, 32 << 20
	urls := 96
	if os.Getenv("STAMPEDE_BOUNDS") == "1" {
		urls = 4096
	}
	body, calls, peak := bytes.Repeat([]byte("x"), size), 0, uint64(0)
	tr := thrifty(t, reserve, func(r *http.Request) *http.Response {
		if calls++; calls%32 == 0 {
			peak = max(peak, heap())
		}
		return &http.Response{
			StatusCode: 200, Header: http.Header{"Cache-Control": {"max-age=3600"}}, ContentLength: size,
			Body: io.NopCloser(bytes.NewReader(body)), Request: r,
		}
	})
	before := heap()
	for i := range urls {
		fetch(t, tr, fmt.Sprint("http://vendor.test/", i))
	}
	waitStored(t, tr, fmt.Sprint("http://vendor.test/", urls-1))
	after, during := int64(heap())-int64(before), int64(peak)-int64(before)
	t.Logf("%d responses of %d KiB add %d KiB to the heap, and up to %d KiB meanwhile", urls, size>>10, after>>10, during>>10)
	if after > mostAfter || during > mostDuring || calls < urls {
		t.Errorf("%d calls, want at least %d; the heap grows by %d bytes, want at most %d, and by up to %d meanwhile, want at most %d",
			calls, urls, after, mostAfter, during, mostDuring)
	}
}

// Redis evicts the entries. The process remembers a bounded number of URLs.
func TestUniqueURLsTakeLittleMemory(t *testing.T) {
	urls, most := 1024, int64(3<<20)
	if os.Getenv("STAMPEDE_BOUNDS") == "1" {
		urls, most = 1<<17, 8<<20
	}
	tr := thrifty(t, 1<<20, func(r *http.Request) *http.Response {
		return &http.Response{
			StatusCode: 200, Header: http.Header{"Cache-Control": {"max-age=3600"}}, ContentLength: 0, Body: http.NoBody, Request: r,
		}
	})
	before := heap()
	for i := range urls {
		fetch(t, tr, fmt.Sprint("http://vendor.test/x?", i))
	}
	added := int64(heap()) - int64(before)
	t.Logf("%d URLs add %d KiB to the heap", urls, added>>10)
	if added > most {
		t.Errorf("%d URLs add %d bytes to the heap, want at most %d", urls, added, most)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
