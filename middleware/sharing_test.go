package middleware_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware"
)

func TestStoredResponseIsServedAgain(t *testing.T) {
	s := open(t, middleware.Options{}, saying(number(), "Cache-Control: max-age=60", "X-Kind: report"))
	first := s.do("/a?x=1&y=2")
	s.is(first, 200, "run 1")
	if want := "http;fwd=uri-miss;stored;ttl="; !strings.HasPrefix(first.status(), want) {
		t.Errorf("%s, want %s", first.status(), want)
	}
	again := s.do("/a?y=2&x=1")
	s.is(again, 200, "run 1")
	s.hit(again)
	if again.Header.Get("X-Kind") != "report" || again.Header.Get("Age") == "" || again.ContentLength != 5 {
		t.Errorf("%v, length %d", again.Header, again.ContentLength)
	}
	s.is(s.do("/a?x=1"), 200, "run 2")
	s.is(s.do("/a?x=1&y=2", "Host: elsewhere"), 200, "run 3")
	s.ran(3)
}

func TestConcurrentRequestsAreOneRun(t *testing.T) {
	const n = 100
	var s *site
	release := make(chan struct{})
	s = open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		<-release
		fmt.Fprint(w, "slow")
	})
	go func() {
		eventually(t, "a run", func() bool { return s.runs.Load() > 0 })
		eventually(t, "all requests wait", func() bool { return s.waiting() >= 1 })
		close(release)
	}()
	for _, g := range s.together(n, "/report") {
		s.is(g, 200, "slow")
	}
	s.ran(1)
}

// waiting is how many flights are under way.
func (s *site) waiting() int { return len(s.m.Stats().Guard.InFlight) }

func TestTTLIsForHandlersThatSayNothing(t *testing.T) {
	o := middleware.Options{
		TTL: time.Minute,
		Rules: []middleware.Rule{
			{Pattern: "/never", Bypass: true},
			{Pattern: "GET /short/{id}", TTL: time.Millisecond},
			{Match: func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, ".none") }},
		},
	}
	n := number()
	s := open(t, o, func(w http.ResponseWriter, r *http.Request) {
		if cc := r.URL.Query().Get("cc"); cc != "" {
			w.Header().Set("Cache-Control", cc)
		}
		n(w, r)
	})
	for path, shared := range map[string]bool{
		"/plain": true, "/never": false, "/x.none": false,
		"/a?cc=private": false, "/a?cc=no-store": false, "/a?cc=max-age=0": false, "/a?cc=max-age=9": true,
	} {
		first := s.do(path).body
		if got := s.do(path).body == first; got != shared {
			t.Errorf("%s: shared: %v", path, got)
		}
	}
	first := s.do("/short/1").body
	eventually(t, "a new run", func() bool { return s.do("/short/1").body != first })
}

func TestErrorsAreNeverStored(t *testing.T) {
	for _, status := range []int{401, 403, 404, 429, 500, 503} {
		n := number()
		s := open(t, middleware.Options{TTL: time.Minute, NegativeTTL: time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			n(w, r)
		})
		first := s.do("/").body
		eventually(t, fmt.Sprint(status), func() bool { return s.do("/").body != first })
	}
}

// pitfall 33: no client gets another one's page. Each property by which a client
// may be known is tried, with and without statements of the handler about it.
func TestPitfall33PagesStayWithTheirUsers(t *testing.T) {
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
	for _, ttl := range []time.Duration{0, time.Minute} {
		for _, cc := range []string{"", "private", "no-store", "max-age=60", "private, max-age=60", "no-cache"} {
			for _, setCookie := range []bool{false, true} {
				t.Run(fmt.Sprintf("ttl %v, %q, Set-Cookie %v", ttl, cc, setCookie), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := openInBubble(t, middleware.Options{TTL: ttl, StoreSetCookie: true}, func(w http.ResponseWriter, r *http.Request) {
							if cc != "" {
								w.Header().Set("Cache-Control", cc)
							}
							w.Header().Set("ETag", `"one for all"`)
							if setCookie {
								http.SetCookie(w, &http.Cookie{Name: "session", Value: who(r)})
							}
							time.Sleep(time.Millisecond) // so that others wait
							fmt.Fprint(w, "page of ", who(r))
						})
						var wg sync.WaitGroup
						for i := range 60 {
							wg.Go(func() {
								user := fmt.Sprint("u", i%20)
								var g got
								switch i % 3 {
								case 0:
									g = s.do("/", "Cookie: user="+user)
								case 1:
									g = s.do("/", "Authorization: "+basic(user))
								default:
									g = s.do("/", "X-Api-Key: "+user)
								}
								s.is(g, 200, "page of "+user)
								if setCookie && !strings.HasPrefix(g.Header.Get("Set-Cookie"), "session="+user) {
									t.Errorf("%s got %s", user, g.Header.Get("Set-Cookie"))
								}
							})
						}
						wg.Wait()
						s.is(s.do("/"), 200, "page of nobody")
					})
				})
			}
		}
	}
}

