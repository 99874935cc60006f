package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// Tests of handlers that do as they please with their requests.

// The set of sharers is decided by the request as it came. A layer further in
// that takes Authorization away once it has read it, or a header of Vary,
// changes a copy.
func TestPitfall33HandlersMayTakeHeadersAway(t *testing.T) {
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		user, accepts := r.Header.Get("Authorization"), r.Header.Get("Accept-Encoding")
		r.Header.Del("Authorization")
		r.Header.Del("Accept-Encoding")
		w.Header().Set("Cache-Control", "max-age=60")
		if accepts != "" {
			w.Header().Set("Content-Encoding", accepts)
		}
		w.Header().Set("Vary", "Accept-Encoding")
		fmt.Fprintf(w, "%s for %q", accepts, user)
	})
	for range 2 {
		for _, user := range []string{"alice", "bob"} {
			s.is(s.do("/mine", "Authorization: "+user), 200, fmt.Sprintf(" for %q", user))
			s.settled()
		}
	}
	for range 3 {
		s.is(s.do("/all", "Accept-Encoding: gzip"), 200, `gzip for ""`)
		s.settled()
	}
	s.is(s.do("/all"), 200, ` for ""`)
}

// settled waits until the last response is stored, if it is.
func (s *site) settled() {
	s.Helper()
	eventually(s.T, "what was answered is settled", func() bool { return s.waiting() == 0 })
}

// A handler may go on changing its request when the header is out. The race
// detector looks on.
func TestHandlersMayChangeTheirRequestMeanwhile(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute, Tags: func(r *http.Request, _ http.Header) []string { return []string{r.URL.Path} }}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "X-Changed")
		_ = http.NewResponseController(w).Flush()
		for i := range 100 {
			r.Header.Set("X-Changed", fmt.Sprint(i))
			r.URL.Path += "x"
		}
	})
	for i := range 20 {
		s.is(s.do(fmt.Sprint("/", i)), 200, "")
	}
}

// A change is of the URL that was asked for, and not of the handler's rewriting.
func TestPitfall41HandlersMayRewriteTheirURL(t *testing.T) {
	var n atomic.Int32
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			n.Add(1)
		}
		r.Method, r.URL.Path = http.MethodGet, strings.TrimPrefix(r.URL.Path, "/api")
		fmt.Fprint(w, n.Load())
	})
	s.do("/api/x")
	s.stored("/api/x", "0")
	s.is(s.do("PUT /api/x"), 200, "1")
	s.is(s.do("/api/x"), 200, "1")
}

// Names that a handler spells otherwise mean the same to a client.
func TestPitfall33HeadersMayBeSpelledOtherwise(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		w.Header()[name] = append(w.Header()[name], map[string]string{"set-cookie": "sid=1", "cache-control": "private", "vary": "*"}[name])
		fmt.Fprint(w, "mine")
	})
	for i, name := range []string{"set-cookie", "cache-control", "vary"} {
		for range 2 {
			g := s.do("/" + name)
			s.is(g, 200, "mine")
			if g.Header.Get(name) == "" {
				t.Errorf("%s was not sent: %v", name, g.Header)
			}
			s.settled()
		}
		s.ran(2 * (i + 1))
	}
}

// A field that a layer further out has set stays where handlers add to it, whether the
// response comes from a run, from the store, or from the handler alone.
func TestHeadersFromOutsideAreAddedTo(t *testing.T) {
	m, err := middleware.New(newStore(t), middleware.Options{TTL: time.Minute, StoreSetCookie: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	page := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Language")
		if r.URL.Path == "/all" {
			w.Header().Set("Cache-Control", "public")
		}
		http.SetCookie(w, &http.Cookie{Name: "inner", Value: "1"})
		fmt.Fprint(w, "page")
	}))
	outside := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Origin")
		http.SetCookie(w, &http.Cookie{Name: "outer", Value: r.Header.Get("X-Client")})
		page.ServeHTTP(w, r)
	})
	for i, path := range []string{"/all", "/all", "/mine", "/mine"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("X-Client", fmt.Sprint(i))
		outside.ServeHTTP(w, r)
		got, want := fmt.Sprint(w.Header()["Vary"], w.Header()["Set-Cookie"]), fmt.Sprintf("[Origin Accept-Language] [outer=%d inner=1]", i)
		if got != want {
			t.Errorf("%s, request %d: %s, want %s; %s", path, i, got, want, w.Header()["Cache-Status"])
		}
		eventually(t, "what it stores is stored", func() bool { return len(m.Stats().Guard.InFlight) == 0 })
	}
}

