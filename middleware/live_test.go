package middleware_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// A reading is a GET. Its body is read as it comes.
type reading struct {
	*http.Response
	body  *bufio.Reader
	leave context.CancelFunc
}

// read sends a GET and returns with the response's header.
func (s *site) read(path string, headers ...string) *reading {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "GET", s.URL+path, nil)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { cancel(); resp.Body.Close() })
	return &reading{resp, bufio.NewReader(resp.Body), cancel}
}

// next returns the next n bytes.
func (r *reading) next(n int) string {
	b := make([]byte, n)
	n, err := io.ReadFull(r.body, b)
	if err != nil {
		return fmt.Sprintf("%q, %v", b[:n], err)
	}
	return string(b)
}

// rest returns the body to its end.
func (r *reading) rest() string {
	b, err := io.ReadAll(r.body)
	if err != nil {
		return fmt.Sprintf("%q, %v", b, err)
	}
	return string(b)
}

// A pen writes the body of a slow handler, part by part.
type pen struct {
	parts   chan string // "": flush; closed: the body ends
	began   chan struct{}
	headers []string
}

func newPen(headers ...string) *pen {
	return &pen{parts: make(chan string), began: make(chan struct{}, 100), headers: headers}
}

func (p *pen) serve(w http.ResponseWriter, r *http.Request) {
	saying(func(w http.ResponseWriter, r *http.Request) {
		p.began <- struct{}{}
		for part := range p.parts {
			if part == "panic" {
				panic(http.ErrAbortHandler)
			}
			if _, err := io.WriteString(w, part); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	}, p.headers...)(w, r)
}

func TestWaitersReadABodyAsItGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPen("Cache-Control: max-age=60")
		s := openInBubble(t, middleware.Options{}, p.serve)
		go func() { p.parts <- "first," }()
		leader := s.read("/")
		if got := leader.next(6); got != "first," {
			t.Fatal(got)
		}
		time.Sleep(10 * time.Second) // a late waiter
		start := time.Now()
		early, late := s.read("/"), s.read("/")
		for _, waiter := range []*reading{early, late} {
			if got := waiter.next(6); got != "first," || time.Since(start) > 50*time.Millisecond {
				t.Errorf("%q after %v", got, time.Since(start))
			}
			if got := waiter.Header.Get("Age"); got != "10" {
				t.Errorf("Age %q, want 10", got)
			}
			if got := waiter.Header.Get("Cache-Status"); got != "http;fwd=uri-miss;stored;collapsed;ttl=50" {
				t.Errorf("Cache-Status %q", got)
			}
		}
		leader.leave() // holds up no waiter, and so does one that leaves
		early.leave()
		synctest.Wait()
		p.parts <- "second."
		close(p.parts)
		if got := late.rest(); got != "second." {
			t.Errorf("the waiter's rest is %q", got)
		}
		s.is(s.do("/"), 200, "first,second.")
		s.ran(1)
	})
}

func TestWaitersReadTheSuccessorOfAStalePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPen("Cache-Control: max-age=60, stale-if-error=60")
		s := openInBubble(t, middleware.Options{}, p.serve)
		go func() { p.parts <- "old"; close(p.parts) }()
		s.do("/")
		time.Sleep(61 * time.Second) // the page is kept for errors
		p.parts = make(chan string)
		go func() { p.parts <- "new," }()
		leader := s.read("/")
		time.Sleep(time.Second)
		waiter := s.read("/")
		for _, r := range []*reading{leader, waiter} {
			if got := r.next(4); got != "new," {
				t.Error(got)
			}
		}
		close(p.parts)
		s.ran(2)
	})
}

func TestSlowReadersHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPen("Cache-Control: max-age=60")
		s := openInBubble(t, middleware.Options{MaxBody: 1 << 20}, p.serve)
		go func() { p.parts <- "x" }()
		leader, slow := s.read("/"), s.read("/") // neither reads on
		fast := s.read("/")
		got := make(chan int)
		go func() { got <- len(fast.rest()) }()
		for range 16 {
			p.parts <- strings.Repeat("x", 60<<10)
		}
		close(p.parts)
		const whole = 1 + 16*60<<10
		if n := <-got; n != whole {
			t.Errorf("the fast waiter got %d bytes, want %d", n, whole)
		}
		if n, m := len(leader.rest()), len(slow.rest()); n != whole || m != whole {
			t.Errorf("the slow leader got %d bytes, the slow waiter %d, want %d", n, m, whole)
		}
		s.ran(1)
	})
}

func TestBodyTooLargeToKeepReachesItsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPen("Cache-Control: max-age=60")
		s := openInBubble(t, middleware.Options{MaxBody: 64 << 10}, p.serve)
		began := time.Now()
		go func() { p.parts <- "x" }()
		leader, fast, slow := s.read("/"), s.read("/"), s.read("/")
		got := make(chan int)
		go func() { got <- len(fast.rest()) }()
		leader.leave() // the run goes on for the waiters
		synctest.Wait()
		for range 100 {
			p.parts <- strings.Repeat("x", 32<<10)
		}
		close(p.parts)
		if n, took := <-got, time.Since(began); n != 1+100*32<<10 || took > 3*time.Second {
			t.Errorf("the fast waiter got %d bytes in %v", n, took)
		}
		if b, err := io.ReadAll(slow.body); err == nil || len(b) > 1<<20 {
			t.Errorf("a waiter that read nothing got %d bytes, %v; want a broken transfer", len(b), err)
		}
		synctest.Wait()
		p.parts = make(chan string)
		close(p.parts)
		s.is(s.do("/"), 200, "") // nothing was stored
		s.ran(2)
	})
}

func TestRunEndsWithItsLastReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		s := openInBubble(t, middleware.Options{MaxBody: 1 << 10, TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			for {
				_, err := io.WriteString(w, strings.Repeat("x", 1<<10))
				if err == nil {
					err = http.NewResponseController(w).Flush()
				}
				if err != nil {
					ended <- err
					return
				}
				time.Sleep(time.Second)
			}
		})
		leader, waiter := s.read("/"), s.read("/")
		time.Sleep(3 * time.Second)
		leader.leave()
		time.Sleep(3 * time.Second)
		waiter.next(5 << 10)
		select {
		case err := <-ended:
			t.Fatalf("the run ended with its leader: %v", err)
		default:
		}
		waiter.leave()
		if err := <-ended; err == nil {
			t.Error("the run's last write succeeded")
		}
	})
}

func TestBrokenBodyReachesNoWaiterAsWhole(t *testing.T) {
	for _, how := range []string{"panic", "short"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				release := make(chan struct{})
				s := openInBubble(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					if runs.Add(1) > 1 {
						fmt.Fprint(w, "whole")
						return
					}
					if how == "short" {
						w.Header().Set("Content-Length", "100")
					}
					fmt.Fprint(w, "half")
					_ = http.NewResponseController(w).Flush()
					if <-release; how == "panic" {
						panic(http.ErrAbortHandler)
					}
				})
				leader, waiter := s.read("/"), s.read("/")
				ranged := make(chan got)
				go func() { ranged <- s.do("/", "Range: bytes=0-1") }() // it has no byte of the broken body
				synctest.Wait()
				close(release)
				for who, r := range map[string]*reading{"leader": leader, "waiter": waiter} {
					if b, err := io.ReadAll(r.body); !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("the %s got %q, %v", who, b, err)
					}
				}
				if g := <-ranged; g.err != nil || g.StatusCode != http.StatusPartialContent && g.StatusCode != http.StatusOK || !strings.HasPrefix("whole", g.body) {
					t.Errorf("a request for a range got %d %q, %v", g.StatusCode, g.body, g.err)
				}
				s.is(s.do("/"), 200, "whole")
			})
		})
	}
}

func TestVariantsOfABodyStreamApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := openInBubble(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "Accept-Language")
			fmt.Fprint(w, r.Header.Get("Accept-Language"), ",")
			_ = http.NewResponseController(w).Flush()
			<-release
			fmt.Fprint(w, "end")
		})
		all := map[string][]*reading{}
		for range 3 {
			for _, lang := range []string{"de", "fr"} {
				r := s.read("/", "Accept-Language: "+lang)
				if got := r.next(3); got != lang+"," {
					t.Errorf("%s began with %q", lang, got)
				}
				all[lang] = append(all[lang], r)
			}
		}
		close(release)
		for lang, rs := range all {
			for _, r := range rs {
				if got := r.rest(); got != "end" {
					t.Errorf("%s ended with %q", lang, got)
				}
			}
		}
		s.ran(2)
	})
}

func TestPurgeEndsTheSharingOfABody(t *testing.T) {
	for _, kind := range []string{"purge", "soft purge", "tag"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int32
				release := make(chan struct{})
				s := openInBubble(t, middleware.Options{TagHeaders: []string{"Cache-Tag"}}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					if kind == "tag" {
						w.Header().Set("Cache-Tag", "a")
					}
					run := n.Add(1)
					fmt.Fprintf(w, "run %d,", run)
					_ = http.NewResponseController(w).Flush()
					if run == 1 {
						<-release
					}
					fmt.Fprintf(w, "end of %d", run)
				})
				leader := s.read("/")
				waiter := leader
				if kind != "tag" {
					waiter = s.read("/")
				}
				ctx := t.Context()
				purge := map[string]func() error{
					"purge":      func() error { return s.m.Purge(ctx, s.URL+"/") },
					"soft purge": func() error { return s.m.SoftPurge(ctx, s.URL+"/") },
					"tag":        func() error { return s.m.PurgeTag(ctx, "a") },
				}[kind]
				if err := purge(); err != nil {
					t.Fatal(err)
				}
				later := make(chan got)
				go func() { later <- s.do("/") }()
				synctest.Wait()
				close(release)
				s.is(<-later, 200, "run 2,end of 2")
				earlier := []*reading{leader}
				if waiter != leader {
					earlier = append(earlier, waiter)
				}
				for _, r := range earlier {
					if got := r.rest(); !strings.HasSuffix(got, "end of 1") {
						t.Errorf("a request from before the purge got %q", got)
					}
				}
			})
		})
	}
}

func TestEndlessBodyReachesWaitersAndMarksItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openInBubble(t, middleware.Options{FetchTimeout: 10 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			for r.Context().Err() == nil {
				fmt.Fprint(w, "tick,")
				if http.NewResponseController(w).Flush() != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		leader, waiter := s.read("/"), s.read("/")
		ranged := make(chan *reading)
		go func() { ranged <- s.read("/", "Range: bytes=0-") }() // needs the whole
		time.Sleep(20 * time.Second)
		for _, r := range []*reading{leader, waiter} {
			if got := r.next(100); got != strings.Repeat("tick,", 20) {
				t.Errorf("after FetchTimeout: %q", got)
			}
		}
		released := <-ranged
		s.ran(2) // it ran the handler for itself
		start := time.Now()
		own := s.read("/")
		if got := own.next(5); got != "tick," || time.Since(start) > time.Second {
			t.Errorf("a request after FetchTimeout got %q after %v", got, time.Since(start))
		}
		for _, r := range []*reading{leader, waiter, released, own} {
			r.leave()
		}
	})
}
