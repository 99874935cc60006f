package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware"
)

// A stuck client takes no informational response.
type stuck struct {
	http.ResponseWriter
	release chan struct{}
}

func (s stuck) WriteHeader(status int) {
	if status < 200 {
		<-s.release
	}
	s.ResponseWriter.WriteHeader(status)
}

func TestClientThatDoesNotReadStallsNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				w.WriteHeader(http.StatusEarlyHints)
			}
			time.Sleep(100 * time.Millisecond)
			fmt.Fprint(w, "page")
		})
		release := make(chan struct{})
		leader := httptest.NewRecorder()
		go f.h.ServeHTTP(stuck{leader, release}, request("/"))
		synctest.Wait()
		began := time.Now()
		f.all(f.herd(20, "/"), 20, "200 page")
		if d := time.Since(began); d != 100*time.Millisecond || f.runs.Load() != 1 {
			t.Errorf("%v, %d runs", d, f.runs.Load())
		}
		close(release)
		synctest.Wait()
		if leader.Body.String() != "page" {
			t.Errorf("the client that did not read gets %q", leader.Body)
		}
	})
}

// A body that outlives FetchTimeout is its client's, and the next herd does not wait for one.
func TestEndlessBodyMarksItsKey(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			endless := !trusted
			f := newFront(t, middleware.Options{TTL: time.Second, FetchTimeout: 5 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "first")
				_ = http.NewResponseController(w).Flush()
				if !endless {
					return
				}
				<-r.Context().Done()
			})
			if trusted {
				f.ask("/")
				endless = true
				time.Sleep(2 * time.Second)
			}
			var answered atomic.Int32
			herd := func() {
				for range 10 {
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
						defer cancel()
						defer func() { _ = recover() }() // the connection's end
						f.h.ServeHTTP(&firstByte{ResponseRecorder: httptest.NewRecorder(), came: &answered}, request("/").WithContext(ctx))
					}()
				}
				synctest.Wait()
			}
			herd()
			time.Sleep(6 * time.Second)
			if n := answered.Load(); n != 10 {
				t.Errorf("%d of 10 have their first byte soon after FetchTimeout", n)
			}
			answered.Store(0)
			if herd(); answered.Load() != 10 {
				t.Errorf("the next herd: %d of 10 have their first byte at once", answered.Load())
			}
			time.Sleep(time.Minute)
		})
	}
}

// firstByte counts clients that have the first byte of a body.
type firstByte struct {
	*httptest.ResponseRecorder
	came *atomic.Int32
	has  bool
}

func (w *firstByte) Write(p []byte) (int, error) {
	if !w.has && len(p) > 0 && w.Code == 200 {
		w.has = true
		w.came.Add(1)
	}
	return w.ResponseRecorder.Write(p)
}

// Clients choose the length of their targets, and many parts of a process keep keys. The
// bound is that for targets of 1 MiB: their keys are as long as these.
func TestMarksOfLongTargetsTakeLittleMemory(t *testing.T) {
	const urls, most, size = 4096, 8 << 20, 16 << 10
	m, err := middleware.New(newStore(t), middleware.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	front := m.Wrap(saying(number(), "Cache-Control: private"))
	before := heap()
	for i := range urls {
		r := request("/?x")
		r.URL.RawQuery = fmt.Sprint(i, "=", strings.Repeat("a", size))
		front.ServeHTTP(httptest.NewRecorder(), r)
		front.ServeHTTP(httptest.NewRecorder(), r)
	}
	if added := int64(heap()) - int64(before); added > most {
		t.Errorf("%d long URLs add %d KiB, want at most %d KiB", urls, added>>10, most>>10)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestLongTargetsAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, len(r.URL.RawQuery), " ", r.URL.RawQuery[len(r.URL.RawQuery)-1:])
		})
		long := "/?" + strings.Repeat("a", 10000)
		for range 2 {
			f.is(f.ask(long+"b"), 200, "10001 b")
			f.is(f.ask(long+"c"), 200, "10001 c")
		}
		if f.runs.Load() != 2 {
			t.Errorf("%d runs", f.runs.Load())
		}
		if err := f.m.Purge(t.Context(), "http://site.example"+long+"b"); err != nil {
			t.Fatal(err)
		}
		f.ask(long + "b")
		if f.ask(long + "c"); f.runs.Load() != 3 {
			t.Errorf("%d runs after a purge", f.runs.Load())
		}
	})
}

func TestMaxPagesBoundsUniqueQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Hour, MaxPages: 4}, saying(number(), "Vary: Accept"))
		f.is(f.ask("/"), 200, "run 1")
		for i := range 20 {
			f.ask(fmt.Sprint("/?junk=", i))
			f.is(f.ask("/"), 200, "run 1") // which is in use
		}
		stored := 0
		for i := range 20 {
			if w := f.ask(fmt.Sprint("/?junk=", i), "Cache-Control: only-if-cached"); w.Code == 200 {
				stored++
			}
		}
		if stored != 3 {
			t.Errorf("%d junk pages are stored, want 3 beside the page", stored)
		}
	})
}

// The pages of a process that has ended count in the process that renews them.
func TestMaxPagesCountsRenewedPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		h := saying(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
			}
		}, "Cache-Control: max-age=1", `ETag: "v"`)
		before := newFrontOn(t, store, middleware.Options{}, h)
		f := newFrontOn(t, store, middleware.Options{MaxPages: 2}, h)
		pages := []string{"/a", "/b", "/c", "/d"}
		for _, p := range pages {
			before.ask(p)
		}
		time.Sleep(2 * time.Second)
		stored := 0
		for _, p := range pages {
			f.ask(p)
		}
		for _, p := range pages {
			if w := f.ask(p, "Cache-Control: only-if-cached"); w.Code == 200 {
				stored++
			}
		}
		if stored != 2 {
			t.Errorf("%d pages are stored, want 2", stored)
		}
	})
}

// A deaf store does not hear of changes while it is deaf.
type deaf struct {
	store.Store
	is *atomic.Bool
}

func (d deaf) Unwrap() store.Store { return d }

func (d deaf) Change(ctx context.Context, changes []store.Change) []error {
	if !d.is.Load() {
		return d.Store.Change(ctx, changes)
	}
	errs := make([]error, len(changes))
	for i := range errs {
		errs[i] = store.ErrUnavailable
	}
	return errs
}

func TestPurgeThatTheStoreDidNotHearIsRepeated(t *testing.T) {
	for name, purge := range map[string]func(f *front) error{
		"POST":  func(f *front) error { f.ask("POST /"); return nil },
		"Purge": func(f *front) error { return f.m.Purge(f.Context(), "http://site.example/") },
		"soft":  func(f *front) error { return f.m.SoftPurge(f.Context(), "http://site.example/") },
		"handler": func(f *front) error {
			all := func(*http.Request) bool { return true }
			f.m.PurgeHandler(all).ServeHTTP(httptest.NewRecorder(), request("PURGE /"))
			return nil
		},
	} {
		for _, o := range []middleware.Options{{TTL: time.Hour}, {TTL: time.Hour, Headers: []string{"X-Color"}}} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var isDeaf atomic.Bool
					memory := newStore(t)
					f := newFrontOn(t, deaf{tap.New(memory).Store, &isDeaf}, o, number())
					other := newFrontOn(t, memory, o, number())
					f.is(f.ask("/"), 200, "run 1")
					f.is(other.ask("/"), 200, "run 1")
					isDeaf.Store(true)
					err := purge(f)
					f.ask("/")
					isDeaf.Store(false)
					time.Sleep(time.Minute)
					before := f.runs.Load() + other.runs.Load()
					f.ask("/")
					other.ask("/")
					if w := other.ask("/"); f.runs.Load()+other.runs.Load() == before && w.Body.String() == "run 1" {
						t.Errorf("the purge is lost (%v): %q", err, w.Body)
					}
				})
			})
		}
	}
}

// The client of a run may have cookies that its run was not given. It reads along until the
// body turns out to be too large, and then goes on.
func TestLargePageReachesAClientWithOtherCookies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := middleware.Options{TTL: time.Minute, MaxBody: 1 << 10, Cookies: []string{"lang"}}
		s := openInBubble(t, o, func(w http.ResponseWriter, r *http.Request) {
			for range 4 {
				fmt.Fprint(w, strings.Repeat("x", 1<<10))
				_ = http.NewResponseController(w).Flush()
			}
		})
		s.is(s.do("/", "Cookie: lang=de; session=1"), 200, strings.Repeat("x", 4<<10))
		s.ran(1)
	})
}
