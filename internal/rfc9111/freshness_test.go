package rfc9111_test

import (
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

type freshnessRow struct {
	rule
	resp string
	opts rfc9111.Options
	want rfc9111.Freshness
}

const second, day = time.Second, 24 * time.Hour

var (
	apparent = rfc9111.Options{Shared: true, ApparentAge: true}
	lenient  = rfc9111.Options{Shared: true, Lifetime: time.Minute, StaleWhileRevalidate: 20 * second, StaleIfError: 30 * second}
)

type fresh = rfc9111.Freshness

var freshnessRows = []freshnessRow{
	{rule{"9111 4.2.1", "s-maxage outranks max-age and Expires in a shared cache"}, "Cache-Control: max-age=9, s-maxage=5\nExpires: $1h", shared, fresh{Lifetime: 5 * second, Origin: rfc9111.FromSMaxAge, NeverStale: true}},
	{rule{"9111 4.2.1", "s-maxage means nothing in a private cache"}, "Cache-Control: max-age=9, s-maxage=5", private, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge}},
	{rule{"9111 4.2.1", "max-age outranks Expires"}, "Cache-Control: max-age=9\nExpires: $1h", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge}},
	{rule{"9111 4.2.1", "max-age outranks an Expires that has passed"}, "Cache-Control: max-age=9\nExpires: $-1h", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge}},
	{rule{"9111 4.2.1", "Expires counts from Date"}, "Expires: $0s\nDate: $-1h", shared, fresh{Lifetime: time.Hour, Origin: rfc9111.FromExpires}},
	{rule{"9111 4.2.1", "Expires counts from the arrival if there is no Date"}, "Expires: $1h", shared, fresh{Lifetime: time.Hour, Origin: rfc9111.FromExpires}},
	{rule{"9111 4.2.1", "of two Expires the earlier counts"}, "Expires: $1h\nExpires: $1m", shared, fresh{Lifetime: time.Minute, Origin: rfc9111.FromExpires}},
	{rule{"9111 4.2.1", "a max-age that can't be read is stale, and Expires doesn't help"}, "Cache-Control: max-age=x\nExpires: $1h", shared, fresh{Origin: rfc9111.FromMaxAge}},
	{rule{"9111 4.2.1", "an s-maxage that can't be read is stale, and max-age doesn't help"}, "Cache-Control: s-maxage=x, max-age=9", shared, fresh{Origin: rfc9111.FromSMaxAge, NeverStale: true}},
	{rule{"9111 5.3", "an Expires that isn't a date has passed"}, "Expires: 0", shared, fresh{Origin: rfc9111.FromExpires}},
	{rule{"9111 5.3", "an Expires before Date has passed"}, "Expires: $-1h\nDate: $0s", shared, fresh{Origin: rfc9111.FromExpires}},
	{rule{"9111 5.3", "an Expires far away is cut to 2^31 seconds"}, "Expires: Fri, 31 Dec 9999 23:59:59 GMT", shared, fresh{Lifetime: rfc9111.MaxDelta, Origin: rfc9111.FromExpires}},
	{rule{"9111 5.3", "an invalid Expires beside Options.Lifetime has passed still"}, "Expires: -1", lifetime, fresh{Origin: rfc9111.FromExpires}},

	{rule{"9111 4.2.2", "no lifetime is guessed unless asked for"}, "Last-Modified: $-100h", shared, fresh{}},
	{rule{"9111 4.2.2", "a tenth of the time since Last-Modified"}, "Last-Modified: $-100h", guesses, fresh{Lifetime: 10 * time.Hour, Origin: rfc9111.FromHeuristic}},
	{rule{"9111 4.2.2", "a day at most"}, "Last-Modified: $-10000h", guesses, fresh{Lifetime: day, Origin: rfc9111.FromHeuristic}},
	{rule{"9111 4.2.2", "nothing if it was modified in the future"}, "Last-Modified: $1h", guesses, fresh{}},
	{rule{"9111 4.2.2", "nothing without Last-Modified"}, "Etag: \"a\"", guesses, fresh{}},
	{rule{"9111 4.2.2", "nothing if a lifetime is stated"}, "Cache-Control: max-age=0\nLast-Modified: $-100h", guesses, fresh{Origin: rfc9111.FromMaxAge}},
	{rule{"9111 4.2.2", "no lifetime is guessed for a status that isn't heuristically cacheable"}, "302\nLast-Modified: $-100h", guesses, fresh{}},
	{rule{"9111 4.2.2", "a lifetime is guessed for such a status if it says public"}, "302\nLast-Modified: $-100h\nCache-Control: public", guesses, fresh{Lifetime: 10 * time.Hour, Origin: rfc9111.FromHeuristic}},
	{rule{"9111 4.2.2", "Options.Lifetime goes before guessing, and after a stated lifetime"}, "Last-Modified: $-100h", rfc9111.Options{Heuristic: true, Lifetime: time.Minute}, fresh{Lifetime: time.Minute, Origin: rfc9111.FromOptions}},

	{rule{"9111 4.2.3", "Age counts"}, "Cache-Control: max-age=9\nAge: 5", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, InitialAge: 5 * second}},
	{rule{"9111 4.2.3", "Date doesn't count as age unless clocks agree"}, "Cache-Control: max-age=9\nDate: $-1h", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge}},
	{rule{"9111 4.2.3", "Date counts as age if they do"}, "Cache-Control: max-age=9\nDate: $-1h\nAge: 5", apparent, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, InitialAge: time.Hour}},
	{rule{"9111 4.2.3", "a Date in the future makes nothing younger"}, "Cache-Control: max-age=9\nDate: $1h\nAge: 5", apparent, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, InitialAge: 5 * second}},
	{rule{"9111 5.1", "of several Age the first counts"}, "Age: 5, 9\nAge: 12", shared, fresh{InitialAge: 5 * second}},
	{rule{"9111 5.1", "an Age that isn't a number is ignored"}, "Age: abc", shared, fresh{}},
	{rule{"9111 5.1", "a negative Age is ignored"}, "Age: -5", shared, fresh{}},
	{rule{"9111 5.1", "an Age that overflows is cut to 2^31"}, "Age: 99999999999999999999", shared, fresh{InitialAge: rfc9111.MaxDelta}},

	{rule{"9111 4.2.4", "must-revalidate forbids staleness, whatever the options say"}, "Cache-Control: must-revalidate", lenient, fresh{Lifetime: time.Minute, Origin: rfc9111.FromOptions, NeverStale: true}},
	{rule{"9111 4.2.4", "proxy-revalidate forbids it in a shared cache"}, "Cache-Control: proxy-revalidate, max-age=9, stale-if-error=5", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, NeverStale: true}},
	{rule{"9111 4.2.4", "proxy-revalidate doesn't in a private one"}, "Cache-Control: proxy-revalidate, max-age=9, stale-if-error=5", private, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, StaleIfError: 5 * second}},
	{rule{"9111 4.2.4", "s-maxage forbids it in a shared cache, even beside stale-while-revalidate"}, "Cache-Control: s-maxage=9, stale-while-revalidate=5", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromSMaxAge, NeverStale: true}},
	{rule{"9111 4.2.4", "no-cache forbids it"}, "Cache-Control: no-cache, max-age=9, stale-if-error=5", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, NeverStale: true, NoCache: true}},
	{rule{"5861 3", "stale-while-revalidate"}, "Cache-Control: max-age=9, stale-while-revalidate=5", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, StaleWhileRevalidate: 5 * second}},
	{rule{"5861 4", "stale-if-error"}, "Cache-Control: max-age=9, stale-if-error=5", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, StaleIfError: 5 * second}},
	{rule{"5861 3", "the terms of a response go before the options"}, "Cache-Control: max-age=9, stale-while-revalidate=0, stale-if-error=5", lenient, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, StaleIfError: 5 * second}},
	{rule{"5861 3", "the options stand in for missing terms"}, "Cache-Control: max-age=9", lenient, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, StaleWhileRevalidate: 20 * second, StaleIfError: 30 * second}},
	{rule{"8246 2", "immutable"}, "Cache-Control: max-age=9, immutable", shared, fresh{Lifetime: 9 * second, Origin: rfc9111.FromMaxAge, Immutable: true}},
	{rule{"9213 2.2", "CDN-Cache-Control outranks the lifetime of Cache-Control"}, "Cache-Control: max-age=9, s-maxage=9\nCdn-Cache-Control: max-age=5", shared, fresh{Lifetime: 5 * second, Origin: rfc9111.FromMaxAge}},
	{rule{"9213 2.2", "CDN-Cache-Control outranks Expires, even without a lifetime of its own"}, "Expires: $1h\nCdn-Cache-Control: public", shared, fresh{}},
}

