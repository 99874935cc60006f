package middleware_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware"
)

// The benchmarks measure requests over loopback, each beside the way it is compared
// with in the same run:
//
//	go test ./middleware -run '^$' -bench . -benchtime 3s

const hotClients = 64

// load lets hotClients ask the handler for a while, and returns requests per
// second and the 99th percentile.
func load(b *testing.B, h http.Handler, n int) (rate float64, p99 time.Duration) {
	b.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: hotClients, DisableCompression: true}}
	defer client.CloseIdleConnections()
	ask := func() {
		resp, err := client.Get(s.URL + "/page")
		if err != nil {
			b.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	times := make([][]time.Duration, hotClients)
	round := func(each int, keep bool) time.Duration {
		var wg sync.WaitGroup
		start := time.Now()
		for i := range hotClients {
			wg.Go(func() {
				for range each {
					began := time.Now()
					ask()
					if keep {
						times[i] = append(times[i], time.Since(began))
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	round(2, false) // connections
	each := max(1, n/hotClients)
	took := round(each, true)
	all := slices.Concat(times...)
	slices.Sort(all)
	return float64(each*hotClients) / took.Seconds(), all[len(all)*99/100]
}

// beside measures handlers in turn, several rounds each, and returns medians.
func beside(b *testing.B, hs ...http.Handler) (rates []float64, p99s []time.Duration) {
	const rounds = 5
	r, p := make([][]float64, len(hs)), make([][]time.Duration, len(hs))
	for range rounds {
		for i, h := range hs {
			rate, p99 := load(b, h, max(b.N, 64)/rounds)
			r[i], p[i] = append(r[i], rate), append(p[i], p99)
		}
	}
	for i := range hs {
		slices.Sort(r[i])
		slices.Sort(p[i])
		rates, p99s = append(rates, r[i][rounds/2]), append(p99s, p[i][rounds/2])
	}
	return rates, p99s
}

func guarded(b *testing.B, addr, name string, near int, h http.Handler) http.Handler {
	o := middleware.Options{Name: name, Host: "site.example", TTL: time.Hour}
	if near > 0 {
		o.Near = guard.Near{MaxEntries: near}
	}
	m, err := middleware.New(redisStore(b, addr), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = m.Close() })
	return m.Wrap(h)
}

// BenchmarkHotPage: a page of 4 KiB from the near cache, against a bare handler
// that writes the same from memory.
func BenchmarkHotPage(b *testing.B) {
	server := redistest.RunStandalone(b, redistest.StandaloneConfig{})
	bare := writes(hotPage)
	b.ResetTimer()
	rates, _ := beside(b, bare, guarded(b, server.Addr(), "near", 100, bare))
	b.ReportMetric(rates[0], "bare/s")
	b.ReportMetric(rates[1], "near/s")
	b.ReportMetric(rates[1]/rates[0], "near/bare")
}

var hotPage = bytes.Repeat([]byte("0123456789abcdef"), 256)

func writes(page []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(page)
	})
}

// BenchmarkHotPageFromRedis: the same without a near cache, for 512 requests at
// once, against a handler that reads Redis for each of them. There is no HTTP in
// between, which would cost both more than the difference.
func BenchmarkHotPageFromRedis(b *testing.B) {
	const callers, rounds = 512, 5
	server := redistest.RunStandalone(b, redistest.StandaloneConfig{})
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	client.Set(b.Context(), "page", hotPage, 0)
	each := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := client.Get(r.Context(), "page").Bytes()
		if err != nil {
			b.Error(err)
		}
		_, _ = w.Write(p)
	})
	shared := guarded(b, server.Addr(), "redis", 0, writes(hotPage))
	rate := func(h http.Handler, n int) float64 {
		var wg sync.WaitGroup
		start := time.Now()
		for range callers {
			wg.Go(func() {
				r := httptest.NewRequest("GET", "/page", nil)
				for range n {
					h.ServeHTTP(&discard{h: http.Header{}}, r)
				}
			})
		}
		wg.Wait()
		return float64(callers*n) / time.Since(start).Seconds()
	}
	rate(each, 2)
	rate(shared, 2)
	b.ResetTimer()
	var of [2][]float64
	for range rounds {
		for i, h := range []http.Handler{each, shared} {
			of[i] = append(of[i], rate(h, max(1, b.N/callers/rounds)))
		}
	}
	for i := range of {
		slices.Sort(of[i])
	}
	b.ReportMetric(of[0][rounds/2], "get-each/s")
	b.ReportMetric(of[1][rounds/2], "middleware/s")
	b.ReportMetric(of[1][rounds/2]/of[0][rounds/2], "ratio")
}

// BenchmarkPrivatePage: a private page of 20 ms, against the bare handler: requests
// for it must not queue.
func BenchmarkPrivatePage(b *testing.B) {
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(20 * time.Millisecond)
		w.Header().Set("Cache-Control", "private")
		_, _ = io.WriteString(w, "page")
	})
	server := redistest.RunStandalone(b, redistest.StandaloneConfig{})
	b.ResetTimer()
	_, p99 := beside(b, bare, guarded(b, server.Addr(), "private", 0, bare))
	b.ReportMetric(float64(p99[0].Microseconds()), "bare-p99-µs")
	b.ReportMetric(float64(p99[1].Microseconds()), "private-p99-µs")
	b.ReportMetric(float64(p99[1])/float64(p99[0]), "p99-ratio")
}

// BenchmarkHotPageInProcess is a near hit without HTTP around it, beside the bare handler. The
// difference is the middleware's own share.
func BenchmarkHotPageInProcess(b *testing.B) {
	server := redistest.RunStandalone(b, redistest.StandaloneConfig{})
	bare := writes(hotPage)
	for _, c := range []struct {
		name string
		h    http.Handler
	}{{"bare", bare}, {"near", guarded(b, server.Addr(), "near", 100, bare)}} {
		b.Run(c.name, func(b *testing.B) {
			r := httptest.NewRequest("GET", "/page", nil)
			c.h.ServeHTTP(httptest.NewRecorder(), r)
			b.ReportAllocs()
			for b.Loop() {
				c.h.ServeHTTP(&discard{h: http.Header{}}, r)
			}
		})
	}
}

type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
