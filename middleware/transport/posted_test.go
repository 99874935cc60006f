package transport_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/middleware/transport"
)

// posting answers POST with a result that is the content of /form, and GET with a page.
func posting(during func(w http.ResponseWriter), headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			fmt.Fprint(w, "page")
			return
		}
		w.Header().Set("Content-Location", r.RequestURI)
		w.Header().Set("Cache-Control", "public, max-age=60")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		if during != nil {
			during(w)
		}
		fmt.Fprint(w, "result for ", r.Header.Get("Authorization"))
	}
}

func storePost(o *transport.Options) { o.StorePost = true }

func TestPostAnswersLaterGetsOfItsURL(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, posting(nil, "Etag", `"1"`))
		a, b := newTransport(t, open(), storePost), newTransport(t, open(), storePost)
		url, first := askStored(t, a, v, "POST")
		wantCacheStatus(t, first, "fwd=method")
		for _, rt := range []http.RoundTripper{a, b} {
			got := ask(t, rt, url)
			wantAnswer(t, got, 200, "result for ")
			wantCacheStatus(t, got, "hit")
		}
		if got := askWith(t, b, "HEAD", url); got.StatusCode != 200 || got.ContentLength != 11 {
			t.Errorf("HEAD: %d, %d bytes", got.StatusCode, got.ContentLength)
		}
		wantPart(t, ask(t, b, url, "Range", "bytes=0-5"), "result", "bytes 0-5/11")
		v.wantCalls(t, 1)
		wantAnswer(t, askWith(t, b, "POST", url), 200, "result for ") // is not answered from the store
		v.wantCalls(t, 2)
		askWith(t, b, "DELETE", url)
		wantAnswer(t, ask(t, a, url), 200, "page")
		v.wantCalls(t, 4)
	})
}

// A host's TTL makes requests with unknown headers differ. The fields of a body do not count.
func TestPostOfAFormAnswersGetsBesideATTL(t *testing.T) {
	v := newVendor(t, posting(nil))
	a := newTransport(t, memoryFleet(t)(), storePost, func(o *transport.Options) { o.TTL = time.Minute })
	askWith(t, a, "POST", v.URL+"/form", "Content-Type", "application/x-www-form-urlencoded")
	wantAnswer(t, ask(t, a, v.URL+"/form"), 200, "result for ")
}

func TestOtherPostsAnswerNoGet(t *testing.T) {
	private, shared := func(*transport.Options) {}, func(o *transport.Options) { o.Shared = true }
	for name, c := range map[string]struct {
		headers []string
		during  func(w http.ResponseWriter)
		ask     []string
		o       func(*transport.Options)
	}{
		"not public":               {headers: []string{"Cache-Control", "max-age=60"}},
		"private":                  {headers: []string{"Cache-Control", "private, max-age=60"}},
		"no-store":                 {headers: []string{"Cache-Control", "public, no-store, max-age=60"}},
		"no lifetime":              {headers: []string{"Cache-Control", "public"}, o: func(o *transport.Options) { o.TTL = time.Minute }},
		"stale":                    {headers: []string{"Age", "61", "Etag", `"1"`}},
		"no-cache":                 {headers: []string{"Cache-Control", "public, no-cache, max-age=60", "Etag", `"1"`}},
		"no Content-Location":      {headers: []string{"Content-Location", ""}},
		"another Content-Location": {headers: []string{"Content-Location", "/other"}},
		"another host":             {headers: []string{"Content-Location", "http://evil.example/form"}},
		"a cookie":                 {headers: []string{"Set-Cookie", "sid=1"}},
		"Vary":                     {headers: []string{"Vary", "Accept"}},
		"an encoding":              {headers: []string{"Content-Encoding", "br"}},
		"a trailer":                {headers: []string{"Trailer", "X-Sum"}},
		"201":                      {during: func(w http.ResponseWriter) { w.WriteHeader(201) }},
		"too long":                 {during: func(w http.ResponseWriter) { fmt.Fprint(w, strings.Repeat("x", 2<<10)) }, o: func(o *transport.Options) { o.MaxBody = 1 << 10 }},
		"broken":                   {headers: []string{"Content-Length", "1000"}},
		"a key of none":            {o: func(o *transport.Options) { o.Key = func(*http.Request) string { return "" } }},
		"a request no-store":       {ask: []string{"Cache-Control", "no-store"}},
		"by default":               {o: func(o *transport.Options) { o.StorePost = false }},
		"other credentials":        {ask: []string{"Authorization", "a"}},
		"a shared cache":           {ask: []string{"Authorization", "a"}, headers: []string{"Cache-Control", "max-age=60"}, o: shared},
	} {
		t.Run(name, func(t *testing.T) {
			if c.o == nil {
				c.o = private
			}
			v := newVendor(t, posting(c.during, c.headers...))
			a := newTransport(t, memoryFleet(t)(), storePost, c.o)
			if got := askWith(t, a, "POST", v.URL+"/form", c.ask...); name != "other credentials" && name != "too long" && name != "broken" && strings.Contains(got.cacheStatus(), "stored") {
				t.Errorf("Cache-Status %s", got.cacheStatus())
			}
			wantAnswer(t, ask(t, a, v.URL+"/form"), 200, "page")
			v.wantCalls(t, 2)
		})
	}
}

