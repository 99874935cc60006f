package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/middleware/transport"
)

func TestServesStaleWhileOneValidates(t *testing.T) {
	t.Parallel() // it waits for seconds to pass
	inFleets(t, func(t *testing.T, open openFleet) {
		var slow atomic.Bool
		release := make(chan struct{})
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			if slow.Load() {
				<-release
			}
			w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=600")
			fmt.Fprint(w, "hello")
		})
		rts := []*transport.Transport{newTransport(t, open()), newTransport(t, open())}
		ask(t, rts[0], v.URL)
		waitStored(t, rts[0], v.URL)
		slow.Store(true)
		for _, rt := range rts { // which know its age to some milliseconds each
			waitUntil(t, func() bool {
				r := ask(t, rt, v.URL) // or it would wait for the release
				wantAnswer(t, r, 200, "hello")
				return strings.Contains(r.cacheStatus(), "ttl=-")
			})
		}
		for i := range 20 {
			wantCacheStatus(t, ask(t, rts[i%2], v.URL), ";hit;ttl=-")
		}
		close(release)
		waitUntil(t, func() bool { return !strings.Contains(ask(t, rts[1], v.URL).cacheStatus(), "ttl=-") })
	})
}

func TestServesStaleIfErrorAndOnlyThen(t *testing.T) {
	t.Parallel() // it waits for seconds to pass
	inFleets(t, func(t *testing.T, open openFleet) {
		for control, want := range map[string]int{
			"max-age=0, stale-if-error=600":                  200,
			"max-age=1, stale-if-error=600":                  200,
			"max-age=1, stale-if-error=600, must-revalidate": 503,
			"max-age=1":           503,
			"no-cache":            503,
			"max-age=0":           503,
			"max-age=1, no-store": 503,
		} {
			var failing atomic.Bool
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				if failing.Load() {
					w.WriteHeader(503)
					fmt.Fprint(w, "down")
					return
				}
				w.Header().Set("Cache-Control", control)
				w.Header().Set("Etag", `"1"`)
				fmt.Fprint(w, "hello")
			})
			a := newTransport(t, open())
			ask(t, a, v.URL)
			if want == 200 {
				waitUntil(t, func() bool { // until it is stored, fresh or not
					return strings.Contains(ask(t, a, v.URL).cacheStatus(), "hit") || v.calls.Load() > 1
				})
			}
			failing.Store(true)
			waitUntil(t, func() bool {
				r := ask(t, a, v.URL)
				switch {
				case strings.Contains(r.cacheStatus(), ";hit;"), strings.Contains(r.cacheStatus(), "fwd=uri-miss;stored;collapsed"):
					return false // fresh still, or the first call was waited for
				case want == 200:
					wantAnswer(t, r, 200, "hello")
					wantCacheStatus(t, r, "fwd=stale", "fwd-status=503", "detail=stale-if-error")
				case strings.Contains(r.cacheStatus(), "fwd-status=503;collapsed"): // it waited for a refresh from before the expiry
					if r.StatusCode != 503 {
						t.Errorf("got %d, want 503", r.StatusCode)
					}
				default:
					wantAnswer(t, r, 503, "down")
				}
				return true
			})
		}
	})
}

func TestSharesAFailureOnce(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		started, release := make(chan struct{}, 100), make(chan struct{})
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			started <- struct{}{}
			<-release
			w.WriteHeader(500)
			fmt.Fprint(w, "broken")
		})
		rts := []*transport.Transport{newTransport(t, open()), newTransport(t, open())}
		const n = 10
		got := make(chan answered, n)
		for i := range n {
			go func() { got <- ask(t, rts[i%2], v.URL) }()
		}
		<-started
		waitUntil(t, func() bool { return len(rts[0].Stats().InFlight)+len(rts[1].Stats().InFlight) >= 2 })
		close(release)
		for range n {
			if r := <-got; r.StatusCode != 500 {
				t.Errorf("got %d", r.StatusCode)
			}
		}
		if calls := v.calls.Load(); calls > 4 { // a late request makes one more
			t.Errorf("%d requests made %d calls", n, calls)
		}
	})
}