// pitfall 33: a page that has to be validated before each use is not for waiters with
// credentials: a handler may tell them apart by that validation alone.
func TestPitfall33CredentialedRequestsDoNotShareUnvalidatedPages(t *testing.T) {
	const users = 10
	for _, cc := range []string{
		"max-age=0, must-revalidate", "no-cache, must-revalidate", "public, no-cache", "public, max-age=0, must-revalidate", "s-maxage=0", "s-maxage=x",
		"public, max-age=0",
	} {
		for _, header := range []string{"Cookie", "Authorization"} {
			t.Run(cc+", "+header, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := openInBubble(t, middleware.Options{Stale: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
						user := r.Header.Get(header)
						w.Header().Set("Cache-Control", cc)
						w.Header().Set("ETag", `"`+user+`"`)
						time.Sleep(5 * time.Millisecond) // so that others wait
						fmt.Fprint(w, user)
					})
					var wg sync.WaitGroup
					for i := range users {
						user := fmt.Sprint("u=", i)
						wg.Go(func() {
							s.is(s.do("/", header+": "+user), 200, user)
							s.is(s.do("/", header+": "+user), 200, user)
						})
					}
					wg.Wait()
				})
			})
		}
	}
}

// pitfall 33: nor is a failure, which may have a user's page around it.
func TestPitfall33CredentialedRequestsDoNotShareFailures(t *testing.T) {
	const users = 10
	for _, header := range []string{"Cookie", "Authorization"} {
		for _, cc := range []string{"", "public"} {
			t.Run(header+", "+cc, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := openInBubble(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
						if cc != "" {
							w.Header().Set("Cache-Control", cc)
						}
						time.Sleep(5 * time.Millisecond) // so that others wait
						w.WriteHeader(http.StatusInternalServerError)
						fmt.Fprint(w, r.Header.Get(header))
					})
					var wg sync.WaitGroup
					for i := range users {
						user := fmt.Sprint("u=", i)
						wg.Go(func() { s.is(s.do("/", header+": "+user), http.StatusInternalServerError, user) })
					}
					wg.Wait()
				})
			})
		}
	}
}

func basic(user string) string {
	r, _ := http.NewRequest("GET", "/", nil)
	r.SetBasicAuth(user, "")
	return r.Header.Get("Authorization")
}

// pitfall 33: Set-Cookie needs the option, and public or s-maxage.
func TestPitfall33SetCookieIsSharedOnlyIfAskedFor(t *testing.T) {
	for _, c := range []struct {
		cc     string
		option bool
		shared bool
	}{
		{"max-age=60", false, false},
		{"public, max-age=60", false, false},
		{"max-age=60", true, false},
		{"public, max-age=60", true, true},
		{"s-maxage=60", true, true},
		{"private, s-maxage=60", true, false},
	} {
		s := open(t, middleware.Options{StoreSetCookie: c.option}, saying(number(), "Cache-Control: "+c.cc, "Set-Cookie: a=b"))
		s.do("/")
		g := s.do("/")
		if shared := g.body == "run 1"; shared != c.shared || g.Header.Get("Set-Cookie") != "a=b" {
			t.Errorf("%+v: %q, %s", c, g.body, g.status())
		}
	}
}

func TestCredentialedRequestsShareOnlyPublicPages(t *testing.T) {
	for cc, shared := range map[string]bool{
		"max-age=60": false, "public, max-age=60": true, "s-maxage=60": true, "max-age=60, must-revalidate": false, "no-cache, max-age=60": false,
	} {
		for _, other := range []string{"Authorization: b", "Cookie: b=c", "X-Api-Key: b"} {
			s := open(t, middleware.Options{}, saying(number(), "Cache-Control: "+cc))
			s.do("/", "Authorization: a")
			if got := s.do("/", other).body == "run 1"; got != shared {
				t.Errorf("%s, %s: shared %v", cc, other, got)
			}
		}
	}
}

