package transport_test

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/middleware/transport"
)

func cacheable(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, body)
	}
}

func TestServesFreshResponsesToTheWholeFleet(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, cacheable("hello"))
		a, b := newTransport(t, open()), newTransport(t, open())
		first := ask(t, a, v.URL+"/x?b=1&a=2")
		wantAnswer(t, first, 200, "hello")
		wantCacheStatus(t, first, "stampede;fwd=uri-miss;stored")
		waitStored(t, a, v.URL+"/x?b=1&a=2")
		second := ask(t, b, v.URL+"/x?b=1&a=2")
		wantAnswer(t, second, 200, "hello")
		wantCacheStatus(t, second, "stampede;hit;ttl=")
		if second.Header.Get("Age") == "" {
			t.Error("a stored response has no Age")
		}
		v.wantCalls(t, 1)
	})
}

// waitStored waits until a response that was read is stored, a moment later.
func waitStored(t testing.TB, tr http.RoundTripper, url string, header ...string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		if ask(t, tr, url, append(header, "Cache-Control", "only-if-cached, max-stale")...).StatusCode != http.StatusGatewayTimeout {
			return
		}
		if time.Now().After(end) {
			t.Fatal("nothing was stored")
		}
	}
}

func TestCollapsesIdenticalRequestsAcrossProcesses(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for _, vary := range []string{"", "Accept, Accept-Encoding"} {
			started, release := make(chan struct{}, 100), make(chan struct{})
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				started <- struct{}{}
				<-release
				if vary != "" {
					w.Header().Set("Vary", vary)
				}
				cacheable("hello")(w, r)
			})
			rts := []*transport.Transport{newTransport(t, open()), newTransport(t, open())}
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() { wantAnswer(t, ask(t, rts[i%2], v.URL, "Accept", "text/plain"), 200, "hello") })
			}
			<-started
			close(release)
			wg.Wait()
			v.wantCalls(t, 1)
		}
	})
}

func TestValidatesWithAnyValidator(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for _, validator := range []string{"Etag", "Last-Modified"} {
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				value := map[string]string{"Etag": `"1"`, "Last-Modified": "Mon, 02 Jan 2006 15:04:05 GMT"}[validator]
				w.Header().Set(validator, value)
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("X-Answer", "new")
				if r.Header.Get("If-None-Match") == value || r.Header.Get("If-Modified-Since") == value {
					w.WriteHeader(http.StatusNotModified)
					return
				}
				w.Header().Set("X-Answer", "old")
				fmt.Fprint(w, "hello")
			})
			a, b := newTransport(t, open()), newTransport(t, open())
			wantAnswer(t, ask(t, a, v.URL), 200, "hello")
			waitStored(t, a, v.URL)
			again := ask(t, b, v.URL, "Cache-Control", "no-cache")
			wantAnswer(t, again, 200, "hello")
			wantCacheStatus(t, again, "fwd=request", "fwd-status=304", "stored")
			if got := again.Header.Get("X-Answer"); got != "new" {
				t.Errorf("after a 304 the header is %q, want the new one", got)
			}
			v.wantCalls(t, 2)
			third := ask(t, a, v.URL)
			wantCacheStatus(t, third, "hit")
			if third.Header.Get("X-Answer") != "new" {
				t.Error("the header of the 304 isn't stored")
			}
		}
	})
}

