package transport_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// A base that makes responses by itself may spell names as it likes.
func TestReadsResponsesHoweverTheirNamesAreWritten(t *testing.T) {
	for name, h := range map[string]http.Header{
		"private": {"cache-control": {"private"}},
		"cookie":  {"Cache-Control": {"max-age=60"}, "set-cookie": {"id=1"}},
		"trailer": {"Cache-Control": {"max-age=60"}},
	} {
		calls := 0
		a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.TTL = time.Minute
			o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				calls++
				return &http.Response{
					StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Header: h.Clone(), Trailer: http.Header{"set-cookie": {"id=2"}},
					ContentLength: -1, Body: io.NopCloser(strings.NewReader("page")), Request: r,
				}, nil
			})
		})
		first := ask(t, a, "http://a.example/")
		if wantAnswer(t, first, 200, "page"); name == "cookie" && first.Header.Get("Set-Cookie") != "id=1" {
			t.Errorf("the caller has no cookie: %v", first.Header)
		}
		waitUntil(t, func() bool { return len(a.Stats().InFlight) == 0 })
		second := ask(t, a, "http://a.example/")
		if name == "private" && calls != 2 {
			t.Errorf("a private response was shared: %s", second.cacheStatus())
		}
		for _, fields := range []http.Header{second.Header, second.Trailer} {
			for field := range fields {
				if strings.EqualFold(field, "Set-Cookie") && calls == 1 {
					t.Errorf("%s: a cookie is shared: %v", name, fields)
				}
			}
		}
	}
}

func TestKeepsSecretsOutOfRedis(t *testing.T) {
	open, server := redisFleet(t)
	secrets := []string{"s3cret-bearer", "s3cret-cookie", "s3cret-apikey", "s3cret-query", "s3cret-path", "s3cret-user", "s3cret-vary", "s3cret-setcookie"}
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Authorization, X-Vary")
		w.Header().Set("Set-Cookie", "session=s3cret-setcookie")
		if r.URL.Query().Get("fail") != "" {
			w.Header().Set("Retry-After", "100")
			w.WriteHeader(429)
		}
		fmt.Fprint(w, "a public body")
	})
	rdb := server.Client()
	defer rdb.Close()
	ctx := context.Background()
	heard := rdb.PSubscribe(ctx, "*")
	defer heard.Close()
	if _, err := heard.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	a := newTransport(t, open())
	header := []string{
		"Authorization", "Bearer s3cret-bearer", "Cookie", "session=s3cret-cookie", "X-Api-Key", "s3cret-apikey", "X-Vary", "s3cret-vary",
	}
	url := strings.Replace(v.URL, "http://", "http://me:s3cret-user@", 1) + "/bots3cret-path/x?api_key=s3cret-query"
	first := ask(t, a, url, header...)
	if first.Header.Get("Set-Cookie") == "" {
		t.Error("the caller gets no Set-Cookie")
	}
	waitStored(t, a, url, header...)
	if ask(t, a, url, header...).Header.Get("Set-Cookie") != "" {
		t.Error("Set-Cookie was stored")
	}
	ask(t, a, url+"&fail=1", header...)
	askWith(t, a, "POST", url, header...)
	ask(t, a, url, header...)
	waitStored(t, a, url, header...)

	check := func(where, text string) {
		for _, s := range secrets {
			if strings.Contains(text, s) {
				t.Errorf("%s has %s in the clear: %.200q", where, s, text)
			}
		}
	}
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil || len(keys) < 3 {
		t.Fatalf("there are the keys %q, %v", keys, err)
	}
	public := false
	for _, key := range keys {
		check("a name", key)
		value, err := rdb.Dump(ctx, key).Result()
		if err != nil {
			continue // it has expired
		}
		check("the value of "+key, value)
		if text, err := rdb.Get(ctx, key).Result(); err == nil {
			check("the value of "+key, text)
			public = public || strings.Contains(text, "a public body")
		}
	}
	if !public {
		t.Error("the body wasn't found, so that the search proves nothing")
	}
	for {
		said, err := heard.ReceiveTimeout(ctx, 200*time.Millisecond)
		if err != nil {
			break
		}
		check("a message", fmt.Sprintf("%v", said))
	}
}