// A cookie counts as personal unless the handler says public, or Cookies says
// that it doesn't matter, or which ones do.
func TestCookies(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", r.URL.Query().Get("cc"))
		fmt.Fprint(w, r.Header.Get("Cookie"))
	}
	for _, c := range []struct {
		list           []string
		cc             string
		first, second  string // cookies
		saw, sawSecond string // by the handler
	}{
		{nil, "max-age=60", "a=1", "a=2", "a=1", "a=2"},
		{nil, "public,max-age=60", "a=1", "a=2", "a=1", "a=1"},
		{[]string{}, "max-age=60", "a=1", "a=2", "", ""},
		{[]string{"lang"}, "max-age=60", "a=1; lang=de", "a=2; lang=de", "lang=de", "lang=de"},
		{[]string{"lang"}, "max-age=60", "lang=de; a=1", "lang=en", "lang=de", "lang=en"},
	} {
		s := open(t, middleware.Options{Cookies: c.list}, echo)
		q := "/?cc=" + c.cc
		s.is(s.do(q, "Cookie: "+c.first), 200, c.saw)
		s.is(s.do(q, "Cookie: "+c.second), 200, c.sawSecond)
	}
}

// pitfall 34: requests for a page that may not be shared do not queue, neither those that
// wait already nor those that come.
func TestPitfall34PrivateResponsesRunSideBySide(t *testing.T) {
	const n = 20
	var inside atomic.Int32
	all := make(chan struct{})
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private")
		w.(http.Flusher).Flush()
		if inside.Add(1) == n {
			close(all)
		}
		select {
		case <-all:
		case <-time.After(hangs):
			t.Error("not all requests are in the handler")
		}
		fmt.Fprint(w, "mine")
	})
	for _, g := range s.together(n, "/", "Cookie: a=b") {
		s.is(g, 200, "mine")
	}
	s.ran(n)
}

// pitfall 34: a marked page is shared again after the first answer that may be.
func TestPitfall34MarkEndsWithASharedAnswer(t *testing.T) {
	var open_ atomic.Bool
	n := number()
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private")
		if open_.Load() {
			w.Header().Set("Cache-Control", "max-age=60")
		}
		n(w, r)
	})
	s.is(s.do("/"), 200, "run 1")
	s.is(s.do("/"), 200, "run 2")
	open_.Store(true)
	s.is(s.do("/"), 200, "run 3") // ends the mark
	s.is(s.do("/"), 200, "run 4") // holds the lease
	g := s.do("/")
	s.is(g, 200, "run 4")
	s.hit(g)
}

// pitfall 35: Vary.
func TestPitfall35Vary(t *testing.T) {
	s := open(t, middleware.Options{MaxVariants: 3}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Accept-Language")
		fmt.Fprint(w, r.Header.Get("Accept-Language"))
	})
	for range 2 {
		for _, lang := range []string{"de", "en", "fr"} {
			s.is(s.do("/", "Accept-Language: "+lang), 200, lang)
		}
	}
	s.ran(3)
	s.hit(s.do("/", "Accept-Language: de"))
	eventually(t, "the index is full", func() bool { return s.m.Variants(t.Context(), s.URL+"/") == 3 })
	s.hit(s.do("/", "Accept-Language: de"))
	s.do("/", "Accept-Language: it") // takes the place of a variant
	s.hit(s.do("/", "Accept-Language: it"))
	s.hit(s.do("/", "Accept-Language: de")) // which was used
	if n := s.m.Variants(t.Context(), s.URL+"/"); n != 3 {
		t.Errorf("%d variants", n)
	}
}

// pitfall 35: variants that are stored at the same time are all counted.
func TestPitfall35VariantsAreCountedOneByOne(t *testing.T) {
	const max = 8
	s := open(t, middleware.Options{MaxVariants: max}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Accept-Language")
		fmt.Fprint(w, r.Header.Get("Accept-Language"))
	})
	s.do("/") // the index
	var wg sync.WaitGroup
	for i := range max - 1 {
		wg.Go(func() { s.do("/", fmt.Sprint("Accept-Language: l", i)) })
	}
	wg.Wait()
	eventually(t, "all are counted", func() bool { return s.m.Variants(t.Context(), s.URL+"/") == max })
}

