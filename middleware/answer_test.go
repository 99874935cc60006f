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

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware"
)

// pitfall 38: conditional and range requests don't reach a shared run, and are
// answered from the whole.
func TestPitfall38ConditionsAreAnsweredFromTheWholeResponse(t *testing.T) {
	const etag, modified = `"v1"`, "Sat, 01 Mar 2025 10:00:00 GMT"
	for _, fill := range []string{"plain", "conditional", "range"} {
		t.Run(fill, func(t *testing.T) {
			s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
				for name := range r.Header {
					if strings.HasPrefix(name, "If-") || name == "Range" {
						t.Errorf("the handler was asked with %s", name)
					}
				}
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("ETag", etag)
				w.Header().Set("Last-Modified", modified)
				w.Header().Set("Content-Type", "text/plain")
				fmt.Fprint(w, "0123456789")
			})
			switch fill {
			case "plain":
				s.is(s.do("/"), 200, "0123456789")
			case "conditional":
				s.is(s.do("/", "If-None-Match: "+etag), 304, "")
			case "range":
				s.is(s.do("/", "Range: bytes=2-4"), 206, "234")
			}
			for _, c := range []struct {
				headers []string
				status  int
				body    string
			}{
				{nil, 200, "0123456789"},
				{[]string{"If-None-Match: " + etag}, 304, ""},
				{[]string{`If-None-Match: "x", W/"v1"`}, 304, ""},
				{[]string{"If-None-Match: *"}, 304, ""},
				{[]string{`If-None-Match: "x"`}, 200, "0123456789"},
				{[]string{"If-Modified-Since: " + modified}, 304, ""},
				{[]string{"If-Modified-Since: Sat, 01 Mar 2025 09:59:59 GMT"}, 200, "0123456789"},
				{[]string{`If-None-Match: "x"`, "If-Modified-Since: " + modified}, 200, "0123456789"},
				{[]string{"Range: bytes=0-3"}, 206, "0123"},
				{[]string{"Range: bytes=-2"}, 206, "89"},
				{[]string{"Range: bytes=50-"}, 416, "*"},
				{[]string{"Range: bytes=0-3", "If-Range: " + etag}, 206, "0123"},
				{[]string{"Range: bytes=0-3", `If-Range: "x"`}, 200, "0123456789"},
				{[]string{"Range: bytes=0-3", "If-None-Match: " + etag}, 304, ""},
			} {
				g := s.do("/", c.headers...)
				s.is(g, c.status, c.body)
				s.hit(g)
				if c.status == 304 && (g.Header.Get("ETag") != etag || g.Header.Get("Cache-Control") == "" || g.Header.Get("Content-Type") != "") {
					t.Errorf("304 with %v", g.Header)
				}
				if c.status == 206 && g.Header.Get("Content-Range") == "" {
					t.Error("206 without Content-Range")
				}
			}
			s.ran(1)
		})
	}
}

// pitfall 38: a HEAD is answered from a stored GET, or by a run of GET that is stored.
func TestPitfall38Head(t *testing.T) {
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("X-Method", r.Method)
		time.Sleep(10 * time.Millisecond)
		if r.Method == "GET" {
			fmt.Fprint(w, "body")
		}
	})
	for _, g := range s.together(20, "HEAD /") { // a herd is one run, of GET
		if s.is(g, 200, ""); g.Header.Get("X-Method") != "GET" {
			t.Error(g.Header)
		}
	}
	s.is(s.do("/"), 200, "body")
	s.is(s.do("/"), 200, "body") // so it is stored
	g := s.do("HEAD /")
	s.is(g, 200, "")
	if s.hit(g); g.Header.Get("X-Method") != "GET" || g.ContentLength != 4 {
		t.Error(g.Header, g.ContentLength)
	}
	s.ran(1)
	g = s.do("HEAD /", "Cache-Control: no-store")
	if s.is(g, 200, ""); g.Header.Get("X-Method") != "GET" {
		t.Error(g.Header)
	}
}

