package middleware_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// odd answers requests with an odd Accept or cookie in a way that can't be shared, at once,
// and others with a page that takes a while.
func odd(cacheControl string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept")+r.Header.Get("Cookie"), "evil") {
			answer(w, r)
			return
		}
		time.Sleep(300 * time.Millisecond)
		w.Header().Set("Cache-Control", cacheControl)
		fmt.Fprint(w, "good")
	}
}

func failing(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad", status) }
}

// oddities are ways in which one client's response can't be shared.
var oddities = map[string]http.HandlerFunc{
	"406":           failing(406),
	"403":           failing(403),
	"500":           failing(500),
	"503":           saying(failing(503), "Retry-After: 60"),
	"406, no-store": saying(failing(406), "Cache-Control: no-store"),
	"406, max-age":  saying(failing(406), "Cache-Control: max-age=60"),
	"302":           func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
	"204":           saying(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "Cache-Control: max-age=0"),
	"private":       saying(number(), "Cache-Control: private"),
	"Set-Cookie":    saying(number(), "Cache-Control: public, max-age=60", "Set-Cookie: a=b"),
	"Vary: *":       saying(number(), "Cache-Control: public, max-age=60", "Vary: *"),
	"too large":     saying(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64)) }, "Cache-Control: public, max-age=60"),
}

func TestUnshareableAnswerLeavesTheFreshPage(t *testing.T) {
	for name, answer := range oddities {
		for _, who := range []string{"Accept: evil", "Cookie: evil"} {
			t.Run(name+", "+who, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFront(t, middleware.Options{MaxBody: 32}, odd("public, max-age=3600", answer))
					var same []string
					if strings.HasPrefix(who, "Cookie") {
						same = []string{"Cookie: a=b"} // these share with each other
					}
					f.is(f.ask("/", same...), 200, "good")
					before := f.runs.Load()
					f.ask("/", who, "Cache-Control: no-cache")
					f.all(f.herd(200, "/", same...), 200, "200 good")
					if n := f.since(before); n != 1 {
						t.Errorf("%d runs, want that of the odd request", n)
					}
				})
			})
		}
	}
}

func TestUnshareableRefreshLeavesTheStalePage(t *testing.T) {
	for name, answer := range oddities {
		for _, who := range []string{"Accept: evil", "Cookie: evil"} {
			t.Run(name+", "+who, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFront(t, middleware.Options{MaxBody: 32}, odd("public, max-age=1, stale-while-revalidate=600", answer))
					var same []string
					if strings.HasPrefix(who, "Cookie") {
						same = []string{"Cookie: a=b"}
					}
					f.ask("/", same...)
					time.Sleep(1500 * time.Millisecond)
					f.is(f.ask("/", who), 200, "good") // and it refreshes
					time.Sleep(time.Second)            // the pause
					before := f.runs.Load()
					f.all(f.herd(200, "/", same...), 200, "200 good")
					time.Sleep(time.Second)
					if n := f.since(before); n > 1 {
						t.Errorf("%d runs, want one refresh", n)
					}
				})
			})
		}
	}
}

func TestUnshareableAnswerLeavesTheHerdTogether(t *testing.T) {
	for name, answer := range oddities {
		for _, who := range []string{"Accept: evil", "Cookie: evil"} {
			t.Run(name+", "+who, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFront(t, middleware.Options{MaxBody: 32}, odd("public, max-age=1", func(w http.ResponseWriter, r *http.Request) {
						time.Sleep(100 * time.Millisecond)
						answer(w, r)
					}))
					var same []string
					if strings.HasPrefix(who, "Cookie") {
						same = []string{"Cookie: a=b"}
					}
					f.ask("/", same...)
					time.Sleep(2 * time.Second) // the page has expired
					before := f.runs.Load()
					go f.send(t.Context(), "/", who)
					time.Sleep(50 * time.Millisecond) // the odd request leads
					herd := f.herd(200, "/", same...)
					if name != "too large" { // its header allows sharing: some of the herd may have read it along, whole
						f.all(herd, 200, "200 good")
					} else if f.since(before) == 1 {
						return
					}
					if n := f.since(before); n != 2 {
						t.Errorf("%d runs, want 2", n)
					}
				})
			})
		}
	}
}