// pitfall 35: a request doesn't wait for a variant that isn't its own.
func TestPitfall35VariantsDoNotWaitForEachOther(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Accept-Language")
		w.(http.Flusher).Flush()
		if r.Header.Get("Accept-Language") == "slow" {
			<-release
		}
		fmt.Fprint(w, r.Header.Get("Accept-Language"))
	})
	go s.do("/", "Accept-Language: slow")
	eventually(t, "the slow run", func() bool { return s.runs.Load() == 1 })
	s.is(s.do("/", "Accept-Language: quick"), 200, "quick")
}

// pitfall 35: a response with Vary: * is not stored.
func TestPitfall35VaryStarIsNotStored(t *testing.T) {
	s := open(t, middleware.Options{}, saying(number(), "Cache-Control: max-age=60", "Vary: *"))
	s.do("/")
	s.is(s.do("/"), 200, "run 2")
}

// A header that is not forwarded reaches the handler once it is known that
// responses vary on it: it is part of the key then.
func TestVaryOnAHeaderThatWasWithheld(t *testing.T) {
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Origin")
		fmt.Fprint(w, "for ", r.Header.Get("Origin"))
	})
	for range 2 {
		s.is(s.do("/", "Origin: https://a.example"), 200, "for https://a.example")
		s.is(s.do("/", "Origin: https://b.example"), 200, "for https://b.example")
		s.is(s.do("/"), 200, "for ")
	}
	s.ran(3)
}

// So is a private response, or one that varies on more than was known: its client sent
// the header, and gets no response for requests without it.
func TestPrivateRunWithoutAVariedHeaderAnswersNotItsClient(t *testing.T) {
	for name, says := range map[string]string{"no-store": "no-store", "of no use": "", "private": "private, max-age=60", "more": "max-age=60"} {
		for _, who := range []string{"Accept: x", "Cookie: some=body"} {
			s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", says)
				w.Header().Set("Vary", "Accept-Language, Origin")
				if name == "more" && r.Header.Get("Accept-Language") == "" {
					w.Header().Set("Vary", "Accept-Language")
				}
				fmt.Fprint(w, "for ", r.Header.Get("Origin"))
			})
			s.is(s.do("/", who), 200, "for ")
			for _, origin := range []string{"https://a.example", "https://b.example"} {
				s.is(s.do("/?"+origin, who, "Accept-Language: de", "Origin: "+origin), 200, "for "+origin)
				s.is(s.do("/", who, "Accept-Language: de", "Origin: "+origin), 200, "for "+origin)
			}
		}
	}
}

// Nor does a 304 that varies on more than the page did.
func TestNotModifiedThatVariesOnAWithheldHeader(t *testing.T) {
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", `"`+r.Header.Get("Origin")+`"`)
		if r.Header.Get("If-None-Match") == w.Header().Get("ETag") {
			w.Header().Set("Vary", "Origin")
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, "for ", r.Header.Get("Origin"))
	})
	s.is(s.do("/"), 200, "for ")
	s.is(s.do("/", "Origin: https://a.example"), 200, "for https://a.example")
}

// A page may vary on Host, though each host is a page of its own already.
func TestVaryOnHost(t *testing.T) {
	s := open(t, middleware.Options{}, saying(number(), "Cache-Control: max-age=60", "Vary: Host"))
	s.is(s.do("/", "Host: a.example"), 200, "run 1")
	for _, host := range []string{"a.example", "A.example:80"} {
		g := s.do("/", "Host: "+host)
		s.is(g, 200, "run 1")
		s.hit(g)
	}
	s.is(s.do("/", "Host: b.example"), 200, "run 2")
}

// pitfall 36: input that isn't part of the key doesn't reach a shared run.
func TestPitfall36UnkeyedInputDoesNotReachSharedRuns(t *testing.T) {
	report := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintf(w, "%v %q %q %q %q %q", middleware.Shared(r.Context()), r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-Tenant"), r.URL.RawQuery, r.RemoteAddr, r.RequestURI)
	}
	s := open(t, middleware.Options{Headers: []string{"x-tenant"}, Query: []string{"id"}}, report)
	want := `true "" "t" "id=1" "" "/?id=1"`
	s.is(s.do("/?utm=evil&id=1", "X-Forwarded-Host: evil", "X-Tenant: t"), 200, want)
	s.is(s.do("/?id=1", "X-Tenant: t"), 200, want)
	s.ran(1)
	s.is(s.do("/?id=1", "X-Tenant: other"), 200, strings.Replace(want, `"t"`, `"other"`, 1))
	s.is(s.do("/?id=2", "X-Tenant: t"), 200, strings.ReplaceAll(want, "id=1", "id=2"))
}