// A route of HEAD alone may have a handler that makes no page.
func TestRouteOfHeadAloneMakesNoPage(t *testing.T) {
	m, err := middleware.New(newStore(t), middleware.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	mux := http.NewServeMux()
	mux.Handle("GET /page", m.Wrap(number()))
	mux.Handle("HEAD /page", m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Method", r.Method) })))
	for _, what := range []string{"HEAD /page", "GET /page", "HEAD /page"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, request(what))
		if want := map[string]string{"GET /page": "run 1"}[what]; w.Code != 200 || w.Body.String() != want {
			t.Errorf("%s: %d %q, want %q; %s", what, w.Code, w.Body, want, w.Header().Get("Cache-Status"))
		}
	}
}

func TestRequestDirectives(t *testing.T) {
	s := open(t, middleware.Options{}, saying(number(), "Cache-Control: max-age=60"))
	s.is(s.do("/", "Cache-Control: only-if-cached"), 504, "*")
	s.ran(0)
	s.is(s.do("/"), 200, "run 1")
	s.is(s.do("/"), 200, "run 1") // and so it is stored: the first client needn't wait for that
	s.is(s.do("/", "Cache-Control: only-if-cached"), 200, "run 1")
	s.is(s.do("/", "Cache-Control: min-fresh=10"), 200, "run 1")
	s.is(s.do("/", "Cache-Control: no-cache"), 200, "run 2")
	s.stored("/", "run 2")
	s.is(s.do("/"), 200, "run 2")
	s.is(s.do("/", "Pragma: no-cache"), 200, "run 3")
	s.stored("/", "run 3")
	s.is(s.do("/", "Cache-Control: min-fresh=100"), 200, "run 4")
	s.is(s.do("/new", "Cache-Control: no-store"), 200, "run 5")
	s.is(s.do("/new"), 200, "run 6")
	s.is(s.do("/new"), 200, "run 6")
	s.is(s.do("/new", "Cache-Control: no-store"), 200, "run 6")

	s = open(t, middleware.Options{IgnoreRequestDirectives: true}, saying(number(), "Cache-Control: max-age=60"))
	s.do("/")
	s.is(s.do("/", "Cache-Control: no-cache"), 200, "run 1")
	s.is(s.do("/", "Cache-Control: max-age=0"), 200, "run 1")
}

// An origin is a handler with a status, a Cache-Control and an ETag that a test can
// change. It answers conditions.
type origin struct {
	status     atomic.Int32
	cc, etag   atomic.Pointer[string]
	validated  atomic.Int32
	runs       atomic.Int32
	panicsWith atomic.Pointer[string]
}

func newOrigin(cc, etag string) *origin {
	o := &origin{}
	o.status.Store(200)
	o.cc.Store(&cc)
	o.etag.Store(&etag)
	return o
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := o.runs.Add(1)
	if p := o.panicsWith.Load(); p != nil {
		panic(*p)
	}
	w.Header().Set("X-Run", fmt.Sprint(n))
	if cc := *o.cc.Load(); cc != "" {
		w.Header().Set("Cache-Control", cc)
	}
	if etag := *o.etag.Load(); etag != "" {
		w.Header().Set("ETag", etag)
		if r.Header.Get("If-None-Match") == etag {
			o.validated.Add(1)
			w.WriteHeader(304)
			return
		}
	}
	w.WriteHeader(int(o.status.Load()))
	fmt.Fprintf(w, "run %d", n)
}

// A response that has to be validated before each use is, and its body isn't made
// again.
func TestNoCacheIsValidatedEachTime(t *testing.T) {
	for _, cc := range []string{"no-cache", "max-age=0", ""} {
		o := newOrigin(cc, `"v"`)
		s := open(t, middleware.Options{}, o.ServeHTTP)
		for i := range 3 {
			g := s.do("/")
			s.is(g, 200, "run 1")
			if g.Header.Get("X-Run") != fmt.Sprint(i+1) {
				t.Errorf("%q: header of run %s", cc, g.Header.Get("X-Run"))
			}
		}
		if n := o.validated.Load(); n != 2 {
			t.Errorf("%q: validated %d times", cc, n)
		}
		etag := `"w"`
		o.etag.Store(&etag)
		s.is(s.do("/"), 200, "run 4")
	}
}

func TestStaleResponseIsValidated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin("max-age=1", `"v"`)
		s := openInBubble(t, middleware.Options{}, o.ServeHTTP)
		s.is(s.do("/"), 200, "run 1")
		time.Sleep(1100 * time.Millisecond)
		g := s.do("/")
		s.is(g, 200, "run 1")
		if !strings.Contains(g.status(), "fwd=stale;fwd-status=304;stored") {
			t.Error(g.status())
		}
		s.hit(s.do("/"))
		if o.validated.Load() != 1 || o.runs.Load() != 2 {
			t.Errorf("%d runs, %d validated", o.runs.Load(), o.validated.Load())
		}
	})
}