func TestFreshness(t *testing.T) {
	run(t, freshnessRows, func(t *testing.T, r freshnessRow) {
		if got := rfc9111.FreshnessOf(response(r.resp), r.opts); got != r.want {
			t.Errorf("got %+v, want %+v", got, r.want)
		}
	})
}

// RFC 9111, 4.2.3: response_delay.
func TestTheTimeOfTheRequestCountsAsAge(t *testing.T) {
	resp := response("Cache-Control: max-age=9\nAge: 5")
	resp.RequestTime = noon.Add(-3 * second)
	if got := rfc9111.FreshnessOf(resp, shared).InitialAge; got != 8*second {
		t.Errorf("got %v", got)
	}
	resp.RequestTime = noon.Add(time.Hour) // a clock that was set back
	if got := rfc9111.FreshnessOf(resp, shared).InitialAge; got != 5*second {
		t.Errorf("clock set back: got %v", got)
	}
	resp.RequestTime = time.Time{}
	if got := rfc9111.FreshnessOf(resp, shared).InitialAge; got != 5*second {
		t.Errorf("no time of the request: got %v", got)
	}
}

// Options.Lifetime starts at the arrival. Otherwise a response that takes longer than that
// would never be fresh.
func TestALifetimeOfTheOptionsCountsFromTheArrival(t *testing.T) {
	resp := response("Age: 5")
	resp.RequestTime = noon.Add(-3 * time.Minute)
	got := rfc9111.FreshnessOf(resp, lifetime)
	if left := got.Left(got.InitialAge); left != lifetime.Lifetime-5*second {
		t.Errorf("of %v there are %v left, want all but its Age of 5 s", lifetime.Lifetime, left)
	}
	resp = response("Cache-Control: max-age=60")
	resp.RequestTime = noon.Add(-3 * time.Minute)
	if got := rfc9111.FreshnessOf(resp, lifetime); got.Left(got.InitialAge) >= 0 {
		t.Errorf("a stated lifetime counts from the generation: %+v", got)
	}
}