// Of a user's failure, other users get the status alone: neither its body, for any
// lifetime that it states, nor its cookie.
func TestWaitersGetNoPrivateFailure(t *testing.T) {
	for _, c := range []struct {
		control string
		cookies bool // may be stored
		shared  bool // transport
		who     string
		others  bool // get it whole
	}{
		{control: "", others: true},
		{control: "max-age=0", others: true},
		{control: "private"},
		{control: "private, max-age=60"},
		{control: `private="x-secret"`},
		{control: "no-store"},
		{control: "no-store, max-age=60"},
		{control: "private", who: "ann", others: true},
		{control: "no-store", who: "ann"},
		{control: "", cookies: true},
		{control: "", cookies: true, who: "ann", others: true},
		{control: `no-cache="set-cookie"`, cookies: true, others: true},
		{control: "", shared: true, others: true},
		{control: "private", shared: true},
		{control: `private="x-secret"`, shared: true, others: true},
		{control: "private", shared: true, who: "ann"},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
				o.StoreSetCookie, o.Shared = c.cookies, c.shared
				o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
					calls++
					time.Sleep(time.Second)
					h := http.Header{"Set-Cookie": {"a=b"}, "X-Secret": {"mine"}, "Connection": {"x-hop"}, "X-Hop": {"1"}}
					if c.control != "" {
						h.Set("Cache-Control", c.control)
					}
					return &http.Response{StatusCode: 503, Header: h, Body: io.NopCloser(strings.NewReader("secret")), ContentLength: 6, Request: r}, nil
				})
			})
			var header []string
			if c.who != "" {
				header = []string{"Authorization", c.who}
			}
			got := make(chan answered, 5)
			for range cap(got) {
				go func() { got <- ask(t, tr, "http://vendor.test/", header...) }()
			}
			told, whole := 0, 0
			for range cap(got) {
				a := <-got
				if a.StatusCode != 503 || a.err != nil {
					t.Errorf("%+v: got %d, %v", c, a.StatusCode, a.err)
				}
				if a.body != "secret" {
					continue
				}
				whole++
				if !strings.Contains(a.cacheStatus(), ";collapsed") {
					continue
				}
				told++
				kept := c.cookies && !strings.Contains(c.control, "set-cookie")
				if (a.Header.Get("Set-Cookie") != "") != kept || a.Header.Get("X-Hop") != "" || (c.shared && c.control != "" && a.Header.Get("X-Secret") != "") {
					t.Errorf("%+v: others were told %v", c, a.Header)
				}
			}
			if whole != calls+told || (told == 4) != c.others || (told == 0) == c.others {
				t.Errorf("%+v: %d calls, %d others got it", c, calls, told)
			}
		})
	}
}

func TestLeavesAnUpstreamAloneThatAsksForIt(t *testing.T) {
	t.Parallel() // it waits for seconds to pass
	inFleets(t, func(t *testing.T, open openFleet) {
		for _, status := range []int{429, 503} {
			var angry atomic.Bool
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				if angry.Load() {
					w.Header().Set("Retry-After", "100")
					w.WriteHeader(status)
					fmt.Fprint(w, "slow down")
					return
				}
				w.Header().Set("Cache-Control", "max-age=1")
				w.Header().Set("Etag", `"1"`)
				fmt.Fprint(w, "hello")
			})
			a, b := newTransport(t, open()), newTransport(t, open())
			ask(t, a, v.URL+"/known")
			waitStored(t, a, v.URL+"/known")
			angry.Store(true)

			r := ask(t, a, v.URL+"/new")
			wantAnswer(t, r, status, "slow down")
			waitUntil(t, func() bool { return strings.Contains(ask(t, b, v.URL+"/new").cacheStatus(), "paused") })
			n := v.calls.Load()
			for range 5 {
				r := ask(t, b, v.URL+"/new")
				if r.StatusCode != status || r.Header.Get("Retry-After") == "" || r.Header.Get("Retry-After") > "99999" {
					t.Errorf("while paused: %d, Retry-After %q", r.StatusCode, r.Header.Get("Retry-After"))
				}
			}
			v.wantCalls(t, n)

			waitUntil(t, func() bool { // stale, and served all the same
				r := ask(t, a, v.URL+"/known")
				wantAnswer(t, r, 200, "hello")
				return strings.Contains(r.cacheStatus(), fmt.Sprintf("fwd-status=%d", status))
			})
			n = v.calls.Load()
			for range 5 {
				wantAnswer(t, ask(t, b, v.URL+"/known"), 200, "hello")
			}
			v.wantCalls(t, n)
		}
	})
}

func TestReturnsItsBasesErrors(t *testing.T) {
	v := newVendor(t, cacheable("hello"))
	url := v.URL
	v.Close()
	a := newTransport(t, memoryFleet(t)())
	own, plain := failing(t, a, http.MethodGet, url), failing(t, &http.Transport{}, http.MethodGet, url)
	if own == nil || plain == nil || own.Error() != plain.Error() {
		t.Errorf("got %v, want the error of the base: %v", own, plain)
	}
}

