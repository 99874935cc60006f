// Command http measures the middleware beside other HTTP caches for net/http handlers, in one
// run, and writes a table in Markdown:
//
//	go run . [-rounds 11]
//
// It starts its own redis-server, which must be installed. There is no network between clients
// and handlers. The systems take turns in each round, and a figure is the median of the rounds.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

const (
	herd = 100 // requests for a cold page at once
	slow = 50 * time.Millisecond
)

// pages are the sizes of the pages of the hits.
var pages = []int{1 << 10, 64 << 10}

func main() {
	rounds := flag.Int("rounds", 11, "rounds")
	flag.Parse()
	if err := run(*rounds); err != nil {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

// A contender is a system with its figures.
type contender struct {
	system
	h       http.Handler
	fetches atomic.Int64
	hits    map[int][]hit // by size
	herds   []stampede
}

type hit struct{ nanos, allocs, bytes float64 }

type stampede struct {
	fetches int64
	took    time.Duration // until the last of the herd has its page
}

func run(rounds int) error {
	server, err := redistest.StartStandalone(context.Background(), redistest.StandaloneConfig{})
	if err != nil {
		return err
	}
	defer server.Stop()
	var all []*contender
	for _, s := range systems {
		c := &contender{system: s, hits: map[int][]hit{}}
		h, stop, err := s.wrap(server.Addr(), http.HandlerFunc(c.origin))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if stop != nil {
			defer stop()
		}
		c.h = h
		all = append(all, c)
	}
	for round := range rounds + 1 {
		for _, c := range all {
			if err := c.round(round); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	report(all, rounds)
	return nil
}

var bodies = map[int][]byte{}

func init() {
	for _, size := range pages {
		bodies[size] = []byte(strings.Repeat("0123456789abcdef", size/16))
	}
}

// origin makes a page of the size in the path, at once or, below /slow, after some time.
func (c *contender) origin(w http.ResponseWriter, r *http.Request) {
	c.fetches.Add(1)
	size := pages[0]
	if strings.HasPrefix(r.URL.Path, "/slow") {
		time.Sleep(slow)
	} else if _, err := fmt.Sscanf(r.URL.Path, "/%d", &size); err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Cache-Control", "max-age=3600")
	_, _ = w.Write(bodies[size])
}

// round measures the system once. The round 0 warms it up.
func (c *contender) round(round int) error {
	for _, size := range pages {
		h, err := c.hit(size)
		if err != nil {
			return err
		}
		if round > 0 {
			c.hits[size] = append(c.hits[size], h)
		}
	}
	s, err := c.stampede(fmt.Sprint("/slow/", round))
	if err != nil {
		return err
	}
	if round > 0 {
		c.herds = append(c.herds, s)
	}
	return nil
}

// ask sends one request with a context that ends, as that of net/http's server does.
func (c *contender) ask(r *http.Request, w *discard) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.h, w.n = http.Header{}, 0
	c.h.ServeHTTP(w, r.WithContext(ctx))
}

// hit measures hits of a page, one after another.
func (c *contender) hit(size int) (hit, error) {
	const n = 500
	r, w := httptest.NewRequest("GET", fmt.Sprint("/", size), nil), &discard{}
	for range 3 {
		c.ask(r, w)
		time.Sleep(20 * time.Millisecond) // the page is stored a moment after its response
	}
	fetches := c.fetches.Load()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	for range n {
		if c.ask(r, w); w.n != size {
			return hit{}, fmt.Errorf("a page of %d bytes has %d", size, w.n)
		}
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if made := c.fetches.Load() - fetches; made != 0 && c.name != systems[0].name {
		return hit{}, fmt.Errorf("%d hits made %d fetches", n, made)
	}
	return hit{
		float64(took.Nanoseconds()) / n, float64(after.Mallocs-before.Mallocs) / n, float64(after.TotalAlloc-before.TotalAlloc) / n,
	}, nil
}

// stampede measures a herd that asks for a cold page at once.
func (c *contender) stampede(path string) (stampede, error) {
	fetches := c.fetches.Load()
	var wg sync.WaitGroup
	var wrong atomic.Int64
	gate := make(chan struct{})
	for range herd {
		wg.Go(func() {
			r, w := httptest.NewRequest("GET", path, nil), &discard{}
			<-gate
			if c.ask(r, w); w.n != pages[0] {
				wrong.Add(1)
			}
		})
	}
	start := time.Now()
	close(gate)
	wg.Wait()
	took := time.Since(start)
	if n := wrong.Load(); n > 0 {
		fmt.Fprintf(os.Stderr, "%s: %d of %d requests got a wrong page\n", c.name, n, herd)
	}
	return stampede{c.fetches.Load() - fetches, took}, nil
}

// A discard is a ResponseWriter that counts the bytes of the body.
type discard struct {
	h http.Header
	n int
}

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(p []byte) (int, error) { d.n += len(p); return len(p), nil }
func (d *discard) WriteHeader(int)             {}

// median is that of a figure of some measurements.
func median[T any](all []T, of func(T) float64) float64 {
	figures := make([]float64, len(all))
	for i, one := range all {
		figures[i] = of(one)
	}
	slices.Sort(figures)
	return figures[len(figures)/2]
}

func report(all []*contender, rounds int) {
	fmt.Printf("Medians of %d rounds, %s, %d processors.\n\n", rounds, runtime.Version(), runtime.GOMAXPROCS(0))
	fmt.Print("| system | hit, 1 KiB | times the bare handler | allocations | hit, 64 KiB | times the bare handler | allocations |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, c := range all {
		fmt.Printf("| %s |", c.name)
		for _, size := range pages {
			nanos := func(h hit) float64 { return h.nanos }
			is, bare := median(c.hits[size], nanos), median(all[0].hits[size], nanos)
			allocs := median(c.hits[size], func(h hit) float64 { return h.allocs })
			fmt.Printf(" %.1f µs | %.1f | %.0f, %.1f KiB |", is/1000, is/bare, allocs, median(c.hits[size], func(h hit) float64 { return h.bytes })/1024)
		}
		fmt.Println()
	}
	fmt.Printf("\n| system | fetches for %d requests at once of a cold page | until the last has its page, after a fetch of %v |\n|---|--:|--:|\n", herd, slow)
	for _, c := range all {
		fetches, worst := median(c.herds, func(s stampede) float64 { return float64(s.fetches) }), int64(0)
		for _, s := range c.herds {
			worst = max(worst, s.fetches)
		}
		took := median(c.herds, func(s stampede) float64 { return float64(s.took.Microseconds()) / 1000 })
		fmt.Printf("| %s | %.0f; at most %d | %.1f ms |\n", c.name, fetches, worst, took)
	}
}