// The reason for a run doesn't depend on its answer.
func TestStaleResponseIsSaidToBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, vary := range []string{"", "Accept"} {
			var n atomic.Int32
			s := openInBubble(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=1")
				w.Header().Set("ETag", fmt.Sprintf(`"%d"`, n.Add(1)))
				if vary != "" {
					w.Header().Set("Vary", vary)
				}
				if n.Load() > 2 {
					w.WriteHeader(500)
				}
				fmt.Fprint(w, n.Load())
			})
			s.is(s.do("/"), 200, "1")
			s.stored("/", "1")
			for i, status := range []int{200, 500} {
				time.Sleep(1100 * time.Millisecond)
				g := s.do("/")
				if s.is(g, status, fmt.Sprint(i+2)); !strings.Contains(g.status(), "fwd=stale") {
					t.Errorf("%d, Vary %q: %s", status, vary, g.status())
				}
				s.settled()
			}
		}
	})
}

// pitfall 39: a response that forbids stale is obeyed, against the options.
func TestPitfall39StaleIsForbidden(t *testing.T) {
	for cc, stale := range map[string]bool{
		"max-age=1":                            true,
		"max-age=1, must-revalidate":           false,
		"max-age=1, proxy-revalidate":          false,
		"s-maxage=1":                           false,
		"max-age=1, stale-while-revalidate=60": true,
		"max-age=1, stale-while-revalidate=60, must-revalidate":   false,
		"max-age=1, stale-while-revalidate=0, stale-if-error=0":   false,
		"s-maxage=1, stale-while-revalidate=60, stale-if-error=9": false,
	} {
		t.Run(cc, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, etag := range []string{"", `"v"`} {
					o := newOrigin(cc, etag)
					s := openInBubble(t, middleware.Options{Stale: time.Hour}, o.ServeHTTP)
					s.do("/")
					time.Sleep(1100 * time.Millisecond)
					other := `"w"`
					if etag != "" {
						o.etag.Store(&other)
					}
					if g := s.do("/"); (g.body == "run 1") != stale {
						t.Errorf("etag %q: %q, %s", etag, g.body, g.status())
					}
				}
			})
		})
	}
}

// A refresh in the background keeps no request waiting, however soon its header is
// there.
func TestStaleResponseDoesNotWaitForItsRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		s := openInBubble(t, middleware.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=0, stale-while-revalidate=60")
			n := runs.Add(1)
			w.(http.Flusher).Flush()
			if n > 1 {
				time.Sleep(5 * time.Millisecond)
			}
			fmt.Fprintf(w, "run %d", n)
		})
		eventually(t, "the page is stored", func() bool { return strings.Contains(s.do("/").status(), ";hit") })
		for range 100 { // it takes luck to come between
			time.Sleep(2 * time.Millisecond)
			if g := s.do("/"); !strings.Contains(g.status(), ";hit") {
				t.Fatalf("%q, %s", g.body, g.status())
			}
		}
	})
}