func mustRequest(t testing.TB, url string) *http.Request {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestRepeatsIdempotentRequests(t *testing.T) {
	fails := map[string]int{}
	var mu sync.Mutex
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if fails[r.URL.Path]++; fails[r.URL.Path] < 3 {
			w.WriteHeader(503)
			fmt.Fprint(w, "down")
			return
		}
		fmt.Fprintf(w, "%s %s", r.Method, body)
	})
	a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
		o.Retry = transport.Retry{Max: 2, Base: time.Millisecond}
	})
	wantAnswer(t, ask(t, a, v.URL+"/get"), 200, "GET ")
	for method, want := range map[string]string{"PUT": "PUT body", "POST": "down"} {
		req, err := http.NewRequest(method, v.URL+"/"+method, strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := a.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(got) != want {
			t.Errorf("%s was answered %q, want %q", method, got, want)
		}
	}
	req := mustRequest(t, v.URL+"/key")
	req.Method = "POST"
	req.Header.Set("Idempotency-Key", "1")
	resp, err := a.RoundTrip(req)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("a POST with a key: %v, %v", resp, err)
	}
	_ = resp.Body.Close()
	if fails["/key"] != 3 {
		t.Errorf("it was made %d times", fails["/key"])
	}
}

func TestRetryWaitIsBounded(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1000")
		w.WriteHeader(503)
		fmt.Fprint(w, "down")
	})
	a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
		o.Retry = transport.Retry{Max: 5, Base: time.Millisecond}
	})
	wantAnswer(t, ask(t, a, v.URL), 503, "down")
	v.wantCalls(t, 1)
}

func TestSpendsABudget(t *testing.T) {
	t.Parallel() // it waits for seconds to pass
	open, server := redisFleet(t)
	var limited atomic.Bool
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		w.Header().Set("Cache-Control", "max-age=1")
		if limited.Load() {
			w.Header().Set("RateLimit", `"default";r=0;t=1000`)
		}
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(304)
			return
		}
		fmt.Fprint(w, "hello")
	})
	rdb := server.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	quota, err := budget.New(rdb, "vendor", budget.Limit{Rate: 100, Per: time.Hour, Burst: 10, Reserve: -1}, budget.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = quota.Close() })
	withBudget := func(o *transport.Options) {
		o.Hosts = map[string]transport.HostPolicy{strings.TrimPrefix(v.URL, "http://"): {}}
		o.Budget = quota
		o.Cost = func(_ *http.Request, resp *http.Response) int {
			if resp != nil && resp.StatusCode == 304 {
				return 0 // as at GitHub
			}
			return 2
		}
	}
	a, b := newTransport(t, open(), withBudget), newTransport(t, open(), withBudget)
	wantAnswer(t, ask(t, a, v.URL+"/1"), 200, "hello")
	waitStored(t, a, v.URL+"/1")
	for range 10 {
		wantAnswer(t, ask(t, b, v.URL+"/1", "Cache-Control", "max-age=1000"), 200, "hello")
	}
	wantAnswer(t, ask(t, b, v.URL+"/1", "Cache-Control", "no-cache"), 200, "hello") // a 304
	waitUntil(t, func() bool { s, _ := quota.Peek(context.Background()); return s.Spent == 2 })

	// The upstream says that nothing is left: the whole fleet heeds it.
	limited.Store(true)
	wantAnswer(t, ask(t, a, v.URL+"/2"), 200, "hello")
	n := v.calls.Load()
	var exhausted *guard.ExhaustedError
	for _, rt := range []*transport.Transport{a, b} {
		if err := failing(t, rt, http.MethodGet, v.URL+"/3"); !errors.As(err, &exhausted) {
			t.Errorf("got %v, want an ExhaustedError", err)
		}
		if err := failing(t, rt, http.MethodPost, v.URL); !errors.As(err, &exhausted) {
			t.Errorf("a POST got %v, want an ExhaustedError", err)
		}
	}
	v.wantCalls(t, n)
	waitUntil(t, func() bool { // a stale page is served
		r := ask(t, b, v.URL+"/1")
		wantAnswer(t, r, 200, "hello")
		return strings.Contains(r.cacheStatus(), "fwd=stale")
	})
	v.wantCalls(t, n)
}
