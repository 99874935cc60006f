package middleware_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware"
)

// posting answers POST with a result that is the content of /form, and GET with a page.
func posting(during func(w http.ResponseWriter), headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			fmt.Fprint(w, "page")
			return
		}
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Add(name, value)
		}
		if during != nil {
			during(w)
		}
		fmt.Fprint(w, "result for ", r.Header.Get("Cookie"))
	}
}

const (
	ofForm   = "Content-Location: /form"
	forAll   = "Cache-Control: public, max-age=60"
	forLater = "result for "
)

func TestPostAnswersLaterGetsOfItsURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{StorePost: true, MakeETag: true}, posting(nil, ofForm, forAll))
		f.is(f.ask("POST /form"), 200, forLater)
		for range 2 {
			got := f.ask("/form")
			f.is(got, 200, forLater)
			if !strings.Contains(got.Header().Get("Cache-Status"), ";hit") || got.Header().Get("Etag") == "" {
				t.Errorf("header %v", got.Header())
			}
		}
		f.is(f.ask("HEAD /form"), 200, "")
		f.is(f.ask("/form", "Range: bytes=0-5"), 206, "result")
		if n := f.runs.Load(); n != 1 {
			t.Errorf("%d runs", n)
		}
		f.is(f.ask("POST /form"), 200, forLater) // is not answered from the store
		f.is(f.ask("DELETE /form"), 200, "page")
		f.is(f.ask("/form"), 200, "page")
		if n := f.runs.Load(); n != 4 {
			t.Errorf("%d runs", n)
		}
	})
}

// A response that may not be shared, or is not that of the URL, answers no GET.
func TestOtherPostsAnswerNoGet(t *testing.T) {
	long := strings.Repeat("x", 2<<10)
	for name, c := range map[string]struct {
		headers []string
		during  func(w http.ResponseWriter)
		what    string // is asked; default POST
		o       middleware.Options
	}{
		"not public":               {headers: []string{ofForm, "Cache-Control: max-age=60"}},
		"private":                  {headers: []string{ofForm, "Cache-Control: private, s-maxage=60"}},
		"no-store":                 {headers: []string{ofForm, "Cache-Control: public, no-store, max-age=60"}},
		"no lifetime":              {headers: []string{ofForm, "Cache-Control: public"}, o: middleware.Options{TTL: time.Minute}},
		"stale":                    {headers: []string{ofForm, forAll, "Age: 61", `ETag: "1"`}},
		"no-cache":                 {headers: []string{ofForm, "Cache-Control: public, no-cache, max-age=60", `ETag: "1"`}},
		"no Content-Location":      {headers: []string{forAll}},
		"another Content-Location": {headers: []string{"Content-Location: /other", forAll}},
		"another query":            {headers: []string{"Content-Location: /form?x=1", forAll}},
		"another host":             {headers: []string{"Content-Location: http://evil.example/form", forAll}},
		"two Content-Location":     {headers: []string{ofForm, "Content-Location: /form", forAll}},
		"a cookie":                 {headers: []string{ofForm, forAll, "Set-Cookie: sid=1"}, o: middleware.Options{}},
		"Vary":                     {headers: []string{ofForm, forAll, "Vary: Accept"}},
		"an encoding":              {headers: []string{ofForm, forAll, "Content-Encoding: br"}},
		"tags":                     {headers: []string{ofForm, forAll, "Cache-Tag: a"}, o: middleware.Options{TagHeaders: []string{"Cache-Tag"}}},
		"201":                      {headers: []string{ofForm, forAll}, during: func(w http.ResponseWriter) { w.WriteHeader(201) }},
		"a trailer":                {headers: []string{ofForm, forAll, "Trailer: X-Sum"}},
		"too long":                 {headers: []string{ofForm, forAll}, during: func(w http.ResponseWriter) { fmt.Fprint(w, long) }, o: middleware.Options{MaxBody: 1 << 10}},
		"broken":                   {headers: []string{ofForm, forAll, "Content-Length: 1000"}},
		"a key of more":            {headers: []string{ofForm, forAll}, o: middleware.Options{Headers: []string{"X-Tenant"}}},
		"a request with no-store":  {headers: []string{ofForm, forAll}, what: "no-store"},
		"by default":               {headers: []string{ofForm, forAll}, what: "default"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.o.StorePost = c.what != "default"
				f := newFront(t, c.o, posting(c.during, c.headers...))
				if c.what == "no-store" {
					f.ask("POST /form", "Cache-Control: no-store")
				} else {
					f.ask("POST /form")
				}
				f.is(f.ask("/form"), 200, "page")
				if f.is(f.ask("/other"), 200, "page"); f.runs.Load() != 3 {
					t.Errorf("%d runs", f.runs.Load())
				}
			})
		})
	}
}