// The fields of a 304 replace stored ones, and the Date of a renewed page is
// known from then on.
func TestRenewedResponseIsStoredAsANewOne(t *testing.T) {
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"a"`)
		if r.Header.Get("If-None-Match") != "" {
			w.Header().Set("Cache-Control", `max-age=60, no-cache="X-Name"`)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Cache-Control", "max-age=0")
		w.Header().Set("Date", "Thu, 01 Jan 2026 00:00:00 GMT")
		w.Header().Set("X-Name", "alice")
		fmt.Fprint(w, "body")
	})
	s.do("/")
	eventually(t, "a validation", func() bool { return strings.Contains(s.do("/").status(), "fwd-status=304") })
	g := s.do("/")
	s.is(g, 200, "body")
	s.hit(g)
	if g.Header.Get("X-Name") != "" {
		t.Errorf("%v", g.Header)
	}
	date := g.Header.Get("Date")
	eventually(t, "a second has passed", func() bool { g = s.do("/"); return g.Header.Get("Age") > "0" })
	if g.Header.Get("Date") != date {
		t.Errorf("Date of a hit: %s, then %s", date, g.Header.Get("Date"))
	}
}

// pitfall 38: a precondition that fails is the handler's to answer, whether or not
// something is stored, or may be.
func TestPitfall38PreconditionsAreTheHandlers(t *testing.T) {
	modified := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for _, cc := range []string{"max-age=60", "private", "no-cache", "no-store"} {
		s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", cc)
			w.Header().Set("ETag", `"a"`)
			http.ServeContent(w, r, "a.txt", modified, strings.NewReader("whole"))
		})
		for range 2 { // before it is stored, and after
			s.is(s.do("/", `If-Match: "b"`), 412, "")
			s.is(s.do("/", `If-Match: "b"`, "Range: bytes=0-1"), 412, "")
			s.is(s.do("/", "If-Unmodified-Since: Thu, 01 Jan 2026 00:00:00 GMT"), 412, "")
			s.is(s.do("/", `If-Match: "b"`, "Authorization: a"), 412, "")
			s.is(s.do("/", `If-Match: "a"`, "Range: bytes=0-1"), 206, "wh")
			s.is(s.do("/", `If-Match: "b", "a"`), 200, "whole")
			s.is(s.do("/"), 200, "whole")
		}
	}
}

// pitfall 39: CDN-Cache-Control outranks Cache-Control.
func TestPitfall39TargetedCacheControl(t *testing.T) {
	s := open(t, middleware.Options{}, saying(number(), "Cache-Control: no-store", "CDN-Cache-Control: max-age=60"))
	s.do("/")
	s.is(s.do("/"), 200, "run 1")
	s = open(t, middleware.Options{}, saying(number(), "Cache-Control: max-age=60", "CDN-Cache-Control: no-store"))
	s.do("/")
	s.is(s.do("/"), 200, "run 2")
}

func TestStaleWhileRevalidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin("max-age=1, stale-while-revalidate=60", "")
		s := openInBubble(t, middleware.Options{}, o.ServeHTTP)
		s.is(s.do("/"), 200, "run 1")
		time.Sleep(1100 * time.Millisecond)
		g := s.do("/")
		if s.is(g, 200, "run 1"); !strings.Contains(g.status(), "hit;ttl=-") {
			t.Error(g.status())
		}
		eventually(t, "the refresh", func() bool { return s.do("/").body != "run 1" })
	})
}

func TestStaleIfError(t *testing.T) {
	panics := "boom"
	for name, fail := range map[string]func(o *origin){
		"500":   func(o *origin) { o.status.Store(500) },
		"panic": func(o *origin) { o.panicsWith.Store(&panics) },
	} {
		for _, cc := range []string{"max-age=1, stale-if-error=60", "max-age=1, stale-while-revalidate=1, stale-if-error=60"} {
			t.Run(name+" "+cc, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := newOrigin(cc, "")
					s := openInBubble(t, middleware.Options{}, o.ServeHTTP)
					s.is(s.do("/"), 200, "run 1")
					time.Sleep(2100 * time.Millisecond)
					fail(o)
					for _, g := range s.together(20, "/") {
						s.is(g, 200, "run 1")
					}
					if n := o.runs.Load(); n > 4 {
						t.Errorf("%d runs that fail", n-1)
					}
					o.status.Store(200)
					o.panicsWith.Store(nil)
					eventually(t, "the end of the trouble", func() bool { return s.do("/").body != "run 1" })
				})
			})
		}
	}
}

func TestStaleIfErrorOptionServesStaleOnlyOnErrors(t *testing.T) {
	for name, opts := range map[string]middleware.Options{
		"option": {StaleIfError: time.Hour},
		"rule":   {Rules: []middleware.Rule{{Pattern: "/", StaleIfError: time.Hour}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrigin("max-age=1", "")
				s := openInBubble(t, opts, o.ServeHTTP)
				s.is(s.do("/"), 200, "run 1")
				time.Sleep(2 * time.Second)
				s.is(s.do("/"), 200, "run 2")
				time.Sleep(59 * time.Minute)
				o.status.Store(503)
				s.is(s.do("/"), 200, "run 2")
				time.Sleep(2 * time.Minute)
				if g := s.do("/"); g.StatusCode != 503 {
					t.Errorf("after its time the stale page is served: %d %q", g.StatusCode, g.body)
				}
			})
		})
	}
}

// A failure is shared with requests that wait for it, and with none later.
func TestServerErrorsAreSharedWithWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 50
		var s *site
		var came atomic.Int32
		count := middleware.Rule{Match: func(*http.Request) bool { came.Add(1); return false }}
		n := number()
		release := make(chan struct{})
		s = openInBubble(t, middleware.Options{TTL: time.Minute, Rules: []middleware.Rule{count}}, func(w http.ResponseWriter, r *http.Request) {
			<-release
			w.WriteHeader(500)
			n(w, r)
		})
		go func() {
			eventually(t, "all are there", func() bool { return came.Load() == requests && s.runs.Load() > 0 })
			synctest.Wait()
			close(release)
		}()
		for _, g := range s.together(requests, "/") {
			if g.StatusCode != 500 || !strings.HasPrefix(g.body, "run") {
				t.Errorf("%d %s", g.StatusCode, g.body)
			}
		}
		if got := s.runs.Load(); got > requests/5 {
			t.Errorf("%d runs", got)
		}
	})
}

// Nor is a failure stored that varies, or said to be.
func TestServerErrorsThatVaryAreNotStored(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept-Encoding")
		http.Error(w, "failed", 500)
	})
	for range 3 {
		if g := s.do("/"); g.StatusCode != 500 || strings.Contains(g.status(), "stored") {
			t.Errorf("%d, %s", g.StatusCode, g.status())
		}
	}
}

func TestAgeAddsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openInBubble(t, middleware.Options{}, saying(number(), "Cache-Control: max-age=100", "Age: 40"))
		s.do("/")
		time.Sleep(1100 * time.Millisecond)
		g := s.do("/")
		var age, ttl int
		_, err := fmt.Sscanf(g.Header.Get("Age")+" "+g.status(), "%d http;hit;ttl=%d", &age, &ttl)
		if err != nil || age < 41 || age+ttl < 98 || age+ttl > 100 {
			t.Error(g.Header.Get("Age"), g.status(), err)
		}
	})
}

func TestMakeETag(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute, MakeETag: true}, number())
	s.do("/")
	tag := s.do("/").Header.Get("ETag")
	if tag == "" {
		t.Fatal("no ETag")
	}
	s.is(s.do("/", "If-None-Match: "+tag), 304, "")
	s.ran(1)
}

// A tag that was made here is nothing to the handler, which answers 304 by the date.
func TestMadeETagDoesNotHideLastModified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		modified := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
		s := openInBubble(t, middleware.Options{MakeETag: true}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=1")
			http.ServeContent(w, r, "a.txt", modified, strings.NewReader("whole"))
		})
		s.do("/")
		s.stored("/", "whole")
		tag := s.do("/").Header.Get("ETag")
		for range 2 {
			time.Sleep(1100 * time.Millisecond)
			g := s.do("/")
			if s.is(g, 200, "whole"); !strings.Contains(g.status(), "fwd-status=304") || g.Header.Get("ETag") != tag || tag == "" {
				t.Errorf("%s, %v", g.status(), g.Header)
			}
			s.settled()
		}
	})
}

func TestCompress(t *testing.T) {
	body := strings.Repeat("text ", 1000)
	s := open(t, middleware.Options{TTL: time.Minute, Compress: true}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Error("the handler was asked for an encoding")
		}
		w.Header().Set("ETag", `"v"`)
		fmt.Fprint(w, body)
	})
	s.is(s.do("/", "Accept-Encoding: gzip"), 200, body)
	g := s.do("/", "Accept-Encoding: br, gzip;q=0.5")
	if s.hit(g); g.Header.Get("Content-Encoding") != "gzip" || len(g.body) > len(body)/10 || g.Header.Get("ETag") != `W/"v"` || g.Header.Get("Vary") != "Accept-Encoding" {
		t.Errorf("%d bytes, %v", len(g.body), g.Header)
	}
	for _, plain := range []string{"identity", "gzip;q=0", "br"} {
		g := s.do("/", "Accept-Encoding: "+plain)
		if s.is(g, 200, body); g.Header.Get("Content-Encoding") != "" || g.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: %v", plain, g.Header)
		}
	}
	s.is(s.do("/", "Accept-Encoding: gzip", `If-None-Match: W/"v"`), 304, "")
	s.is(s.do("/", "Accept-Encoding: gzip", "Range: bytes=0-3"), 206, "text")
	s.ran(1)
}

// A 304 may forbid a use that was allowed when the page was stored.
func TestNotModifiedMayForbidCompression(t *testing.T) {
	body := strings.Repeat("text ", 1000)
	for _, says := range []string{"Cache-Control: no-cache, no-transform", "Repr-Digest: sha-256=:hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGfvtqTRcMqMYk=:"} {
		s := open(t, middleware.Options{Compress: true}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("ETag", `"v"`)
			if r.Header.Get("If-None-Match") == "" {
				fmt.Fprint(w, body)
				return
			}
			name, value, _ := strings.Cut(says, ": ")
			w.Header().Set(name, value)
			w.WriteHeader(http.StatusNotModified)
		})
		s.is(s.do("/"), 200, body)
		g := s.do("/", "Accept-Encoding: gzip")
		if s.is(g, 200, body); g.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %v", says, g.Header)
		}
	}
}

// A part of a response has no digest of the whole content. A digest of the
// representation goes with any part.
func TestPartsHaveNoDigestOfTheWhole(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-MD5", "eB5eJF1ptWaXm4bijSPyxw==")
		w.Header().Set("Content-Digest", "sha-256=:hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGfvtqTRcMqMYk=:")
		w.Header().Set("Repr-Digest", "sha-256=:hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGfvtqTRcMqMYk=:")
		fmt.Fprint(w, "0123456789")
	})
	s.do("/")
	s.stored("/", "0123456789")
	for _, span := range []string{"bytes=2-4", "bytes=0-1,8-9", "bytes=20-"} {
		h := s.do("/", "Range: "+span).Header
		if h["Content-Range"] == nil && !strings.Contains(h.Get("Content-Type"), "multipart") {
			t.Errorf("%s: no part: %v", span, h)
		}
		if h["Content-Digest"] != nil || h["Content-Md5"] != nil || h["Repr-Digest"] == nil {
			t.Errorf("%s: %v", span, h)
		}
	}
	if h := s.do("/").Header; h["Content-Digest"] == nil || h["Content-Md5"] == nil {
		t.Errorf("the whole: %v", h)
	}
}

// A digest that the handler sent is of the bytes that clients get.
func TestResponseWithADigestIsNotCompressed(t *testing.T) {
	body := strings.Repeat("text ", 1000)
	s := open(t, middleware.Options{TTL: time.Minute, Compress: true}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(strings.TrimPrefix(r.URL.Path, "/"), "sha-256=:AAAA:")
		fmt.Fprint(w, body)
	})
	for _, name := range []string{"Content-Digest", "Repr-Digest", "Digest", "Content-MD5"} {
		s.do("/" + name)
		s.stored("/"+name, body)
		g := s.do("/"+name, "Accept-Encoding: gzip")
		s.hit(g)
		if s.is(g, 200, body); g.Header.Get("Content-Encoding") != "" || g.Header.Get(name) == "" {
			t.Errorf("%s: %v", name, g.Header)
		}
	}
}

// A handler that makes one as it writes sends it in a trailer.
func TestResponseWithADigestTrailerIsNotCompressed(t *testing.T) {
	body := strings.Repeat("text ", 1000)
	s := open(t, middleware.Options{TTL: time.Minute, Compress: true}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Content-Digest")
		fmt.Fprint(w, body)
		w.Header().Set("Content-Digest", "sha-256=:AAAA:")
	})
	s.do("/")
	s.stored("/", body)
	g := s.do("/", "Accept-Encoding: gzip")
	s.hit(g)
	if s.is(g, 200, body); g.Header.Get("Content-Encoding") != "" || g.Trailer.Get("Content-Digest") == "" {
		t.Errorf("%v, %v", g.Header, g.Trailer)
	}
}

func TestVia(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute, Via: "edge"}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Via"))
	})
	for _, what := range []string{"/", "/", "POST /"} {
		g := s.do(what)
		if s.is(g, 200, "1.1 edge"); g.Header.Get("Via") != "1.1 edge" {
			t.Errorf("%s: %v", what, g.Header)
		}
	}
}

func TestEventsAndStats(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute, ShowKey: true}, number())
	s.do("/")
	var g got
	requests := 1
	eventually(t, "a hit", func() bool { requests++; g = s.do("/"); return strings.Contains(g.status(), ";hit") })
	s.do("POST /x")
	s.do("/c", "Cookie: a=b")
	requests += 2
	if !strings.Contains(g.status(), `key="s http://`) {
		t.Error(g.status())
	}
	eventually(t, "the events", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.events) == requests })
	want := []string{"false uri-miss true ", "true  false ", "false method false ", "false uri-miss false personal"}
	// Those between the first and the hit came before it was stored.
	for i, e := range append(s.events[:1:1], s.events[requests-3:]...) {
		if got := fmt.Sprint(e.Hit, " ", e.Fwd, " ", e.Stored, " ", e.Detail); got != want[i] || e.Status != 200 || e.Bytes == 0 || e.Duration == 0 {
			t.Errorf("%d: %s, want %s; %+v", i, got, want[i], e)
		}
	}
	st := s.m.Stats()
	if st.Requests != uint64(requests) || st.Hits != 1 || st.Forwarded != 2 || st.Bypassed != 1 || st.Stored != 1 {
		t.Errorf("%+v", st)
	}
}

