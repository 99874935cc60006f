package middleware_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware"
)

func TestPagesOutliveRedis(t *testing.T) {
	for _, fault := range []string{"killed", "frozen"} {
		t.Run(fault, func(t *testing.T) {
			server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
			n := 0
			store, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test", RedisTimeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			s := openOn(t, store, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					n++
					fmt.Fprint(w, "page ", n)
				}
			})
			for i, path := range []string{"/a", "/b"} {
				page := fmt.Sprint("page ", i+1)
				s.is(s.do(path), 200, page)
				for s.m.Stats().Guard.ReserveEntries == i { // until the process hears of changes
					s.stored(path, page)
				}
			}
			end := server.Kill
			if fault == "frozen" {
				end = server.Pause
				defer func() { _ = server.Resume() }()
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			before := s.runs.Load()
			for range 10 {
				s.is(s.do("/a"), 200, "page 1")
			}
			if runs := s.runs.Load() - before; runs != 0 {
				t.Errorf("the handler ran %d times", runs)
			}
			s.do("POST /b") // invalidates the page in this process, whether Redis answers or not
			s.is(s.do("/b"), 200, "page 3")
		})
	}
}

// While the store is away, a few slow pages may take all runs that the process makes.
func TestSlowPagesHoldUpNoOtherForLong(t *testing.T) {
	for name, c := range map[string]struct {
		action middleware.WaitAction
		want   string
	}{
		"unavailable": {middleware.Unavailable, "503"},
		"alone":       {middleware.RunAlone, "200"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var away atomic.Bool
				o := middleware.Options{OnWaitTimeout: c.action, Policy: func(p *guard.Policy) { p.MaxUnguarded = 4 }}
				s := openInBubbleOn(t, awayStore(newStore(t), &away), o, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=1, stale-if-error=60")
					if r.URL.Path == "/slow" {
						time.Sleep(20 * time.Second)
					}
					fmt.Fprint(w, "page")
				})
				s.is(s.do("/old"), 200, "page")
				time.Sleep(2 * time.Second)
				away.Store(true)
				for i := range 4 {
					go s.do(fmt.Sprint("/slow?", i))
				}
				synctest.Wait()
				start := time.Now()
				g := s.do("/fast")
				if took := time.Since(start); fmt.Sprint(g.StatusCode) != c.want || took > 3*time.Second {
					t.Errorf("%d after %v; %s", g.StatusCode, took, g.status())
				}
				if g.StatusCode == 503 && g.Header.Get("Retry-After") != "1" {
					t.Errorf("Retry-After %q", g.Header["Retry-After"])
				}
				start = time.Now()
				s.is(s.do("/old"), 200, "page")
				if took := time.Since(start); took > 3*time.Second {
					t.Errorf("the stale page came after %v", took)
				}
			})
		})
	}
}

// awayStore returns a store that gives no answer while it is away.
func awayStore(s *cache.Memory, away *atomic.Bool) cache.Store {
	fails := tap.New(s)
	fails.OnRead = func(_ string, r *store.Reading, err error) (*store.Reading, error) {
		if away.Load() {
			return nil, store.ErrUnavailable
		}
		return r, err
	}
	fails.OnAcquire = func(requests []store.Request) []store.Answer {
		if !away.Load() {
			return nil
		}
		answers := make([]store.Answer, len(requests))
		for i := range answers {
			answers[i].Err = store.ErrUnavailable
		}
		return answers
	}
	return fails
}

func TestWaitToRunAloneIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := middleware.Options{TTL: time.Minute, WaitTimeout: time.Second, OnWaitTimeout: middleware.RunAlone, MaxAlone: 1}
		s := openInBubble(t, o, func(http.ResponseWriter, *http.Request) { time.Sleep(20 * time.Second) })
		for range 2 { // one runs, and one runs alone
			go s.do("/")
			time.Sleep(time.Millisecond)
		}
		start := time.Now()
		g := s.do("/")
		if took := time.Since(start); g.StatusCode != 503 || took != 2*time.Second {
			t.Errorf("%d after %v", g.StatusCode, took)
		}
	})
}