// pitfall 36: a client can't have the answer to a request without a header stored
// for those that have it, by naming the header in Connection.
func TestPitfall36HopByHopFieldsAreNoPartOfTheRequest(t *testing.T) {
	proxy := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Accept-Language")
		for name := range strings.SplitSeq(r.Header.Get("Connection"), ",") {
			r.Header.Del(strings.TrimSpace(name)) // as a proxy does
		}
		fmt.Fprint(w, r.Header.Get("X-Color"), r.Header.Get("Accept-Language"))
	}
	for _, o := range []middleware.Options{
		{},
		{Forward: []string{middleware.AllHeaders}},
		{Headers: []string{"X-Color"}},
		{Key: func(r *http.Request) string { return r.Header.Get("X-Color") }, Forward: []string{middleware.AllHeaders}},
	} {
		s := open(t, o, proxy)
		color := map[bool]string{true: "t"}[o.Headers != nil || o.Forward != nil]
		for range 2 {
			s.is(s.do("/", "Connection: x-color, Accept-Language", "X-Color: t", "Accept-Language: de"), 200, "")
		}
		s.is(s.do("/", "X-Color: t", "Accept-Language: de"), 200, color+"de")
		s.is(s.do("/", "Connection: keep-alive", "X-Color: t", "Accept-Language: de"), 200, color+"de")
	}
}

// pitfall 36: the many ways to write a request's target are the same to a shared
// run, or have no part in one.
func TestPitfall36TargetSpellingsDoNotReachSharedRuns(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q %q %q %q %q", r.URL.Opaque, r.URL.Path, r.URL.RawPath, r.Host, r.RequestURI)
	}
	for line, shared := range map[string]string{
		"GET http://a.example HTTP/1.1":        "/",
		"GET http://A.example:80? HTTP/1.1":    "/",
		"GET http://b.example/ HTTP/1.1":       "/",
		"GET http:evil HTTP/1.1":               "",
		"GET http:///evil HTTP/1.1":            "",
		"GET https://a.example/x HTTP/1.1":     "",
		"GET ftp://a.example/x HTTP/1.1":       "",
		"GET http://u:p@a.example/x HTTP/1.1":  "/x",
		"GET http://a.example/x#evil HTTP/1.1": "",
		"GET /x|y HTTP/1.1":                    "/x%7Cy",
		"GET /x HTTP/1.0":                      "/x",
	} {
		s := open(t, middleware.Options{TTL: time.Minute, Host: "a.example"}, echo)
		first := s.raw(line, "Host: a.example")
		if first.err != nil {
			t.Errorf("%s: %v", line, first.err)
			continue
		}
		if shared == "" {
			shared = "/x"
			s.runs.Store(0)
		}
		again := s.raw("GET "+shared+" HTTP/1.1", "Host: a.example")
		s.ran(1)
		if want := fmt.Sprintf("%q %q %q %q %q", "", strings.ReplaceAll(shared, "%7C", "|"), "", "a.example", shared); again.body != want {
			t.Errorf("%s: then %s for %s, want %s", line, again.body, shared, want)
		}
	}
}

// No purge names such a target: the URL of a purge ends before its fragment.
func TestTargetWithAFragmentIsNotStored(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute}, number())
	for range 2 {
		s.raw("GET /?x=1#y HTTP/1.1", "Host: a.example")
	}
	s.ran(2)
}

// The values of a header are not taken for the next one's name.
func TestKeyHeadersDoNotRunIntoEachOther(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute, Headers: []string{"X-A", "X-B"}}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header["X-A"], r.Header["X-B"])
	})
	s.is(s.do("/", "X-A: X-B", "X-A: x"), 200, "[X-B x] []")
	s.is(s.do("/", "X-B: x", "X-B: X-B"), 200, "[] [x X-B]")
}

func TestHostIsTheSites(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute, Host: "site.example"}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) })
	s.is(s.do("/", "Host: evil.example"), 200, "site.example")
	s.hit(s.do("/"))
	if err := s.m.Purge(t.Context(), "http://any.example/"); err != nil {
		t.Fatal(err)
	}
	s.do("/")
	s.ran(2)
}

