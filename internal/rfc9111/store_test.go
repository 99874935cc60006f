package rfc9111_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

const (
	nobody = rfc9111.Nobody
	user   = rfc9111.User
	anyone = rfc9111.Anyone
)

type storeRow struct {
	rule
	req  string // method and fields
	resp string // status and fields
	opts rfc9111.Options
	want rfc9111.Audience
	why  rfc9111.Reason
}

var (
	cookies  = rfc9111.Options{Shared: true, AllowSetCookie: true}
	lifetime = rfc9111.Options{Shared: true, Lifetime: time.Minute}
	guesses  = rfc9111.Options{Shared: true, Heuristic: true}
)

var storeRows = []storeRow{
	{rule{"9111 3", "a response to GET with a lifetime is stored"}, "", "Cache-Control: max-age=60", shared, anyone, ""},
	{rule{"9111 3", "a response to HEAD isn't: it has no body for a GET"}, "HEAD", "Cache-Control: max-age=60", shared, nobody, rfc9111.ReasonMethod},
	{rule{"9111 3", "a response to POST isn't, whatever it says"}, "POST", "Cache-Control: max-age=60, public", shared, nobody, rfc9111.ReasonMethod},
	{rule{"9111 3", "a response to a method that isn't known isn't"}, "BREW", "Cache-Control: max-age=60", shared, nobody, rfc9111.ReasonMethod},
	{rule{"9111 3", "an interim response isn't"}, "", "103\nCache-Control: max-age=60", shared, nobody, rfc9111.ReasonStatus},
	{rule{"9111 3", "101 isn't"}, "", "101\nCache-Control: max-age=60", shared, nobody, rfc9111.ReasonStatus},
	{rule{"9111 3", "a final status that isn't known is stored with a lifetime"}, "", "299\nCache-Control: max-age=60", shared, anyone, ""},
	{rule{"9111 3", "an error is stored with a lifetime and public"}, "", "500\nCache-Control: public, max-age=60", shared, anyone, ""},
	{rule{"9111 3", "an error is stored with s-maxage"}, "", "400\nCache-Control: s-maxage=60", shared, anyone, ""},
	{rule{"9111 3", "a private error is its user's"}, "", "403\nCache-Control: private, max-age=60", private, user, rfc9111.ReasonPrivate},
	{rule{"9111 3", "an error that does not say public isn't stored, and that is stricter than the RFC"}, "", "500\nCache-Control: max-age=60", shared, nobody, rfc9111.ReasonError},
	{rule{"9111 3", "nor is an answer to a bad request"}, "", "431\nCache-Control: max-age=60", private, nobody, rfc9111.ReasonError},
	{rule{"9111 3", "404 is stored with a lifetime"}, "", "404\nCache-Control: max-age=60", shared, anyone, ""},
	{rule{"9111 3", "599, the last there is, is stored with a lifetime and public"}, "", "599\nCache-Control: public, max-age=60", shared, anyone, ""},
	{rule{"9111 3", "a response without a status of HTTP isn't stored"}, "", "600\nCache-Control: max-age=60", shared, nobody, rfc9111.ReasonStatus},
	{rule{"9111 3", "304 isn't stored as such"}, "", "304\nCache-Control: max-age=60\nEtag: \"a\"", shared, nobody, rfc9111.ReasonStatus},
	{rule{"9111 3", "Expires is a lifetime"}, "", "Expires: $60s\nDate: $0s", shared, anyone, ""},
	{rule{"9111 3", "s-maxage is one in a shared cache"}, "", "Cache-Control: s-maxage=60", shared, anyone, ""},
	{rule{"9111 3", "s-maxage is none in a private cache"}, "", "Cache-Control: s-maxage=60", private, nobody, rfc9111.ReasonNoFreshness},
	{rule{"9111 3", "public lets a status be stored that isn't heuristically cacheable"}, "", "302\nCache-Control: public\nEtag: \"a\"", shared, anyone, ""},
	{rule{"9111 3", "without public or a lifetime such a status isn't stored"}, "", "302\nEtag: \"a\"", shared, nobody, rfc9111.ReasonNoFreshness},
	{rule{"9111 3", "without public, private or a lifetime a private cache doesn't store such a status"}, "", "302\nEtag: \"a\"", private, nobody, rfc9111.ReasonNoFreshness},
	{rule{"9111 3", "without a lifetime a 200 is stored if it can be validated"}, "", "Etag: \"a\"", shared, anyone, ""},
	{rule{"9111 3", "a response with neither lifetime nor validator isn't stored"}, "", "X: y", shared, nobody, rfc9111.ReasonNoFreshness},
	{rule{"9111 3", "a lifetime of zero without a validator isn't stored"}, "", "Cache-Control: max-age=0", shared, nobody, rfc9111.ReasonNoFreshness},
	{rule{"9111 3", "a lifetime of zero with a validator is stored, to be validated"}, "", "Cache-Control: max-age=0\nLast-Modified: $-1h", shared, anyone, ""},
	{rule{"9111 3", "Options.Lifetime stands in for a lifetime"}, "", "X: y", lifetime, anyone, ""},
	{rule{"9111 3", "Options.Lifetime does so only for statuses that are heuristically cacheable"}, "", "500\nX: y", lifetime, nobody, rfc9111.ReasonNoFreshness},
	{rule{"9111 3.3", "206 isn't stored as a whole response"}, "", "206\nCache-Control: max-age=60\nContent-Range: bytes 0-1/9", shared, nobody, rfc9111.ReasonStatus},
	{rule{"9111 3.3", "nor is a response with Content-Range"}, "", "Cache-Control: max-age=60\nContent-Range: bytes 0-1/9", shared, nobody, rfc9111.ReasonPartial},

	{rule{"9111 3.5", "the response to a request with Authorization isn't shared"}, "GET\nAuthorization: x", "Cache-Control: max-age=60", shared, nobody, rfc9111.ReasonAuthorization},
	{rule{"9111 3.5", "a private cache stores it for its user"}, "GET\nAuthorization: x", "Cache-Control: max-age=60", private, user, rfc9111.ReasonAuthorization},
	{rule{"9111 3.5", "public allows it to be shared"}, "GET\nAuthorization: x", "Cache-Control: max-age=60, public", shared, anyone, ""},
	{rule{"9111 3.5", "s-maxage allows it"}, "GET\nAuthorization: x", "Cache-Control: s-maxage=60", shared, anyone, ""},
	{rule{"9111 3.5", "an s-maxage that is no number doesn't"}, "GET\nAuthorization: x", "Cache-Control: s-maxage=x\nEtag: \"a\"", shared, nobody, rfc9111.ReasonAuthorization},
	{rule{"9111 3.5", "must-revalidate allows it"}, "GET\nAuthorization: x", "Cache-Control: max-age=60, must-revalidate", shared, anyone, ""},
	{rule{"9111 3.5", "proxy-revalidate doesn't"}, "GET\nAuthorization: x", "Cache-Control: max-age=60, proxy-revalidate", shared, nobody, rfc9111.ReasonAuthorization},
	{rule{"9111 3.5", "public doesn't outweigh private"}, "GET\nAuthorization: x", "Cache-Control: max-age=60, public, private", shared, nobody, rfc9111.ReasonPrivate},
	{rule{"9111 3.5", "public in Cache-Control doesn't count where CDN-Cache-Control rules"}, "GET\nAuthorization: x", "Cache-Control: public\nCdn-Cache-Control: max-age=60", shared, nobody, rfc9111.ReasonAuthorization},

	{rule{"9111 4.1", "a response that varies on * isn't stored"}, "", "Cache-Control: max-age=60\nVary: *", shared, nobody, rfc9111.ReasonVary},

	{rule{"9111 5.2.1.5", "no-store in a request: its response isn't stored"}, "GET\nCache-Control: no-store", "Cache-Control: max-age=60", shared, nobody, rfc9111.ReasonRequestNoStore},
	{rule{"9111 5.2.1.5", "no-store in a request: nor is it in a private cache"}, "GET\nCache-Control: no-store", "Cache-Control: max-age=60", private, nobody, rfc9111.ReasonRequestNoStore},
	{rule{"9111 5.2.2.5", "no-store: not stored"}, "", "Cache-Control: max-age=60, no-store", shared, nobody, rfc9111.ReasonNoStore},
	{rule{"9111 5.2.2.5", "no-store: not stored in a private cache"}, "", "Cache-Control: no-store, max-age=60", private, nobody, rfc9111.ReasonNoStore},
	{rule{"9111 5.2.2.5", "no-store: in capital letters, too"}, "", "Cache-Control: max-age=60, NO-STORE", shared, nobody, rfc9111.ReasonNoStore},
	{rule{"9111 5.2.2.5", "no-store: whatever its argument"}, "", "Cache-Control: max-age=60, no-store=0", shared, nobody, rfc9111.ReasonNoStore},
	{rule{"9111 5.2.2.5", "no-store: on a second line"}, "", "Cache-Control: max-age=60\nCache-Control: no-store", shared, nobody, rfc9111.ReasonNoStore},
	{rule{"9111 5.2.2.5", "no-store inside a quoted argument is text"}, "", "Cache-Control: max-age=60, ext=\"no-store, private\"", shared, anyone, ""},
	{rule{"9111 5.2.2.5", "no-store after a quote that never closes counts"}, "", "Cache-Control: max-age=60, ext=\"x, no-store", shared, nobody, rfc9111.ReasonNoStore},
	{rule{"9111 5.2.2.3", "must-understand with a status that is known: no-store is ignored"}, "", "Cache-Control: must-understand, no-store, max-age=60", shared, anyone, ""},
	{rule{"9111 5.2.2.3", "must-understand: redirections are known, too"}, "", "302\nCache-Control: must-understand, no-store, max-age=60", shared, anyone, ""},
	{rule{"9111 5.2.2.3", "must-understand with a status that isn't known: not stored"}, "", "299\nCache-Control: must-understand, max-age=60", shared, nobody, rfc9111.ReasonMustUnderstand},
	{rule{"9111 5.2.2.4", "no-cache: stored if it can be validated"}, "", "Cache-Control: no-cache\nEtag: \"a\"", shared, anyone, ""},
	{rule{"9111 5.2.2.4", "no-cache: of no use without a validator"}, "", "Cache-Control: no-cache, max-age=60", shared, nobody, rfc9111.ReasonNoFreshness},
	{rule{"9111 5.2.2.7", "private: not stored in a shared cache"}, "", "Cache-Control: private, max-age=60", shared, nobody, rfc9111.ReasonPrivate},
	{rule{"9111 5.2.2.7", "private: stored for its user in a private one"}, "", "Cache-Control: private, max-age=60", private, user, rfc9111.ReasonPrivate},
	{rule{"9111 5.2.2.7", "private: lets a private cache store a status that isn't heuristically cacheable"}, "", "302\nCache-Control: private\nEtag: \"a\"", private, user, rfc9111.ReasonPrivate},
	{rule{"9111 5.2.2.7", "private=\"field\": stored in a shared cache"}, "", "Cache-Control: private=\"X-User\", max-age=60\nX-User: bob", shared, anyone, ""},
	{rule{"9111 5.2.2.7", "private=\"field\": its user's in a private one"}, "", "Cache-Control: private=\"X-User\", max-age=60\nX-User: bob", private, user, rfc9111.ReasonPrivate},
	{rule{"9111 5.2.2.7", "private=field without quotes: private"}, "", "Cache-Control: private=X-User, max-age=60", shared, nobody, rfc9111.ReasonPrivate},
	{rule{"9111 5.2.2.7", "private=\"\": private"}, "", "Cache-Control: private=\"\", max-age=60", shared, nobody, rfc9111.ReasonPrivate},
	{rule{"9111 5.2.2.7", "private with text that isn't a field name: private"}, "", "Cache-Control: private=\"a b\", max-age=60", shared, nobody, rfc9111.ReasonPrivate},

	{rule{"9111 3", "Set-Cookie: not stored, and that is stricter than the RFC"}, "", "Cache-Control: max-age=60, public\nSet-Cookie: a=b", shared, nobody, rfc9111.ReasonSetCookie},
	{rule{"9111 3", "Set-Cookie2: not stored either"}, "", "Cache-Control: max-age=60, public\nSet-Cookie2: a=b", shared, nobody, rfc9111.ReasonSetCookie},
	{rule{"9111 3", "Set-Cookie: not stored in a private cache"}, "", "Cache-Control: max-age=60\nSet-Cookie: a=b", private, nobody, rfc9111.ReasonSetCookie},
	{rule{"9111 3", "Set-Cookie with AllowSetCookie and public: stored"}, "", "Cache-Control: max-age=60, public\nSet-Cookie: a=b", cookies, anyone, ""},
	{rule{"9111 3", "Set-Cookie with AllowSetCookie and s-maxage: stored"}, "", "Cache-Control: s-maxage=60\nSet-Cookie: a=b", cookies, anyone, ""},
	{rule{"9111 3", "Set-Cookie with AllowSetCookie alone: not shared"}, "", "Cache-Control: max-age=60\nSet-Cookie: a=b", cookies, nobody, rfc9111.ReasonSetCookie},
	{rule{"9111 3", "Set-Cookie with AllowSetCookie in a private cache: its user's"}, "", "Cache-Control: max-age=60\nSet-Cookie: a=b", rfc9111.Options{AllowSetCookie: true}, user, rfc9111.ReasonSetCookie},
	{rule{"9111 3", "Set-Cookie that no-cache names isn't stored; the rest is"}, "", "Cache-Control: max-age=60, no-cache=\"Set-Cookie\"\nSet-Cookie: a=b", shared, anyone, ""},

	{rule{"9213 2.2", "CDN-Cache-Control outranks a no-store of Cache-Control"}, "", "Cache-Control: no-store\nCdn-Cache-Control: max-age=60", shared, anyone, ""},
	{rule{"9213 2.2", "CDN-Cache-Control: no-store outranks a lifetime of Cache-Control"}, "", "Cache-Control: max-age=60\nCdn-Cache-Control: no-store", shared, nobody, rfc9111.ReasonNoStore},
	{rule{"9213 2.2", "CDN-Cache-Control: private"}, "", "Cache-Control: max-age=60\nCdn-Cache-Control: private", shared, nobody, rfc9111.ReasonPrivate},
	{rule{"9213 2.2", "one that isn't a dictionary is ignored"}, "", "Cache-Control: no-store\nCdn-Cache-Control: max-age=60, &&&", shared, nobody, rfc9111.ReasonNoStore},
	{rule{"9213 2.2", "an empty one is ignored"}, "", "Cache-Control: no-store\nCdn-Cache-Control: ", shared, nobody, rfc9111.ReasonNoStore},
	{rule{"9213 2.2", "one with a number in quotes has no lifetime"}, "", "Cache-Control: no-store\nCdn-Cache-Control: max-age=\"60\"", shared, nobody, rfc9111.ReasonNoFreshness},
	{rule{"9213 2.2", "a private cache isn't its target"}, "", "Cache-Control: no-store\nCdn-Cache-Control: max-age=60", private, nobody, rfc9111.ReasonNoStore},
}