func TestStoresSetCookieIfToldTo(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		cacheable("hello")(w, r)
	})
	a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.StoreSetCookie = true })
	for range 2 { // without credentials the cookie is no known user's
		wantCacheStatus(t, ask(t, a, v.URL), "detail=set-cookie")
	}
	ask(t, a, v.URL, "Authorization", "me")
	waitStored(t, a, v.URL, "Authorization", "me")
	if got := ask(t, a, v.URL, "Authorization", "me").Header.Get("Set-Cookie"); got != "a=b" {
		t.Errorf("Set-Cookie is %q", got)
	}
}

// A cookie that a 304 sets is for the request of its call, as that of any other
// response is, and for no request that waited for it or comes later.
func TestCookieOfA304GoesToItsCall(t *testing.T) {
	for _, control := range []string{"max-age=60", "no-cache"} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			open := memoryFleet(t)
			base := func(o *transport.Options) {
				o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
					calls++
					time.Sleep(time.Second)
					resp := &http.Response{
						StatusCode: 200, Header: http.Header{"Cache-Control": {control}, "Etag": {`"1"`}, "Set-Cookie": {fmt.Sprint("call=", calls)}},
						ContentLength: -1, Body: io.NopCloser(strings.NewReader("hello")), Request: r,
					}
					if r.Header.Get("If-None-Match") != "" {
						resp.StatusCode, resp.ContentLength, resp.Body = 304, 0, http.NoBody
					}
					return resp, nil
				})
			}
			rts := []*transport.Transport{newTransport(t, open(), base), newTransport(t, open(), base)}
			cookie := func(a answered, want string) {
				t.Helper()
				wantAnswer(t, a, 200, "hello")
				if got := a.Header.Get("Set-Cookie"); got != want {
					t.Errorf("%s: Set-Cookie is %q, want %q; Cache-Status: %s", control, got, want, a.cacheStatus())
				}
			}
			cookie(ask(t, rts[0], "http://vendor.test/"), "call=1")
			time.Sleep(2 * time.Minute)
			if control == "no-cache" { // each makes a call
				for i := range 4 {
					cookie(ask(t, rts[i%2], "http://vendor.test/"), fmt.Sprint("call=", i+2))
				}
				return
			}
			got := make(chan answered, 6)
			for i := range cap(got) {
				go func() { got <- ask(t, rts[i%2], "http://vendor.test/") }()
			}
			for range cap(got) {
				a := <-got
				want := "call=2"
				if strings.Contains(a.cacheStatus(), ";collapsed") {
					want = ""
				} else {
					wantCacheStatus(t, a, "fwd-status=304")
				}
				cookie(a, want)
			}
			cookie(ask(t, rts[1], "http://vendor.test/"), "")
			if calls != 2 {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

func TestKeysDependOnTheSecret(t *testing.T) {
	open := memoryFleet(t)
	v := newVendor(t, cacheable("hello"))
	with := func(secret string) *transport.Transport {
		return newTransport(t, open(), func(o *transport.Options) { o.Secret = []byte(secret) })
	}
	ask(t, with("0123456789abcdef"), v.URL)
	waitStored(t, with("0123456789abcdef"), v.URL)
	if r := ask(t, with("0123456789abcdeF"), v.URL, "Cache-Control", "only-if-cached"); r.StatusCode != 504 {
		t.Error("a transport with another secret finds it")
	}
}

func TestPolicies(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.RawQuery) })
	open := memoryFleet(t)
	plain := newTransport(t, open())
	for range 2 {
		ask(t, plain, v.URL+"?q=1") // it says nothing of itself, and can't be validated
	}
	v.wantCalls(t, 2)
	host := strings.TrimPrefix(v.URL, "http://")
	policies := newTransport(t, open(), func(o *transport.Options) {
		o.Name = "policies"
		o.Hosts = map[string]transport.HostPolicy{
			host: {TTL: time.Minute, Key: func(r *http.Request) string { return r.URL.Query().Get("q") }},
		}
	})
	ask(t, policies, v.URL+"?q=2&trace=1")
	waitStored(t, policies, v.URL+"?q=2&trace=1")
	wantAnswer(t, ask(t, policies, v.URL+"?trace=2&q=2"), 200, "q=2&trace=1")
	v.wantCalls(t, 3)
	wantCacheStatus(t, ask(t, policies, v.URL), "fwd=bypass") // the key is empty
	if err := policies.Purge(mustRequest(t, v.URL+"?q=2")); err != nil {
		t.Error(err)
	}
	wantCacheStatus(t, ask(t, policies, v.URL+"?q=2"), "fwd=uri-miss")
}