type serveRow struct {
	rule
	resp string
	age  int
	req  string // Cache-Control
	want rfc9111.Verdict
	why  rfc9111.Fwd
}

var serveRows = []serveRow{
	{rule{"9111 4", "fresh: served"}, "max-age=9", 8, "", rfc9111.ServeFresh, ""},
	{rule{"9111 4", "stale: validated"}, "max-age=9", 10, "", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 4.2", "fresh only while the lifetime is greater than the age"}, "max-age=9", 9, "", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 4.2", "without a lifetime: validated at once"}, "public", 0, "", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.2.4", "no-cache: validated though fresh"}, "max-age=9, no-cache", 0, "", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.2.4", "no-cache: not for max-stale either"}, "max-age=9, no-cache", 10, "max-stale", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.2.4", "no-cache with fields: served without them"}, "max-age=9, no-cache=\"a\"", 0, "", rfc9111.ServeFresh, ""},
	{rule{"9111 5.2.2.2", "must-revalidate: served while fresh"}, "max-age=9, must-revalidate", 8, "", rfc9111.ServeFresh, ""},
	{rule{"9111 5.2.2.2", "must-revalidate: not stale for max-stale"}, "max-age=9, must-revalidate", 10, "max-stale", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.2.8", "proxy-revalidate: not stale for max-stale"}, "max-age=9, proxy-revalidate", 10, "max-stale", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.2.10", "s-maxage: not stale for max-stale"}, "s-maxage=9", 10, "max-stale", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.1.1", "max-age: an older response is validated"}, "max-age=9", 6, "max-age=5", rfc9111.Validate, rfc9111.FwdRequest},
	{rule{"9111 5.2.1.1", "max-age: one of that age will do"}, "max-age=9", 5, "max-age=5", rfc9111.ServeFresh, ""},
	{rule{"9111 5.2.1.1", "max-age: a longer one makes nothing fresh"}, "max-age=9", 10, "max-age=50", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.1.1", "max-age: nothing stale without max-stale"}, "max-age=9, stale-while-revalidate=9", 10, "max-age=50", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.1.1", "max-age: with max-stale a stale response will do"}, "max-age=9, stale-while-revalidate=9", 10, "max-age=50, max-stale", rfc9111.ServeAndRefresh, ""},
	{rule{"9111 5.2.1.2", "max-stale: served stale"}, "max-age=9", 10, "max-stale", rfc9111.ServeStale, ""},
	{rule{"9111 5.2.1.2", "max-stale: within its bound"}, "max-age=9", 14, "max-stale=5", rfc9111.ServeStale, ""},
	{rule{"9111 5.2.1.2", "max-stale: not beyond"}, "max-age=9", 15, "max-stale=5", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.1.3", "min-fresh: a response that is fresh for less is validated"}, "max-age=9", 6, "min-fresh=5", rfc9111.Validate, rfc9111.FwdRequest},
	{rule{"9111 5.2.1.3", "min-fresh: a response that is fresh for that long is served"}, "max-age=9", 4, "min-fresh=5", rfc9111.ServeFresh, ""},
	{rule{"9111 5.2.1.3", "min-fresh: nothing stale"}, "max-age=9, stale-while-revalidate=9", 10, "min-fresh=0", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.1.4", "no-cache: validated though fresh"}, "max-age=9", 1, "no-cache", rfc9111.Validate, rfc9111.FwdRequest},
	{rule{"9111 5.2.1.4", "no-cache outweighs max-stale"}, "max-age=9", 10, "no-cache, max-stale", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"9111 5.2.1.7", "only-if-cached: 504 for a stale response"}, "max-age=9", 10, "only-if-cached", rfc9111.GatewayTimeout, rfc9111.FwdStale},
	{rule{"9111 5.2.1.7", "only-if-cached: served if fresh"}, "max-age=9", 8, "only-if-cached", rfc9111.ServeFresh, ""},
	{rule{"9111 5.2.1.7", "only-if-cached: and with max-stale if stale"}, "max-age=9", 10, "only-if-cached, max-stale", rfc9111.ServeStale, ""},
	{rule{"5861 3", "stale-while-revalidate: served, and validated in the background"}, "max-age=9, stale-while-revalidate=5", 13, "", rfc9111.ServeAndRefresh, ""},
	{rule{"5861 3", "stale-while-revalidate: not beyond its time"}, "max-age=9, stale-while-revalidate=5", 14, "", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"5861 3", "stale-while-revalidate: not a response too old for the request"}, "max-age=9, stale-while-revalidate=5", 10, "max-age=5", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"5861 3", "stale-while-revalidate: must-revalidate forbids it"}, "max-age=9, stale-while-revalidate=5, must-revalidate", 10, "", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"5861 4", "stale-if-error is no reason to serve stale without an error"}, "max-age=9, stale-if-error=5", 10, "", rfc9111.Validate, rfc9111.FwdStale},
	{rule{"8246 2", "immutable: a request's max-age is no reason to validate"}, "max-age=9, immutable", 6, "max-age=0", rfc9111.ServeFresh, ""},
	{rule{"8246 2", "immutable: its no-cache is"}, "max-age=9, immutable", 6, "no-cache", rfc9111.Validate, rfc9111.FwdRequest},
	{rule{"8246 2", "immutable: means nothing once stale"}, "max-age=9, immutable", 10, "", rfc9111.Validate, rfc9111.FwdStale},
}