// A handler that breaks off has given no proper response to any client.
func TestBrokenResponsesAreCounted(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "half a page")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	const alone = "Connection: close" // on one that another breaks, a request may never come
	for _, what := range []string{"GET /", "GET /", "POST /"} {
		s.do(what, alone)
	}
	s.do("/", "Cache-Control: no-store", alone)
	s.Close() // and so all are counted
	for _, e := range s.events {
		if e.Err == nil {
			t.Errorf("%s: no error; %+v", e.Request.Method, e)
		}
	}
	if st := s.m.Stats(); st.Requests != 4 || st.Failed != 4 {
		t.Errorf("%+v", st)
	}
}

// The guard is asked until a client can read its own run: that is no error there.
func TestClientsOfTheirOwnRunsAreNoErrors(t *testing.T) {
	const n = 6
	s := open(t, middleware.Options{TTL: time.Minute}, number())
	for i := range n {
		s.do(fmt.Sprint("/", i))
	}
	eventually(t, "the calls", func() bool { g := s.m.Stats().Guard; return g.Fetched+g.Errors.Context == n })
	if g := s.m.Stats().Guard; g.Fetched != n || g.Fetches != n || g.Errors.Context != 0 {
		t.Errorf("of %d runs the guard counts %d fetched, and %+v", n, g.Fetched, g.Errors)
	}
}