func TestValidatesStaleResponses(t *testing.T) {
	t.Parallel() // it waits for seconds to pass
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"1"`)
			w.Header().Set("Cache-Control", "max-age=1")
			if r.Header.Get("If-None-Match") == `"1"` {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			w.Header().Set("Age", "0")
			fmt.Fprint(w, "hello")
		})
		a := newTransport(t, open())
		wantAnswer(t, ask(t, a, v.URL), 200, "hello")
		waitStored(t, a, v.URL)
		waitUntil(t, func() bool {
			r := ask(t, a, v.URL)
			wantAnswer(t, r, 200, "hello")
			return r.cacheStatus() == "stampede;fwd=stale;fwd-status=304;stored;ttl=0" || v.calls.Load() > 1
		})
		if v.last().Header.Get("If-None-Match") != `"1"` {
			t.Error("it wasn't validated")
		}
	})
}

func waitUntil(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain")
		}
	}
}

func TestAsksEachTimeForNoCache(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for _, control := range []string{"no-cache", "max-age=0"} {
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Etag", `"1"`)
				w.Header().Set("Cache-Control", control)
				if r.Header.Get("If-None-Match") == `"1"` {
					w.WriteHeader(http.StatusNotModified)
					return
				}
				fmt.Fprint(w, "hello")
			})
			a, b := newTransport(t, open()), newTransport(t, open())
			wantAnswer(t, ask(t, a, v.URL), 200, "hello")
			waitUntil(t, func() bool {
				n := v.calls.Load()
				r := ask(t, b, v.URL)
				wantAnswer(t, r, 200, "hello")
				if v.calls.Load() != n+1 {
					t.Fatalf("%s was answered without the vendor", control)
				}
				return r.Header.Get("Cache-Status") != "" && v.last().Header.Get("If-None-Match") == `"1"`
			})
		}
	})
}

func TestTellsVariantsApart(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Accept-Language")
			cacheable("in "+r.Header.Get("Accept-Language"))(w, r)
		})
		a, b := newTransport(t, open()), newTransport(t, open())
		for _, language := range []string{"de", "en", ""} {
			var header []string
			if language != "" {
				header = []string{"Accept-Language", language}
			}
			wantAnswer(t, ask(t, a, v.URL, header...), 200, "in "+language)
			waitStored(t, a, v.URL, header...)
		}
		for range 3 {
			for _, language := range []string{"en", "de"} {
				r := ask(t, b, v.URL, "Accept-Language", language)
				wantAnswer(t, r, 200, "in "+language)
				wantCacheStatus(t, r, "hit")
			}
		}
		v.wantCalls(t, 3)
		r := ask(t, b, v.URL, "Accept-Language", "fr")
		wantCacheStatus(t, r, "fwd=vary-miss", "stored")
	})
}

func TestKeepsVariantsWhenMoreIsVariedOn(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Accept-Language")
			if r.Header.Get("Accept-Language") == "fr" {
				w.Header().Set("Vary", "Accept-Language, Accept")
			}
			cacheable(r.Header.Get("Accept-Language")+" "+r.Header.Get("Accept"))(w, r)
		})
		a := newTransport(t, open())
		for _, accept := range []string{"text/plain", "text/html"} {
			for _, language := range []string{"de", "fr", "en"} {
				waitUntil(t, func() bool {
					r := ask(t, a, v.URL, "Accept-Language", language, "Accept", accept)
					wantAnswer(t, r, 200, language+" "+accept)
					return strings.Contains(r.cacheStatus(), ";hit;")
				})
			}
		}
	})
}

// A HEAD has no body that could be too long.
func TestStoresHeadersOfLongBodies(t *testing.T) {
	var etag atomic.Pointer[string]
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", *etag.Load())
		w.Header().Set("Content-Length", "5000000")
		if r.Header.Get("If-None-Match") == *etag.Load() {
			w.WriteHeader(http.StatusNotModified)
		}
	})
	a := newTransport(t, memoryFleet(t)())
	for _, tag := range []string{`"1"`, `"2"`, `"3"`} {
		etag.Store(&tag)
		wantAnswer(t, askWith(t, a, "HEAD", v.URL), 200, "")
		waitUntil(t, func() bool {
			wantAnswer(t, askWith(t, a, "HEAD", v.URL), 200, "")
			return v.last().Header.Get("If-None-Match") == tag
		})
	}
}

func TestSharesOnlyWithTheSameCredentials(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		who := func(r *http.Request) string {
			return r.Header.Get("Authorization") + r.Header.Get("Cookie") + r.Header.Get("X-Api-Key") + r.Header.Get("X-Tenant-Id") + r.URL.Query().Get("api_key")
		}
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60")
			time.Sleep(time.Millisecond) // so that requests overlap
			fmt.Fprint(w, who(r))
		})
		rts := []*transport.Transport{newTransport(t, open()), newTransport(t, open())}
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := range 100 {
					user := "user" + strconv.Itoa((i*7+worker)%10)
					name := []string{"Authorization", "Cookie", "X-Api-Key", "X-Tenant-Id", ""}[i%5]
					url, header := v.URL+"/mine", []string{name, user}
					if name == "" {
						url, header = url+"?api_key="+user, nil
					}
					wantAnswer(t, ask(t, rts[worker%2], url, header...), 200, user)
				}
			})
		}
		wg.Wait()
		if n := v.calls.Load(); n > 60 {
			t.Errorf("50 different requests made %d calls", n)
		}
	})
}

func TestKeepsPrivateResponsesOnlyForThoseItKnows(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60")
			fmt.Fprint(w, "mine")
		})
		a := newTransport(t, open())
		for range 3 {
			wantCacheStatus(t, ask(t, a, v.URL), "fwd=uri-miss", "detail=private")
		}
		v.wantCalls(t, 3)
	})
}

func TestAsASharedCache(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for control, calls := range map[string]int64{
			"public, max-age=60": 1, "max-age=60": 3, "s-maxage=60": 1, "private, max-age=60": 3,
		} {
			for _, header := range []string{"Authorization", "X-Api-Key"} {
				v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", control)
					fmt.Fprint(w, "hello")
				})
				a := newTransport(t, open(), func(o *transport.Options) { o.Shared = true })
				for i := range 3 {
					ask(t, a, v.URL, header, strconv.Itoa(i))
					if calls == 1 {
						waitStored(t, a, v.URL)
					}
				}
				if got := v.calls.Load(); got != calls {
					t.Errorf("%s, %s: %d calls, want %d", control, header, got, calls)
				}
			}
		}
	})
}

func TestHarmlessCookiesShareByTheResponse(t *testing.T) {
	for control, calls := range map[string]int64{
		"public, max-age=60": 1, "max-age=60": 1, "private, max-age=60": 3, "no-store": 3,
	} {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", control)
			fmt.Fprint(w, "hello")
		})
		a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Shared, o.Harmless = true, []string{"Cookie"} })
		for i := range 3 {
			ask(t, a, v.URL, "Cookie", "sid="+strconv.Itoa(i))
			if calls == 1 {
				waitStored(t, a, v.URL)
			}
		}
		if got := v.calls.Load(); got != calls {
			t.Errorf("%s: %d calls, want %d", control, got, calls)
		}
	}
}

func TestUnsafeMethodsInvalidate(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.Header().Set("Vary", "Accept")
				cacheable(r.URL.Path)(w, r)
				return
			}
			w.Header().Set("Location", "/other")
			if r.Header.Get("Fail") != "" {
				w.WriteHeader(http.StatusConflict)
			}
		})
		a, b := newTransport(t, open()), newTransport(t, open())
		paths := []string{"/this", "/other"}
		fill := func() {
			for _, p := range paths {
				ask(t, a, v.URL+p)
				waitStored(t, a, v.URL+p)
			}
		}
		for method, forgets := range map[string]bool{"POST": true, "DELETE": true, "PATCH": true, "OPTIONS": false} {
			fill()
			wantCacheStatus(t, askWith(t, b, method, v.URL+"/this"), "fwd=method")
			for _, p := range paths {
				stored := ask(t, a, v.URL+p, "Cache-Control", "only-if-cached").StatusCode == 200
				if stored == forgets {
					t.Errorf("after %s, is %s stored: %v", method, p, stored)
				}
			}
		}
		fill()
		askWith(t, b, "POST", v.URL+"/this", "Fail", "yes")
		wantCacheStatus(t, ask(t, a, v.URL+"/this"), "hit") // an error changes nothing
	})
}

// A request that follows a redirect, or that a proxy sends on, has no Host but its
// URL's: it is for the same as one that names it.
func TestKnowsAHostHoweverItIsSaid(t *testing.T) {
	var name atomic.Value
	name.Store("ann")
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/old":
			http.Redirect(w, r, "/new", http.StatusFound)
		case r.Method == http.MethodPut:
			name.Store("bob")
		default:
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, name.Load())
		}
	})
	tr := newTransport(t, memoryFleet(t)())
	client := &http.Client{Transport: tr}
	get := func(want string) {
		t.Helper()
		resp, err := client.Get(v.URL + "/old")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); string(body) != want || err != nil {
			t.Errorf("got %q (%v), want %q; %s", body, err, want, resp.Header.Get("Cache-Status"))
		}
		waitUntil(t, func() bool { return len(tr.Stats().InFlight) == 0 })
	}
	get("ann")
	get("ann")
	wantAnswer(t, askWith(t, tr, http.MethodPut, v.URL+"/new"), 200, "")
	get("bob")
	name.Store("eve")
	req, err := http.NewRequest(http.MethodGet, v.URL+"/new", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Purge(req); err != nil {
		t.Fatal(err)
	}
	get("eve")
}

func TestObeysTheRequest(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Age", "10")
			cacheable("hello")(w, r)
		})
		a := newTransport(t, open())
		missing := ask(t, a, v.URL, "Cache-Control", "only-if-cached")
		wantAnswer(t, missing, 504, "")
		v.wantCalls(t, 0)
		ask(t, a, v.URL)
		waitStored(t, a, v.URL)
		for control, calls := range map[string]int64{
			"max-age=30": 0, "max-age=5": 1, "min-fresh=10": 0, "min-fresh=55": 1, "no-cache": 1, "no-store": 1,
			"max-stale": 0, "only-if-cached": 0, "only-if-cached, max-age=5": 0,
		} {
			n := v.calls.Load()
			ask(t, a, v.URL, "Cache-Control", control)
			if got := v.calls.Load() - n; got != calls {
				t.Errorf("%s: %d calls, want %d", control, got, calls)
			}
		}
		n := v.calls.Load()
		wantCacheStatus(t, ask(t, a, v.URL, "Pragma", "no-cache"), "fwd=request")
		v.wantCalls(t, n+1)
	})
}

// A request that is to be answered from the store alone is never passed on.
func TestPassesNothingOnThatIsOnlyIfCached(t *testing.T) {
	v := newVendor(t, cacheable("hello"))
	a := newTransport(t, memoryFleet(t)())
	for _, field := range [][2]string{{"If-Match", `"1"`}, {"If-Unmodified-Since", "Thu, 01 Jan 2026 00:00:00 GMT"}, {"Upgrade", "some"}, {"X", "y"}} {
		for _, method := range []string{"GET", "HEAD"} {
			got := askWith(t, a, method, v.URL, field[0], field[1], "Cache-Control", "only-if-cached")
			wantAnswer(t, got, 504, "")
			wantCacheStatus(t, got, "detail=only-if-cached")
		}
	}
	v.wantCalls(t, 0)
}

func TestAnswersConditionsRangesAndHead(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"1"`)
			cacheable("0123456789")(w, r)
		})
		a := newTransport(t, open())
		first := ask(t, a, v.URL, "If-None-Match", `"1"`)
		wantAnswer(t, first, 304, "") // the whole was fetched, for all
		waitStored(t, a, v.URL)
		wantAnswer(t, ask(t, a, v.URL), 200, "0123456789")
		wantAnswer(t, ask(t, a, v.URL, "If-None-Match", `"1"`), 304, "")
		part := ask(t, a, v.URL, "Range", "bytes=2-4")
		wantAnswer(t, part, 206, "234")
		if got := part.Header.Get("Content-Range"); got != "bytes 2-4/10" {
			t.Errorf("Content-Range is %q", got)
		}
		wantAnswer(t, ask(t, a, v.URL, "Range", "bytes=20-"), 416, "invalid range: failed to overlap\n")
		head := askWith(t, a, "HEAD", v.URL)
		wantAnswer(t, head, 200, "")
		wantCacheStatus(t, head, "hit")
		if head.ContentLength != 10 {
			t.Errorf("the Content-Length of a HEAD is %d", head.ContentLength)
		}
		v.wantCalls(t, 1)
		wantCacheStatus(t, ask(t, a, v.URL+"/unknown", "Range", "bytes=2-4"), "fwd=partial")
		wantAnswer(t, askWith(t, a, "HEAD", v.URL+"/head"), 200, "")
		wantAnswer(t, ask(t, a, v.URL+"/head", "Cache-Control", "only-if-cached"), 504, "") // no body was stored
		waitUntil(t, func() bool {
			return strings.Contains(askWith(t, a, "HEAD", v.URL+"/head").cacheStatus(), ";hit;")
		})
		wantAnswer(t, ask(t, a, v.URL+"/head"), 200, "0123456789")
	})
}