func TestMayServe(t *testing.T) {
	run(t, serveRows, func(t *testing.T, r serveRow) {
		f := rfc9111.FreshnessOf(response("Cache-Control: "+r.resp), shared)
		req := rfc9111.ParseRequest(fields("Cache-Control: " + r.req))
		got, why := rfc9111.MayServe(f, time.Duration(r.age)*second, req)
		if got != r.want || why != r.why {
			t.Errorf("got %d %q, want %d %q", got, why, r.want, r.why)
		}
	})
}

func TestOnlyIfCachedWithNothingStoredIs504(t *testing.T) {
	if v := rfc9111.MayServeNothing(rfc9111.RequestControl{OnlyIfCached: true}); v != rfc9111.GatewayTimeout {
		t.Errorf("only-if-cached: %d", v)
	}
	if v := rfc9111.MayServeNothing(rfc9111.RequestControl{}); v != rfc9111.Validate {
		t.Errorf("without: %d", v)
	}
}

type onErrorRow struct {
	rule
	resp string
	age  int
	req  string
	want bool
}

var onErrorRows = []onErrorRow{
	{rule{"5861 4", "stale-if-error: served when validation fails"}, "max-age=9, stale-if-error=5", 13, "", true},
	{rule{"5861 4", "stale-if-error: not beyond its time"}, "max-age=9, stale-if-error=5", 14, "", false},
	{rule{"5861 4", "stale-if-error: not without it"}, "max-age=9", 10, "", false},
	{rule{"5861 4", "stale-if-error in a request"}, "max-age=9", 10, "stale-if-error=5", true},
	{rule{"5861 4", "stale-if-error in a request doesn't outweigh must-revalidate"}, "max-age=9, must-revalidate", 10, "stale-if-error=5", false},
	{rule{"9111 4.2.4", "must-revalidate: not served stale when validation fails"}, "max-age=9, must-revalidate, stale-if-error=5", 10, "", false},
	{rule{"9111 4.2.4", "proxy-revalidate: not served stale when validation fails"}, "max-age=9, proxy-revalidate, stale-if-error=5", 10, "", false},
	{rule{"9111 4.2.4", "s-maxage: not served stale when validation fails"}, "s-maxage=9, stale-if-error=5", 10, "", false},
	{rule{"9111 4.2.4", "no-cache: not served when validation fails, even while fresh"}, "max-age=9, no-cache, stale-if-error=5", 1, "", false},
	{rule{"9111 4.2.4", "a request's no-cache: not served when validation fails"}, "max-age=9, stale-if-error=5", 1, "no-cache", false},
	{rule{"9111 4.3.3", "a fresh response, validated for a preference only, is served when that fails"}, "max-age=9, must-revalidate", 6, "max-age=5", true},
}

func TestMayServeOnError(t *testing.T) {
	run(t, onErrorRows, func(t *testing.T, r onErrorRow) {
		f := rfc9111.FreshnessOf(response("Cache-Control: "+r.resp), shared)
		req := rfc9111.ParseRequest(fields("Cache-Control: " + r.req))
		if got := rfc9111.MayServeOnError(f, time.Duration(r.age)*second, req); got != r.want {
			t.Errorf("got %v, want %v", got, r.want)
		}
	})
}

func TestErrorsOfStaleIfError(t *testing.T) {
	for status := range 1000 {
		want := status == 500 || status == 502 || status == 503 || status == 504
		if rfc9111.IsError(status) != want {
			t.Errorf("%d: want %v", status, want)
		}
	}
}
