package middleware_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware"
)

func redisStore(t testing.TB, addr string) *cache.Redis {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(); _ = client.Close() })
	return s
}

// Fifty users and strangers ask two servers on one Redis for all sorts of pages,
// while some of these are changed and purged. A checker reads each body: a private
// page is its user's, a public one is no user's in particular, and each is whole.
func TestMixedTrafficLeaksNothing(t *testing.T) {
	requests := 5000
	if bounds {
		requests = 100_000
	}
	who := func(r *http.Request) string {
		if c, err := r.Cookie("user"); err == nil {
			return c.Value
		}
		if u, _, ok := r.BasicAuth(); ok {
			return u
		}
		if k := r.Header.Get("X-Api-Key"); k != "" {
			return k
		}
		return "nobody"
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		kind := strings.Split(r.URL.Path, "/")[1]
		whose := who(r)
		switch kind {
		case "private":
			h.Set("Cache-Control", "private")
		case "cookie":
			h.Set("Cache-Control", "max-age=60")
			http.SetCookie(w, &http.Cookie{Name: "session", Value: whose})
		case "silent": // says nothing: shared by the options, among strangers
		case "public":
			h.Set("Cache-Control", "public, max-age=60")
			whose = "anybody"
		case "varies":
			h.Set("Cache-Control", "public, max-age=60")
			h.Set("Vary", "Accept-Language")
			whose = "anybody/" + r.Header.Get("Accept-Language")
		case "tagged":
			h.Set("Cache-Control", "no-cache")
			h.Set("ETag", `"`+whose+`"`)
		}
		page := fmt.Sprintf("<%s for %s>", r.URL.Path, whose)
		for i, part := range []string{page, strings.Repeat("x", 3000), page} {
			if i == 1 && rand.IntN(3) == 0 {
				w.(http.Flusher).Flush()
			}
			if rand.IntN(500) == 0 {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprint(w, part)
		}
	}
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var sites []*site
	for range 2 {
		sites = append(sites, openOn(t, redisStore(t, server.Addr()), middleware.Options{
			Host: "site.example", TTL: time.Minute, Stale: time.Second, Near: guard.Near{MaxEntries: 1000}, StoreSetCookie: true, MakeETag: true,
		}, handler))
	}
	kinds := []string{"private", "cookie", "silent", "public", "varies", "tagged"}
	var left atomic.Int64
	left.Store(int64(requests))
	var answered, shared, cut atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				s := sites[rand.IntN(2)]
				kind := kinds[rand.IntN(len(kinds))]
				path := fmt.Sprintf("/%s/%d", kind, rand.IntN(10))
				user, headers := "nobody", []string(nil)
				lang := []string{"de", "en", "fr"}[rand.IntN(3)]
				headers = append(headers, "Accept-Language: "+lang)
				if rand.IntN(10) > 0 {
					user = fmt.Sprint("u", rand.IntN(50))
					headers = append(headers, []string{"Cookie: user=" + user, "Authorization: " + basic(user), "X-Api-Key: " + user}[rand.IntN(3)])
				}
				if rand.IntN(300) == 0 {
					s.do("POST "+path, headers...)
				}
				g := s.do(path, headers...)
				if g.Response == nil || g.err != nil || g.StatusCode >= 500 {
					cut.Add(1) // the handler aborted, for this one or the one it waited for
					continue
				}
				whose := user
				switch kind {
				case "public":
					whose = "anybody"
				case "varies":
					whose = "anybody/" + lang
				}
				page := fmt.Sprintf("<%s for %s>", path, whose)
				if want := page + strings.Repeat("x", 3000) + page; g.body != want {
					t.Errorf("%s, %s: %.80q; %s", path, user, g.body, g.status())
				}
				if c := g.Header.Get("Set-Cookie"); c != "" && c != "session="+user {
					t.Errorf("%s, %s: Set-Cookie %s", path, user, c)
				}
				answered.Add(1)
				if strings.Contains(g.status(), "hit") || strings.Contains(g.status(), "collapsed") {
					shared.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d answered, %d of them shared, %d cut short", answered.Load(), shared.Load(), cut.Load())
	if shared.Load() == 0 || answered.Load() < int64(requests)*8/10 {
		t.Error("this shows nothing")
	}
}

// A thousand requests that wait for one page of 1 MiB share its bytes.
func TestWaitersShareTheBody(t *testing.T) {
	const waiters, size = 1000, 1 << 20
	m, err := middleware.New(newStore(t), middleware.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	body := strings.Repeat("x", size)
	release := make(chan struct{})
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-release
		fmt.Fprint(w, body)
	}))
	var before, after runtime.MemStats
	var wg sync.WaitGroup
	hold := make(chan struct{})
	var got atomic.Int64
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range waiters {
		wg.Go(func() {
			w := &holdingWriter{ResponseWriter: httptest.NewRecorder(), got: &got, hold: hold}
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if w.n != size {
				t.Errorf("%d bytes", w.n)
			}
		})
	}
	// A request that isn't waiting by then reads a copy of its own. The first one waits for its run.
	eventually(t, "the waiters", func() bool { return m.Stats().Guard.Waiting == waiters-1 })
	close(release)
	eventually(t, "all have their body", func() bool { return got.Load() == waiters })
	runtime.GC()
	runtime.ReadMemStats(&after)
	close(hold)
	wg.Wait()
	used := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d waiters with %d bytes each: %.1f MiB", waiters, size, float64(used)/(1<<20))
	if used > 64<<20 {
		t.Errorf("%d bytes in use", used)
	}
}

// A holdingWriter keeps its last Write from returning.
type holdingWriter struct {
	http.ResponseWriter
	got  *atomic.Int64
	hold chan struct{}
	n    int
}

func (w *holdingWriter) Write(p []byte) (int, error) {
	if w.n += len(p); w.n == 1<<20 {
		w.got.Add(1)
		<-w.hold
	}
	return len(p), nil
}
