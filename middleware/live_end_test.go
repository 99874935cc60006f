package middleware_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware"
)

// A slowEnder is a store in which the end of a turn takes a second.
type slowEnder struct{ *tap.Store }

// Unwrap implements [store.Holder].
func (s slowEnder) Unwrap() store.Store { return s }

// Return implements [store.Store].
func (s slowEnder) Return(ctx context.Context, back []store.Return) []store.Returned {
	time.Sleep(time.Second)
	return s.Store.Return(ctx, back)
}

// halves answers with the number of the run, and ends when release is closed, if it is the
// first run.
func halves(release <-chan struct{}) http.HandlerFunc {
	var runs atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		run := runs.Add(1)
		fmt.Fprintf(w, "run %d", run)
		_ = http.NewResponseController(w).Flush()
		if run == 1 {
			<-release
		}
	}
}

// A request with no-cache is not for a run from before it. If the run goes private, its turn
// takes a while to end, and the request must not look for its own run before that.
func TestNoCacheIsNotAnsweredByAnEarlierRun(t *testing.T) {
	for _, why := range []string{"too large", "too long"} {
		t.Run(why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				o := middleware.Options{MaxBody: 1 << 10, FetchTimeout: 5 * time.Second}
				s := openInBubbleOn(t, slowEnder{tap.New(newStore(t))}, o, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					fmt.Fprintf(w, "run %d,", runs.Add(1))
					_ = http.NewResponseController(w).Flush()
					if time.Sleep(time.Second); why == "too large" {
						_, _ = io.WriteString(w, strings.Repeat("x", 2<<10))
					}
					time.Sleep(10 * time.Second)
				})
				s.read("/")
				time.Sleep(time.Millisecond)
				if g := s.do("/", "Cache-Control: no-cache"); !strings.HasPrefix(g.body, "run 2,") {
					t.Errorf("%.6q; %s", g.body, g.status())
				}
			})
		})
	}
}

func TestCloseAnswersRequestsForAWholePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := openInBubble(t, middleware.Options{}, halves(release)) // it does not heed its context
		defer close(release)
		s.read("/")
		answer := make(chan got, 1)
		go func() { answer <- s.do("/", "Range: bytes=0-1") }()
		synctest.Wait()
		_ = s.m.Close()
		synctest.Wait()
		select {
		case g := <-answer:
			s.is(g, http.StatusServiceUnavailable, "*")
		default:
			t.Error("the request waits for the handler")
		}
	})
}

func TestPurgedPageIsFetchedOnceForRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := openInBubble(t, middleware.Options{}, halves(release))
		defer close(release)
		s.read("/")
		answers := make(chan got)
		for range 10 {
			go func() { answers <- s.do("/", "Range: bytes=0-4") }()
		}
		synctest.Wait()
		if err := s.m.Purge(t.Context(), s.URL+"/"); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if g := <-answers; g.err != nil || !strings.HasPrefix("run 2", g.body) {
				t.Errorf("%q, %v", g.body, g.err)
			}
		}
		s.ran(2)
	})
}

func TestWaitForAWholePageIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		o    middleware.Options
		says string // by the page that is stored before; empty: there is none
		want string
	}{
		"refused": {want: "503"},
		"alone":   {middleware.Options{OnWaitTimeout: middleware.RunAlone}, "", "200 run 2"},
		"stale":   {middleware.Options{}, ", stale-if-error=60", "206 s"},
		"soft": {
			middleware.Options{WaitTimeout: time.Minute, Policy: func(p *guard.Policy) { p.SoftTimeout = time.Second }},
			", stale-if-error=60", "206 s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				run := halves(release)
				c.o.WaitTimeout = cmp.Or(c.o.WaitTimeout, time.Second)
				stale := c.says != ""
				s := openInBubble(t, c.o, func(w http.ResponseWriter, r *http.Request) {
					if stale {
						stale = false
						saying(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "stale") }, "Cache-Control: max-age=1"+c.says)(w, r)
						return
					}
					run(w, r)
				})
				defer close(release)
				if stale {
					s.do("/")
					time.Sleep(2 * time.Second)
				}
				s.read("/")
				start := time.Now()
				g := s.do("/", "Range: bytes=0-0")
				if got := fmt.Sprint(g.StatusCode, " ", g.body); !strings.HasPrefix(got, c.want) || time.Since(start) != time.Second {
					t.Errorf("%s after %v; %s", got, time.Since(start), g.status())
				}
			})
		})
	}
}

// A body may take longer than the lifetime of its page.
func TestBodyIsSharedWithinItsLifetime(t *testing.T) {
	for name, c := range map[string]struct{ page, request string }{
		"the page's":    {"max-age=2", ""},
		"the request's": {"max-age=60", "max-age=2"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				var runs atomic.Int32
				s := openInBubble(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", c.page)
					w.Header().Set("ETag", `"a"`)
					fmt.Fprintf(w, "run %d", runs.Add(1))
					_ = http.NewResponseController(w).Flush()
					<-release
				})
				answers := make(chan string)
				ask := func() { answers <- s.do("/", "Cache-Control: "+c.request).body }
				s.read("/")
				time.Sleep(time.Second)
				young := s.read("/", "Cache-Control: "+c.request)
				if got := young.next(5); got != "run 1" {
					t.Errorf("within the lifetime: %s", got)
				}
				time.Sleep(2 * time.Second)
				for range 3 {
					go ask()
				}
				synctest.Wait()
				close(release)
				for range 3 {
					if got := <-answers; got == "run 1" {
						t.Errorf("after the lifetime: %s", got)
					}
				}
			})
		})
	}
}

// The client of a run that wants a range waits for the whole page. A purge before the header
// makes the run private, and its handler then waits for its readers.
func TestPurgedRunAnswersARange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		body := strings.Repeat("x", 1<<20)
		s := openInBubble(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			<-release
			_, _ = io.WriteString(w, body)
		})
		answer := make(chan got)
		go func() { answer <- s.do("/", "Range: bytes=0-1") }()
		synctest.Wait()
		if err := s.m.Purge(t.Context(), s.URL+"/"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(release)
		select {
		case g := <-answer:
			s.is(g, 200, body)
		case <-time.After(time.Minute):
			t.Error("no answer")
			s.CloseClientConnections()
		}
	})
}