func TestSaysAllThatIsWrongWithItsOptions(t *testing.T) {
	_, err := transport.New(memoryFleet(t)(), transport.Options{
		Name: "a b", Secret: []byte("short"), Keep: -2, MaxPause: -1, Credentials: []string{"a b"}, Bypass: -1,
		HostPolicy: transport.HostPolicy{
			TTL: -1, MaxBody: 65 << 20, Priority: 9, MaxBudgetWait: -1,
			Retry: transport.Retry{Max: -1, Base: 2, MaxDelay: 1, MaxElapsed: -1},
		},
		Hosts: map[string]transport.HostPolicy{"*": {}, "api.example.com": {Stale: -2, StaleIfError: -2}},
	})
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, want := range []string{
		`name "a b"`, "Secret", "Keep", "MaxPause", "Credentials", "Bypass", " Options.TTL", "MaxBody", "Priority", "MaxBudgetWait",
		"Retry.Max ", "Retry.MaxDelay", "Retry.MaxElapsed", `the name "*"`, `Hosts["api.example.com"].Stale `, "StaleIfError",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing is said of %s in: %v", want, err)
		}
	}
	var noStore *cache.Redis
	for _, store := range []cache.Store{nil, noStore} {
		if _, err := transport.New(store, transport.Options{}); err == nil {
			t.Errorf("a store %v was accepted", store)
		}
	}
	var noBase *http.Transport
	var noBudget *budget.Budget
	_, err = transport.New(memoryFleet(t)(), transport.Options{
		Base: noBase, HostPolicy: transport.HostPolicy{Budget: noBudget},
	})
	if err == nil || !strings.Contains(err.Error(), "nil *http.Transport") || !strings.Contains(err.Error(), "nil *budget.Budget") {
		t.Errorf("a nil base and a nil budget: %v", err)
	}
	o := transport.Options{Keep: guard.Off, Hosts: map[string]transport.HostPolicy{"*.example.com": {}}}
	tr, err := transport.New(memoryFleet(t)(), o)
	if err != nil {
		t.Fatal(err)
	}
	_ = tr.Close()
}

func TestAnswersWithoutRedis(t *testing.T) {
	open, server := redisFleet(t)
	v := newVendor(t, cacheable("hello"))
	a := newTransport(t, open())
	ask(t, a, v.URL)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		wantAnswer(t, ask(t, a, v.URL), 200, "hello")
	}
	wantAnswer(t, askWith(t, a, "POST", v.URL), 200, "hello")
}

func TestLeavesEncodingsToItsBase(t *testing.T) {
	body := bytes.Repeat([]byte("hello "), 1000)
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			w.Header().Set("Content-Encoding", "gzip") // and no Vary
			_, _ = w.Write(gzipped(body))
			return
		}
		_, _ = w.Write(body)
	})
	a := newTransport(t, memoryFleet(t)())
	for range 2 {
		wantAnswer(t, ask(t, a, v.URL, "Accept-Encoding", "gzip"), 200, string(gzipped(body)))
		wantAnswer(t, ask(t, a, v.URL), 200, string(body)) // the base asks for it by itself, and undoes it
		wantAnswer(t, ask(t, a, v.URL, "Accept-Encoding", "identity"), 200, string(body))
	}
}