// A handler that is mounted at two places has two pages, purged by the URLs that
// clients see.
func TestMountsShareNoPages(t *testing.T) {
	m, err := middleware.New(newStore(t), middleware.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var n atomic.Int32
	mux := http.NewServeMux()
	for _, mount := range []string{"/public", "/admin"} {
		mux.Handle(mount+"/", http.StripPrefix(mount, m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%d at %s%s", n.Add(1), mount, r.URL.EscapedPath())
		}))))
	}
	is := func(what, want string) {
		t.Helper()
		method, target, _ := strings.Cut(what, " ")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, target, nil))
		if w.Body.String() != want {
			t.Errorf("%s: %s, want %s", what, w.Body, want)
		}
		eventually(t, "what it stores is stored", func() bool { return len(m.Stats().Guard.InFlight) == 0 })
	}
	is("GET /admin/x%2Fy?q=1", "1 at /admin/x%2Fy")
	is("GET /public/x%2Fy?q=1", "2 at /public/x%2Fy")
	is("GET /admin/x%2Fy?q=1", "1 at /admin/x%2Fy")
	is("PUT /admin/x%2Fy?q=1", "3 at /admin/x%2Fy")
	is("GET /admin/x%2Fy?q=1", "4 at /admin/x%2Fy")
	is("GET /public/x%2Fy?q=1", "2 at /public/x%2Fy")
	if err := m.Purge(t.Context(), "http://example.com/public/x%2Fy?q=1"); err != nil {
		t.Fatal(err)
	}
	is("GET /public/x%2Fy?q=1", "5 at /public/x%2Fy")
	is("GET /admin/x%2Fy?q=1", "4 at /admin/x%2Fy")
	// However a client writes it.
	is("GET http://example.com/admin/abs", "6 at /admin/abs")
	is("GET http://example.com/public/abs", "7 at /public/abs")
	is("GET /admin/abs", "6 at /admin/abs")
	is("PUT http://example.com/admin/abs", "8 at /admin/abs")
	is("GET /admin/abs", "9 at /admin/abs")
	is(`GET /admin/"é`, "10 at /admin/%22%C3%A9")
	is(`GET /public/"é`, "11 at /public/%22%C3%A9")
}

// A mounted handler sees the same path of a page in all its runs, also where its mount
// has left nothing of it.
func TestMountsLeaveAllRunsTheSamePath(t *testing.T) {
	m, err := middleware.New(newStore(t), middleware.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	h := http.StripPrefix("/api", m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q", r.URL.Path)
	})))
	for target, want := range map[string]string{"/api": `""`, "http://example.com/api": `""`, "/api/": `"/"`} {
		for _, method := range []string{http.MethodGet, http.MethodGet, http.MethodPost} { // shared, by itself, passed on
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
			if w.Body.String() != want {
				t.Errorf("%s %s: the path is %s, want %s; %s", method, target, w.Body, want, w.Header()["Cache-Status"])
			}
		}
	}
}

// A body over MaxBody that is written in one go ends as soon as it is too large.
// Waiters run the handler for themselves, and a request for a part gets the whole.
func TestPitfall37BodiesAreTooLargeAtTheirEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := strings.Repeat("x", 100)
		s := openInBubble(t, middleware.Options{MaxBody: 10, TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
			fmt.Fprint(w, body)
		})
		for i := range 20 {
			for _, g := range s.together(4, fmt.Sprint("/", i)) {
				s.is(g, 200, body)
			}
			s.is(s.do(fmt.Sprint("/part/", i), "Range: bytes=0-3"), 200, body)
		}
	})
}

// A client that asked for a part of a body slower than FetchTimeout reads on, as
// others do.
func TestSlowBodyGoesOnForARangeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openInBubble(t, middleware.Options{TTL: time.Minute, FetchTimeout: 100 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
			for range 6 {
				fmt.Fprint(w, "part ")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(50 * time.Millisecond)
			}
		})
		s.is(s.do("/", "Range: bytes=0-1"), 200, strings.Repeat("part ", 6))
		s.ran(1)
	})
}

// A stale response stands in for the errors that RFC 5861 speaks of, and for no
// others.
func TestStaleStandsInForNoOtherErrors(t *testing.T) {
	for status, want := range map[int]int{500: 200, 501: 501, 502: 200, 503: 200, 504: 200, 505: 505, 507: 507} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failing atomic.Bool
				s := openInBubble(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
					if failing.Load() {
						w.WriteHeader(status)
						return
					}
					w.Header().Set("Cache-Control", "max-age=1, stale-if-error=60")
					fmt.Fprint(w, "good")
				})
				s.do("/")
				s.stored("/", "good")
				failing.Store(true)
				time.Sleep(1100 * time.Millisecond)
				if g := s.do("/"); g.StatusCode != want {
					t.Errorf("answered %d, want %d; %s", g.StatusCode, want, g.status())
				}
			})
		})
	}
}