func TestKeyTellsRequestsApart(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute, Key: func(r *http.Request) string { return r.Header.Get("X-Shop") }}, number())
	a, b := s.do("/", "X-Shop: a").body, s.do("/", "X-Shop: b").body
	if a == b || s.do("/", "X-Shop: a").body != a {
		t.Errorf("%s, %s", a, b)
	}
	s.do("POST /")
	if s.do("/", "X-Shop: a").body == a || s.do("/", "X-Shop: b").body == b {
		t.Error("not everything was forgotten")
	}
}

// pitfall 41: unsafe methods are never collapsed, and invalidate.
func TestPitfall41UnsafeMethods(t *testing.T) {
	n := number()
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != "GET" && r.URL.Path == "/fails":
			w.WriteHeader(500)
		case r.Method == "POST":
			w.Header().Set("Location", "/made")
			w.Header().Set("Content-Location", "http://elsewhere.example/other")
			w.WriteHeader(201)
		}
		n(w, r)
	})
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "QUUX"} {
		for _, path := range []string{"/", "/made"} {
			before := s.do(path).body
			s.do(method + " /")
			changed := s.do(path).body != before
			if want := path == "/" || method == "POST"; changed != want {
				t.Errorf("%s, %s: forgotten: %v", method, path, changed)
			}
		}
	}
	before := s.do("/fails").body
	s.do("POST /fails")
	s.is(s.do("/fails"), 200, before)
	n0 := int(s.runs.Load())
	s.together(10, "POST /")
	s.ran(n0 + 10)
}

// pitfall 41: a client that names another scheme changes the stored page all the same.
func TestPitfall41UnsafeMethodsOfAbsoluteForm(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute}, number())
	for _, target := range []string{"http://a.example/", "https://a.example/", "http://a.example"} {
		before := s.do("/", "Host: a.example").body
		s.is(s.raw("DELETE "+target+" HTTP/1.1", "Host: a.example"), 200, "*")
		if after := s.do("/", "Host: a.example").body; after == before {
			t.Errorf("DELETE %s: still %s", target, after)
		}
	}
}

func TestPurge(t *testing.T) {
	n := number()
	for name, o := range map[string]middleware.Options{
		"plain": {TTL: time.Minute}, "near": {TTL: time.Minute, Near: guard.Near{MaxEntries: 100}}, "epochs": {TTL: time.Minute, Headers: []string{"X-A"}},
	} {
		for _, vary := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " vary ", vary), func(t *testing.T) {
				s := open(t, o, func(w http.ResponseWriter, r *http.Request) {
					if vary {
						w.Header().Set("Vary", "Accept")
					}
					n(w, r)
				})
				first := s.do("/?b=1&a=2").body
				s.is(s.do("/?b=1&a=2"), 200, first)
				if err := s.m.Purge(t.Context(), s.URL+"/?a=2&b=1"); err != nil {
					t.Fatal(err)
				}
				second := s.do("/?b=1&a=2").body
				if second == first {
					t.Error("not purged")
				}
				s.is(s.do("/?b=1&a=2"), 200, second)
				if err := s.m.SoftPurge(t.Context(), s.URL+"/?a=2&b=1"); err != nil {
					t.Fatal(err)
				}
				if s.do("/?b=1&a=2").body == second {
					t.Error("not purged softly")
				}
			})
		}
	}
	s := open(t, middleware.Options{}, number())
	for _, bad := range []string{"", "/x", "ftp://a/b", "::"} {
		if s.m.Purge(t.Context(), bad) == nil {
			t.Errorf("%q was purged", bad)
		}
	}
}

// While the store can't tell the epoch of a page, as where one node of a cluster is
// away, nothing is stored that a later purge wouldn't reach.
func TestNothingIsStoredWithoutAnEpoch(t *testing.T) {
	for _, vary := range []string{"", "Accept"} {
		var away atomic.Bool
		s := openOn(t, withoutEpochs(newStore(t), &away), middleware.Options{TTL: time.Minute, Headers: []string{"X-Site"}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", vary)
			fmt.Fprint(w, "some page")
		})
		quiet := func() {
			eventually(t, "runs are over", func() bool { return len(s.m.Stats().Guard.InFlight) == 0 })
		}
		away.Store(true)
		s.is(s.do("/"), 200, "some page")
		quiet()
		away.Store(false)
		if err := s.m.Purge(t.Context(), s.URL+"/"); err != nil {
			t.Fatal(err)
		}
		away.Store(true)
		for _, g := range s.together(3, "/") { // which may share a run
			if strings.Contains(g.status(), "hit") || strings.Contains(g.status(), "stored") {
				t.Errorf("Vary %q: %s", vary, g.status())
			}
		}
		quiet()
	}
}