func gzipped(b []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = w.Write(b)
	_ = w.Close()
	return buf.Bytes()
}

// A cookie that comes after the body is no other user's either.
func TestStoresNoSetCookieOfTrailers(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Set-Cookie, X-Sum")
		cacheable("hello")(w, r)
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("X-Sum", "5")
	})
	a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.StoreSetCookie = true })
	if first := ask(t, a, v.URL); first.Trailer.Get("Set-Cookie") != "a=b" {
		t.Errorf("the caller got %v", first.Trailer)
	}
	waitStored(t, a, v.URL)
	second := ask(t, a, v.URL)
	wantCacheStatus(t, second, ";hit")
	if second.Trailer.Get("Set-Cookie") != "" || second.Trailer.Get("X-Sum") != "5" {
		t.Errorf("the next one got %v", second.Trailer)
	}
}

// P2: a call that lost its lease before its 304 arrived must not change the entry.
func Test304WithoutALeaseLeavesNewerPages(t *testing.T) {
	for name, control := range map[string]string{"no-store": "no-store", "vary": "max-age=60"} {
		t.Run(name, func(t *testing.T) {
			inFleets(t, func(t *testing.T, open openFleet) {
				asked, release := make(chan struct{}), make(chan struct{})
				var body atomic.Value
				body.Store("old")
				v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("ETag", `"`+body.Load().(string)+`"`)
					w.Header().Set("Cache-Control", "max-age=60")
					if r.Header.Get("If-None-Match") != `"old"` || r.Method != http.MethodGet {
						fmt.Fprint(w, body.Load())
						return
					}
					w.Header().Set("Cache-Control", control)
					w.Header().Set("Vary", "Accept-Language")
					close(asked)
					<-release
					w.WriteHeader(http.StatusNotModified)
				})
				a, b := newTransport(t, open()), newTransport(t, open())
				wantAnswer(t, ask(t, a, v.URL), 200, "old")
				waitStored(t, a, v.URL)
				old := make(chan answered, 1)
				go func() { old <- ask(t, a, v.URL, "Cache-Control", "no-cache") }()
				<-asked
				body.Store("new")
				wantAnswer(t, askWith(t, b, http.MethodPost, v.URL), 200, "new") // which ends the lease
				wantAnswer(t, ask(t, b, v.URL), 200, "new")
				waitStored(t, b, v.URL)
				calls := v.calls.Load()
				close(release)
				wantAnswer(t, <-old, 200, "old")
				r := ask(t, b, v.URL)
				wantAnswer(t, r, 200, "new")
				wantCacheStatus(t, r, "hit")
				v.wantCalls(t, calls)
			})
		})
	}
}

// A 304 may say that a page varies, or is for one user, from now on.
func Test304EndsTheSharingOfAPage(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		var later atomic.Bool
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Cache-Control", "max-age=60")
			if later.Load() {
				w.Header().Set("Vary", "Accept-Language")
			}
			if r.Header.Get("If-None-Match") == `"1"` {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			fmt.Fprint(w, "hello "+r.Header.Get("Accept-Language"))
		})
		a := newTransport(t, open())
		wantAnswer(t, ask(t, a, v.URL, "Accept-Language", "de"), 200, "hello de")
		waitStored(t, a, v.URL, "Accept-Language", "de")
		later.Store(true)
		wantAnswer(t, ask(t, a, v.URL, "Accept-Language", "de", "Cache-Control", "no-cache"), 200, "hello de")
		for _, language := range []string{"en", "de"} {
			waitUntil(t, func() bool {
				r := ask(t, a, v.URL, "Accept-Language", language)
				wantAnswer(t, r, 200, "hello "+language)
				return strings.Contains(r.cacheStatus(), ";hit;")
			})
		}
	})
}