func TestPurgeHandler(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute, Near: guard.Near{MaxEntries: 10}}, number())
	s.do("/")
	s.is(s.do("/"), 200, "run 1")
	w := &plainWriter{h: http.Header{}}
	r, _ := http.NewRequest("PURGE", s.URL+"/", nil)
	s.m.PurgeHandler(func(*http.Request) bool { return true }).ServeHTTP(w, r)
	s.is(s.do("/"), 200, "run 2")
}

// A response that needs a validation for each use answers a request that waited
// only if its run began when the request was there.
func TestNoCacheIsSharedWithEarlierRequestsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 20
		var s *site
		var began atomic.Int64 // when the last run did
		step := make(chan struct{})
		s = openInBubble(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			at := time.Now().UnixNano()
			began.Store(at)
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, at))
			<-step
			fmt.Fprint(w, at)
		})
		first := make(chan got)
		go func() { first <- s.do("/") }()
		eventually(t, "the first run", func() bool { return began.Load() != 0 })
		came := time.Now().UnixNano()
		answers := make(chan got, late)
		for range late {
			go func() { answers <- s.do("/") }()
		}
		synctest.Wait() // they wait
		go func() {
			for {
				select {
				case step <- struct{}{}:
				case <-t.Context().Done():
					return
				}
			}
		}()
		<-first
		for range late {
			g := <-answers
			var at int64
			if _, err := fmt.Sscan(g.body, &at); err != nil || at < came {
				t.Errorf("%q was made before the request came (%v)", g.body, err)
			}
		}
		most := int32(late) // on a busy machine some come when others have been answered
		if bounds {
			most = 6
		}
		if n := s.runs.Load(); n > most {
			t.Errorf("%d runs for %d requests", n, late+1)
		}
	})
}