// An attack of one request a second with a bad Accept or cookie costs its own runs, and one
// per refresh of the page.
func TestSustainedOddRequestsCostNoRunsOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		cacheControl string
		refreshes    int // in 6 s
		attack       []string
	}{
		"fresh, Accept":   {"public, max-age=3600", 0, []string{"Accept: evil", "Cache-Control: no-cache"}},
		"fresh, cookie":   {"public, max-age=3600", 0, []string{"Cookie: evil", "Cache-Control: no-cache"}},
		"stale, Accept":   {"public, max-age=2, stale-while-revalidate=60", 3, []string{"Accept: evil"}},
		"stale, cookie":   {"public, max-age=2, stale-while-revalidate=60", 3, []string{"Cookie: evil"}},
		"expired, Accept": {"public, max-age=2", 3, []string{"Accept: evil"}},
		"expired, cookie": {"public, max-age=2", 3, []string{"Cookie: evil"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var good atomic.Int32
				h := odd(c.cacheControl, failing(406))
				f := newFront(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
					if h(w, r); w.Header().Get("Cache-Control") == c.cacheControl {
						good.Add(1)
					}
				})
				var same []string
				if strings.HasPrefix(c.attack[0], "Cookie") {
					same = []string{"Cookie: a=b"}
				}
				f.ask("/", same...)
				good.Store(0)
				for i := range 600 {
					if i%100 == 0 {
						go f.send(t.Context(), "/", c.attack...)
					}
					go f.send(t.Context(), "/", same...)
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(5 * time.Second)
				if n := good.Load(); int(n) > c.refreshes {
					t.Errorf("%d runs for others, want at most %d", n, c.refreshes)
				}
			})
		})
	}
}

func TestPageThatBecomesPrivateIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		private := false
		f := newFront(t, middleware.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(100 * time.Millisecond)
			if w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=600"); private {
				w.Header().Set("Cache-Control", "private")
			}
			fmt.Fprint(w, "private: ", private)
		})
		f.ask("/")
		private = true
		time.Sleep(1500 * time.Millisecond)
		for range 2 {
			f.is(f.ask("/"), 200, "private: false") // and it refreshes
			time.Sleep(2 * time.Second)
		}
		began := time.Now()
		f.all(f.herd(20, "/"), 20, "200 private: true")
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("the requests took %v: not side by side", d)
		}
	})
}

// A response that is private from the start costs its herd one wait.
func TestHerdOfAPrivatePageWaitsOnce(t *testing.T) {
	for name, answer := range oddities {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFront(t, middleware.Options{MaxBody: 32}, func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(100 * time.Millisecond)
					answer(w, r)
				})
				began := time.Now()
				f.herd(50, "/")
				if d := time.Since(began); d > 300*time.Millisecond {
					t.Errorf("%d requests took %v", f.runs.Load(), d)
				}
			})
		})
	}
}

// A failure answers requests with the headers that its run was given, and no others.
func TestFailureIsSharedByEqualRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(100 * time.Millisecond)
			http.Error(w, "no "+r.Header.Get("Accept"), http.StatusForbidden)
		})
		for range 10 {
			go f.send(t.Context(), "/", "Accept: a")
		}
		f.all(f.herd(10, "/", "Accept: b"), 10, "403 no b\n")
		time.Sleep(time.Second)
		if n := f.runs.Load(); n != 2 {
			t.Errorf("%d runs, want one for each Accept", n)
		}
	})
}

func TestBrokenResponseIsFetchedOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		f := newFront(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "page")
			time.Sleep(100 * time.Millisecond)
			if broken {
				broken = false
				panic(http.ErrAbortHandler)
			}
		})
		go func() {
			defer func() { _ = recover() }()
			f.send(t.Context(), "/")
		}()
		time.Sleep(50 * time.Millisecond)
		f.all(f.herd(20, "/"), 20, "200 page")
	})
}