func TestPostsOfUsersStayWithThemUnlessPublic(t *testing.T) {
	for _, o := range []middleware.Options{{}, {TrustOrigin: true}, {Forward: []string{middleware.AllHeaders}}} {
		o.StorePost = true
		for says, shared := range map[string]bool{"max-age=60": false, "private, max-age=60": false, "public, max-age=60": true, "s-maxage=60": true} {
			synctest.Test(t, func(t *testing.T) {
				f := newFront(t, o, posting(nil, ofForm, "Cache-Control: "+says))
				f.is(f.ask("POST /form", "Cookie: alice"), 200, "result for alice")
				want := "page"
				if shared {
					want = "result for alice"
				}
				f.is(f.ask("/form", "Cookie: bob"), 200, want)
				if !o.TrustOrigin {
					want = "page" // requests without credentials have pages of their own
				}
				f.is(f.ask("/form"), 200, want)
			})
		}
	}
}

func TestInvalidationDuringAPostWins(t *testing.T) {
	for name, atHeader := range map[string]bool{"before the header": false, "before the end": true} {
		for _, how := range []string{"purge", "soft purge", "delete"} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newStore(t)
					during := func(w http.ResponseWriter) {
						if atHeader {
							w.WriteHeader(200)
						}
						time.Sleep(time.Second)
					}
					o := middleware.Options{StorePost: true}
					f, other := newFrontOn(t, store, o, posting(during, ofForm, forAll)), newFrontOn(t, store.Join(), o, posting(nil))
					var wg sync.WaitGroup
					wg.Go(func() { f.send(t.Context(), "POST /form") })
					synctest.Wait()
					var err error
					switch how {
					case "purge":
						err = other.m.Purge(t.Context(), "http://site.example/form")
					case "soft purge":
						err = other.m.SoftPurge(t.Context(), "http://site.example/form")
					default:
						other.is(other.send(t.Context(), "DELETE /form"), 200, "page")
					}
					if err != nil {
						t.Error(err)
					}
					wg.Wait()
					f.is(f.ask("/form"), 200, "page")
				})
			})
		}
	}
}

// On Redis a process need not know yet that its turn is over.
func TestInvalidationDuringAPostWinsOnRedis(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	began, goOn := make(chan struct{}), make(chan struct{})
	stored := func() cache.Store {
		s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	h := posting(func(http.ResponseWriter) { began <- struct{}{}; <-goOn }, ofForm, forAll)
	s, other := openOn(t, stored(), middleware.Options{StorePost: true}, h), openOn(t, stored(), middleware.Options{StorePost: true}, h)
	for _, want := range []string{forLater, "page"} {
		var wg sync.WaitGroup
		wg.Go(func() { s.is(s.do("POST /form"), 200, forLater) })
		<-began
		if want == "page" {
			if err := other.m.Purge(t.Context(), s.URL+"/form"); err != nil {
				t.Error(err)
			}
		}
		goOn <- struct{}{}
		wg.Wait()
		s.is(s.do("/form"), 200, want)
	}
}

// The handler of a POST sees parts of its request that a shared run does not get.
func TestPostToAnotherHostAnswersNoGet(t *testing.T) {
	for name, c := range map[string]struct {
		o    middleware.Options
		what string
		host string
	}{
		"another name of the site":            {middleware.Options{Host: "site.example"}, "/form", "evil.example"},
		"a parameter that counts for nothing": {middleware.Options{Query: []string{"q"}}, "/form?to=evil.example", "site.example"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.o.StorePost = true
				f := newFront(t, c.o, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Location", r.URL.RequestURI())
					w.Header().Set("Cache-Control", "public, max-age=60")
					fmt.Fprint(w, r.Host, r.URL.RawQuery)
				})
				f.ask("POST "+c.what, "Host: "+c.host)
				f.is(f.ask("/form"), 200, "site.example")
			})
		})
	}
}

// A handler that is held up by its client holds up no GET, and a GET from after its header wins.
func TestPostWithASlowClientHoldsUpNoGet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gets := 0
		f := newFront(t, middleware.Options{StorePost: true}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Location", "/form")
			w.Header().Set("Cache-Control", "public, max-age=60")
			w.WriteHeader(200)
			if r.Method == http.MethodPost {
				time.Sleep(time.Minute / 2)
				fmt.Fprint(w, "result")
				return
			}
			gets++
			fmt.Fprint(w, "page")
		})
		var wg sync.WaitGroup
		wg.Go(func() { f.send(t.Context(), "POST /form") })
		synctest.Wait()
		began := time.Now()
		f.is(f.send(t.Context(), "/form"), 200, "page")
		if d := time.Since(began); d > time.Second {
			t.Errorf("a GET took %v", d)
		}
		wg.Wait()
		if f.is(f.ask("/form"), 200, "page"); gets != 1 {
			t.Errorf("%d runs of GET", gets)
		}
	})
}

func TestPostHoldsUpNoOtherRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{StorePost: true}, posting(func(http.ResponseWriter) { time.Sleep(10 * time.Second) }, ofForm, forAll))
		began := time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { f.is(f.send(t.Context(), "POST /form"), 200, forLater) })
		}
		synctest.Wait()
		f.is(f.send(t.Context(), "/form"), 200, "page")
		if d := time.Since(began); d > time.Second {
			t.Errorf("a GET took %v", d)
		}
		wg.Wait()
		if d := time.Since(began); d > 11*time.Second {
			t.Errorf("five POSTs took %v", d)
		}
	})
}