func TestJudgesIfModifiedSinceByDateWithoutLastModified(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		date := "Thu, 01 Jan 2026 00:00:00 GMT"
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", date)
			cacheable("page")(w, r)
		})
		a := newTransport(t, open())
		for range 2 { // from the call, and from the store
			wantAnswer(t, ask(t, a, v.URL, "If-Modified-Since", date), 304, "")
			waitStored(t, a, v.URL)
		}
		wantAnswer(t, ask(t, a, v.URL, "If-Modified-Since", "Wed, 31 Dec 2025 23:59:59 GMT"), 200, "page")
		wantAnswer(t, ask(t, a, v.URL, "If-Modified-Since", "Thursday, 01-Jan-26 00:00:00 GMT"), 304, "")
		v.wantCalls(t, 1)
	})
}

// Where the base asks for gzip by itself, which it doesn't do for HEAD, the same
// content may have another ETag there, or a weak one. That doesn't make it old.
func TestHeadInAnotherEncodingInvalidatesNothing(t *testing.T) {
	for name, tags := range map[string][2]string{"a tag for each, with Vary": {`"1"`, `"1-gzip"`}, "a weak one": {`"1"`, `W/"1"`}} {
		t.Run(name, func(t *testing.T) {
			var changed atomic.Bool
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
				w.Header().Set("ETag", tags[0])
				if changed.Load() {
					w.Header().Set("Last-Modified", "Fri, 02 Jan 2026 00:00:00 GMT")
				}
				if !strings.HasPrefix(tags[1], "W/") {
					w.Header().Set("Vary", "Accept-Encoding")
				}
				body := []byte("hello")
				if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
					w.Header().Set("Content-Encoding", "gzip")
					w.Header().Set("ETag", tags[1])
					body = gzipped(body)
				}
				_, _ = w.Write(body)
			})
			a := newTransport(t, memoryFleet(t)())
			wantAnswer(t, ask(t, a, v.URL), 200, "hello")
			waitStored(t, a, v.URL)
			wantAnswer(t, askWith(t, a, "HEAD", v.URL, "Cache-Control", "no-cache"), 200, "")
			wantCacheStatus(t, ask(t, a, v.URL), ";hit")
			v.wantCalls(t, 2)
			changed.Store(true)
			wantAnswer(t, askWith(t, a, "HEAD", v.URL, "Cache-Control", "no-cache"), 200, "")
			wantAnswer(t, ask(t, a, v.URL), 200, "hello")
			v.wantCalls(t, 4)
		})
	}
}