// withoutEpochs is a store that is away for the epochs of sites.
func withoutEpochs(s cache.Store, away *atomic.Bool) cache.Store {
	t := tap.New(s)
	gone := func(key string) bool { return away.Load() && strings.Contains(key, "e http") }
	t.OnRead = func(key string, r *store.Reading, err error) (*store.Reading, error) {
		if gone(key) {
			return nil, store.ErrUnavailable
		}
		return r, err
	}
	t.OnAcquire = func(requests []store.Request) []store.Answer {
		if gone(requests[0].Key) {
			return slices.Repeat([]store.Answer{{Err: store.ErrUnavailable}}, len(requests))
		}
		return nil
	}
	return t
}

// A run that is under way when its page is softly purged doesn't bring it back, also if
// it is for a variant that no request had asked for before.
func TestSoftPurgeWhileAVariantIsFetched(t *testing.T) {
	var content atomic.Int32
	began, release := make(chan struct{}), make(chan struct{})
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=60")
		w.Header().Set("Vary", "Accept-Language")
		n, language := content.Load(), r.Header.Get("Accept-Language")
		if language == "fr" && n == 0 {
			close(began)
			<-release
		}
		fmt.Fprint(w, language, " ", n)
	})
	for _, language := range []string{"de", "en"} {
		s.is(s.do("/", "Accept-Language: "+language), 200, language+" 0")
		eventually(t, language+" is stored", func() bool { return strings.Contains(s.do("/", "Accept-Language: "+language).status(), ";hit") })
	}
	eventually(t, "both are counted", func() bool { return s.m.Variants(t.Context(), s.URL+"/") == 2 })
	var wg sync.WaitGroup
	wg.Go(func() { s.is(s.do("/", "Accept-Language: fr"), 200, "fr 0") })
	<-began
	content.Store(1)
	for range 2 {
		if err := s.m.SoftPurge(t.Context(), s.URL+"/"); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	wg.Wait()
	s.is(s.do("/", "Accept-Language: fr"), 200, "fr 1")
	for _, language := range []string{"de", "en"} { // they are had anew in the background
		s.is(s.do("/", "Accept-Language: "+language), 200, language+" 0")
		eventually(t, language+" is had anew", func() bool { return s.do("/", "Accept-Language: "+language).body == language+" 1" })
	}
	eventually(t, "all are counted", func() bool { return s.m.Variants(t.Context(), s.URL+"/") == 3 })
}

// A page that is purged while variants of it are being stored is had again by those
// that come meanwhile.
func TestPurgeWhileVariantsAreStoredFailsNoRequest(t *testing.T) {
	s := open(t, middleware.Options{MaxVariants: 1000}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Accept-Language")
		fmt.Fprint(w, r.Header.Get("Accept-Language"))
	})
	var asked atomic.Int32
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for n := asked.Add(1); n < 1000; n = asked.Add(1) {
				language := fmt.Sprint("l", n/2)
				s.is(s.do("/", "Accept-Language: "+language), 200, language)
				if n%10 == 0 {
					if err := s.m.Purge(t.Context(), s.URL+"/"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := middleware.New(newStore(t), middleware.Options{
		Name: "a:b", TTL: -1, Stale: -1, StaleIfError: -1, MaxBody: 65 << 20, Headers: []string{"Authorization", "bad name"},
		Forward: []string{"Cookie"}, Rules: []middleware.Rule{{}, {Pattern: "{"}}, Via: "a b", OnWaitTimeout: 9,
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"name", "TTL", "Stale is", "StaleIfError is", "MaxBody", "Authorization", "bad name", "Forward", "Rules[0]", "Rules[1]", "Via", "OnWaitTimeout"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("nothing of %s in %v", part, err)
		}
	}
	var none *cache.Redis
	for _, store := range []cache.Store{nil, none} {
		if _, err := middleware.New(store, middleware.Options{}); err == nil {
			t.Errorf("a store %v was accepted", store)
		}
	}
}