func TestPostAnswersGetsWithItsCredentialsOnly(t *testing.T) {
	for _, says := range []string{"max-age=60", "private, max-age=60"} {
		v := newVendor(t, posting(nil, "Cache-Control", says))
		a := newTransport(t, memoryFleet(t)(), storePost)
		askWith(t, a, "POST", v.URL+"/form", "Authorization", "alice")
		wantAnswer(t, ask(t, a, v.URL+"/form", "Authorization", "bob"), 200, "page")
		wantAnswer(t, ask(t, a, v.URL+"/form"), 200, "page")
		wantAnswer(t, ask(t, a, v.URL+"/form", "Authorization", "alice"), 200, "result for alice")
	}
}

func TestPublicPostAnswersAllInASharedCache(t *testing.T) {
	v := newVendor(t, posting(nil))
	a := newTransport(t, memoryFleet(t)(), storePost, func(o *transport.Options) { o.Shared = true })
	askWith(t, a, "POST", v.URL+"/form", "Authorization", "alice")
	wantAnswer(t, ask(t, a, v.URL+"/form", "Authorization", "bob"), 200, "result for alice")
}

// A write or a purge during a POST, in any process, keeps its response out of the store.
func TestInvalidationDuringAPostWins(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for name, c := range map[string]struct {
			atHeader bool
			how      string
		}{"before the header, purge": {false, "PURGE"}, "before the end, purge": {true, "PURGE"}, "before the header, delete": {false, "DELETE"}, "before the end, delete": {true, "DELETE"}} {
			t.Run(name, func(t *testing.T) {
				began, goOn := make(chan struct{}), make(chan struct{})
				v := newVendor(t, posting(func(w http.ResponseWriter) {
					if c.atHeader {
						w.(http.Flusher).Flush()
					}
					close(began)
					<-goOn
				}))
				a, b := newTransport(t, open(), storePost), newTransport(t, open(), storePost)
				done := make(chan answered)
				go func() { done <- askWith(t, a, "POST", v.URL+"/form") }()
				<-began
				if c.how == "PURGE" {
					purge(t, b, v.URL+"/form")
				} else {
					askWith(t, b, "DELETE", v.URL+"/form")
				}
				close(goOn)
				wantAnswer(t, <-done, 200, "result for ")
				wantAnswer(t, ask(t, a, v.URL+"/form"), 200, "page")
			})
		}
	})
}

// A response that its client does not read to the end is not stored, and holds up no GET.
func TestPostThatIsNotReadIsNotStored(t *testing.T) {
	v := newVendor(t, posting(nil))
	a := newTransport(t, memoryFleet(t)(), storePost)
	req, _ := http.NewRequest("POST", v.URL+"/form", bytes.NewReader([]byte("x")))
	resp, err := a.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadFull(resp.Body, make([]byte, 3))
	resp.Body.Close()
	wantAnswer(t, ask(t, a, v.URL+"/form"), 200, "page")
}

// Nor does the response of a POST take the place of that of a GET from after it.
func TestPostWithASlowClientHoldsUpNoGet(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Location", "/form")
		w.Header().Set("Cache-Control", "public, max-age=60")
		fmt.Fprint(w, r.Method, strings.Repeat(" ", 100_000))
	})
	a := newTransport(t, memoryFleet(t)(), storePost, func(o *transport.Options) { o.WaitTimeout = time.Hour })
	req, _ := http.NewRequest("POST", v.URL+"/form", nil)
	resp, err := a.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got := ask(t, a, v.URL+"/form")
		if !strings.HasPrefix(got.body, "GET ") {
			t.Errorf("got %.9s", got.body)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	v.wantCalls(t, 2)
}

func TestPostThatGetsNoAnswerHoldsUpNoGet(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "page")
	})
	a := newTransport(t, memoryFleet(t)(), storePost)
	for range 2 {
		if failing(t, a, "POST", v.URL+"/form") == nil {
			t.Error("the POST has an answer")
		}
		wantAnswer(t, ask(t, a, v.URL+"/form"), 200, "page")
	}
}