func TestCallNeverBringsBackADeletedResponse(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for _, vary := range []string{"", "Accept"} {
			for _, marked := range []bool{false, true} {
				var mu sync.Mutex
				value, control := "old", "max-age=60"
				if marked {
					control = "no-store"
				}
				started, release := make(chan struct{}, 10), make(chan struct{})
				v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					if r.Method == http.MethodPost {
						value = "new"
					}
					says, now := control, value
					mu.Unlock()
					w.Header().Set("Cache-Control", says)
					if vary != "" {
						w.Header().Set("Vary", vary)
					}
					if r.Header.Get("Slow") != "" {
						started <- struct{}{}
						<-release
					}
					fmt.Fprint(w, now)
				})
				a, b := newTransport(t, open()), newTransport(t, open())
				if marked {
					ask(t, a, v.URL)
					mu.Lock()
					control = "max-age=60"
					mu.Unlock()
				}
				slow := make(chan answered, 1)
				go func() { slow <- ask(t, a, v.URL, "Slow", "yes") }()
				<-started
				askWith(t, b, http.MethodPost, v.URL)
				close(release)
				wantAnswer(t, <-slow, 200, "old") // it came before the change
				for range 5 {
					wantAnswer(t, ask(t, a, v.URL), 200, "new")
					wantAnswer(t, ask(t, b, v.URL), 200, "new")
				}
			}
		}
	})
}

// A part of a response has no digest of the whole content. A digest of the
// representation goes with any part.
func TestPartsHaveNoDigestOfTheWhole(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-MD5", "eB5eJF1ptWaXm4bijSPyxw==")
		w.Header().Set("Content-Digest", "sha-256=:hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGfvtqTRcMqMYk=:")
		w.Header().Set("Repr-Digest", "sha-256=:hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGfvtqTRcMqMYk=:")
		fmt.Fprint(w, "0123456789")
	})
	tr := newTransport(t, memoryFleet(t)())
	ask(t, tr, v.URL)
	waitStored(t, tr, v.URL)
	for _, span := range []string{"bytes=2-4", "bytes=0-1,8-9", "bytes=20-"} {
		h := ask(t, tr, v.URL, "Range", span).Header
		if h["Content-Range"] == nil && !strings.Contains(h.Get("Content-Type"), "multipart") {
			t.Errorf("%s: no part: %v", span, h)
		}
		if h["Content-Digest"] != nil || h["Content-Md5"] != nil || h["Repr-Digest"] == nil {
			t.Errorf("%s: %v", span, h)
		}
	}
}
