package middleware_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware"
)

// A dice decides at random. It may be used by several goroutines.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) below(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

func (d *dice) oneIn(n int) bool { return d.below(n) == 0 }

func pick[T any](d *dice, from ...T) T { return from[d.below(len(from))] }

// A flaky handler writes a long page slowly, and may break off. The page begins with its
// language and ends with the number of its run.
type flaky struct {
	*dice
	breaks, varies, tagged, declared bool
	says                             string
	size                             int
	runs                             atomic.Int32
}

func newFlaky(d *dice) *flaky {
	return &flaky{
		dice: d, breaks: d.oneIn(3), varies: d.oneIn(3), tagged: d.oneIn(3), declared: d.oneIn(2), size: pick(d, 10, 5<<10, 100<<10),
		says: pick(d, "max-age=2", "max-age=60", "max-age=1, stale-while-revalidate=3", "max-age=1, stale-if-error=5", "max-age=0, must-revalidate", "private"),
	}
}

// page is the page of a run in a language.
func (f *flaky) page(lang string, run int32) string {
	return fmt.Sprintf("%s,%09d,%s,%09d", lang, run, strings.Repeat("x", f.size), run)
}

func (f *flaky) serve(w http.ResponseWriter, r *http.Request) {
	h, run := w.Header(), f.runs.Add(1)
	h.Set("Cache-Control", f.says)
	h.Set("ETag", fmt.Sprintf(`"%d"`, run))
	lang := "--"
	if f.varies {
		h.Set("Vary", "Accept-Language")
		lang = r.Header.Get("Accept-Language")
	}
	if f.tagged {
		h.Set("Cache-Tag", "a")
	}
	page := f.page(lang, run)
	if f.declared {
		h.Set("Content-Length", fmt.Sprint(len(page)))
	}
	pause, flushes := time.Duration(f.below(500))*time.Millisecond, f.oneIn(2)
	time.Sleep(pause)
	for part := range (len(page) + 7<<10 - 1) / (7 << 10) {
		if f.breaks && f.oneIn(4) {
			panic(http.ErrAbortHandler)
		}
		if _, err := io.WriteString(w, page[part*7<<10:min((part+1)*7<<10, len(page))]); err != nil {
			return
		}
		if flushes {
			_ = http.NewResponseController(w).Flush()
		}
		time.Sleep(pause)
	}
}

// Each answer is whole and that of one run, whatever else goes on. The bubble finds requests
// that wait without end.
func TestAnswersAreWholeWhateverHappens(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &dice{rng: rand.New(rand.NewPCG(seed, 1))}
				f := newFlaky(d)
				var store cache.Store = newStore(t)
				if d.oneIn(2) {
					store = slowEnder{tap.New(store.(*cache.Memory))}
				}
				s := openInBubbleOn(t, store, middleware.Options{
					MaxBody: pick(d, 2<<10, 64<<10, 1<<20), FetchTimeout: pick(d, 3*time.Second, 30*time.Second),
					WaitTimeout: pick(d, 0, time.Second), OnWaitTimeout: pick(d, middleware.Unavailable, middleware.RunAlone),
					MakeETag: d.oneIn(2), Compress: d.oneIn(2), TagHeaders: []string{"Cache-Tag"}, Near: guard.Near{MaxEntries: pick(d, 0, 10)},
					Cookies: pick(d, nil, []string{"lang"}), Headers: pick(d, nil, []string{"X-K"}), KeepFor: pick[time.Duration](d, 0, guard.Off),
				}, f.serve)
				var wg sync.WaitGroup
				for range 40 {
					wg.Go(func() { f.ask(s) })
				}
				wg.Wait()
			})
		})
	}
}

// ask sends a request at some time, and a purge before it now and then.
func (f *flaky) ask(s *site) {
	time.Sleep(time.Duration(f.below(8000)) * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if f.oneIn(15) {
		if err := pick(f.dice, s.m.Purge, s.m.SoftPurge)(ctx, s.URL+"/"); err != nil {
			s.Error(err)
		}
		if err := s.m.PurgeTag(ctx, "a"); err != nil {
			s.Error(err)
		}
	}
	if f.oneIn(6) { // the client leaves
		time.AfterFunc(300*time.Millisecond, cancel)
	}
	lang := "--"
	if f.varies {
		lang = pick(f.dice, "de", "fr")
	}
	g := s.doCtx(ctx, pick(f.dice, "HEAD /", "/", "/", "/"), "Accept-Language: "+lang, pick(f.dice,
		"Range: bytes=0-1", "Cache-Control: no-cache", "Cache-Control: max-age=1", `If-None-Match: "1"`, "Cookie: lang=de; s=1", "X-K: a"))
	switch {
	case ctx.Err() != nil, g.err != nil && f.breaks:
	case g.err != nil:
		s.Error(g.err)
	case g.StatusCode == 503, g.StatusCode == 502 && f.breaks, g.StatusCode == 304, g.Request.Method == "HEAD" && g.StatusCode == 200:
	case g.StatusCode == 206 && g.body == lang:
	case g.StatusCode != 200:
		s.Errorf("%d %.50q; %s", g.StatusCode, g.body, g.status())
	default:
		var run int32
		if _, err := fmt.Sscanf(g.body, lang+",%d", &run); err != nil || g.body != f.page(lang, run) {
			s.Errorf("%d bytes, %.20q, %v; %s", len(g.body), g.body, err, g.status())
		}
	}
}