func TestStore(t *testing.T) {
	run(t, storeRows, func(t *testing.T, r storeRow) {
		d := rfc9111.Store(request(r.req), response(r.resp), r.opts)
		if d.For != r.want || d.Reason != r.why {
			t.Errorf("got %d %q, want %d %q", d.For, d.Reason, r.want, r.why)
		}
	})
}

// Of all statuses, those and only those are stored without a lifetime.
func TestHeuristicallyCacheableStatuses(t *testing.T) {
	var got []int
	for status := range 1000 {
		resp := response("Etag: \"a\"")
		resp.Status = status
		if rfc9111.Store(request(""), resp, guesses).For == anyone {
			got = append(got, status)
		}
	}
	// RFC 9110, 15.1, without 206, and without errors that may be about one request.
	want := []int{200, 203, 204, 300, 301, 308, 404, 410}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

type storedHeaderRow struct {
	rule
	opts   rfc9111.Options
	header string
	gone   []string
	kept   []string
}

var storedHeaderRows = []storedHeaderRow{
	{rule{"9111 3.1", "Connection and the fields that it names aren't stored"}, shared, "Connection: close, X-A\nConnection: x-b\nX-A: 1\nX-B: 2\nX-C: 3", []string{"Connection", "X-A", "X-B"}, []string{"X-C"}},
	{rule{"9111 3.1", "the fields of a connection aren't stored, named or not"}, shared, "Keep-Alive: timeout=5\nTe: trailers\nTrailer: X\nTransfer-Encoding: chunked\nUpgrade: h2c\nProxy-Connection: close\nX-C: 3", []string{"Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Connection"}, []string{"X-C"}},
	{rule{"9111 3.1", "Proxy-Authenticate, -Authentication-Info and -Authorization aren't stored"}, shared, "Proxy-Authenticate: a\nProxy-Authentication-Info: b\nProxy-Authorization: c", []string{"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization"}, nil},
	{rule{"9111 3.1", "fields that aren't known are stored"}, shared, "Test-Header: a\nContent-Foo: b", nil, []string{"Test-Header", "Content-Foo"}},
	{rule{"9111 5.2.2.4", "no-cache=\"field\": the field isn't stored"}, private, "Cache-Control: no-cache=\"a, b\"\nA: 1\nB: 2\nC: 3", []string{"A", "B"}, []string{"C"}},
	{rule{"9111 5.2.2.7", "private=\"field\": the field isn't stored in a shared cache"}, shared, "Cache-Control: private=\"a\"\nA: 1\nC: 3", []string{"A"}, []string{"C"}},
	{rule{"9111 5.2.2.7", "private=\"field\": a private cache stores it"}, private, "Cache-Control: private=\"a\"\nA: 1\nC: 3", nil, []string{"A", "C"}},
	{rule{"9111 5.1", "Age isn't stored: it is made anew"}, shared, "Age: 5", []string{"Age"}, nil},
	{rule{"9110 6.6.1", "a Date that is missing is added"}, shared, "X: y", nil, []string{"Date"}},
	{rule{"9111 5.5", "Warning is stored like any field, and means nothing"}, shared, "Warning: 110 - stale", nil, []string{"Warning"}},
}

func TestStoredHeader(t *testing.T) {
	run(t, storedHeaderRows, func(t *testing.T, r storedHeaderRow) {
		resp := response(r.header)
		h := rfc9111.StoredHeader(resp, rfc9111.ParseResponse(resp.Header, r.opts), r.opts)
		for _, name := range r.gone {
			if _, ok := h[name]; ok {
				t.Errorf("%s is stored", name)
			}
			if _, ok := resp.Header[name]; !ok {
				t.Errorf("%s was taken from the response itself", name)
			}
		}
		for _, name := range r.kept {
			if h.Get(name) == "" {
				t.Errorf("%s isn't stored", name)
			}
		}
	})
}

func TestDateOfArrivalIsAdded(t *testing.T) {
	for _, given := range []string{"X: y", "Date: yesterday"} {
		h := rfc9111.StoredHeader(response(given), rfc9111.ResponseControl{}, shared)
		if got := h.Get("Date"); got != date(0) {
			t.Errorf("%s: Date is %q", given, got)
		}
	}
	h := rfc9111.StoredHeader(response("Date: $-5s"), rfc9111.ResponseControl{}, shared)
	if got := h.Get("Date"); got != date(-5*time.Second) {
		t.Errorf("a valid Date became %q", got)
	}
}

// Pitfall 40: header maps that responses share.
func TestStoredHeaderIsACopy(t *testing.T) {
	resp := response("A: 1\nA: 2")
	h := rfc9111.StoredHeader(resp, rfc9111.ResponseControl{}, shared)
	h["A"][0] = "changed"
	h.Set("B", "new")
	if got := resp.Header["A"][0]; got != "1" || resp.Header.Get("B") != "" {
		t.Errorf("the response changed with its stored header: %v", resp.Header)
	}
	if h := rfc9111.StoredHeader(&rfc9111.Response{Status: 200, ResponseTime: noon}, rfc9111.ResponseControl{}, shared); h.Get("Date") == "" {
		t.Error("no header: no Date is stored")
	}
}

func TestAgeIsWholeSecondsInBounds(t *testing.T) {
	for age, want := range map[time.Duration]string{
		0: "0", 1999 * time.Millisecond: "1", -time.Hour: "0", 1 << 62: "2147483648",
	} {
		h := http.Header{}
		rfc9111.SetAge(h, age)
		if h.Get("Age") != want {
			t.Errorf("%v: %q", age, h.Get("Age"))
		}
	}
}
