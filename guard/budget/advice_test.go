package budget_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard/budget"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// headers are name, value, name, value.
func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

const (
	tooMany  = http.StatusTooManyRequests
	maxUnits = math.MaxInt32
	year     = 366 * 24 * time.Hour
)

var adviceCases = []struct {
	name   string
	status int
	header http.Header
	want   budget.Advice
}{
	{"nothing", 200, headers(), budget.Advice{Remaining: -1}},
	{"seconds", tooMany, headers("Retry-After", "3"), budget.Advice{Pause: 3 * time.Second, Remaining: -1}},
	{"seconds of a 503", 503, headers("Retry-After", "120"), budget.Advice{Pause: 2 * time.Minute, Remaining: -1}},
	{"GitHub's secondary limit", 403, headers("Retry-After", "60"), budget.Advice{Pause: time.Minute, Remaining: -1}},
	{"a 403 is no limit by itself", 403, headers(), budget.Advice{Remaining: -1}},
	{"a redirect may say when, too", 301, headers("Retry-After", "60"), budget.Advice{Remaining: -1}},
	{"a date", tooMany, headers("Retry-After", "Sun, 01 Mar 2026 12:00:30 GMT"), budget.Advice{Pause: 30 * time.Second, Remaining: -1}},
	{
		"a date by the upstream's clock", tooMany,
		headers("Retry-After", "Sun, 01 Mar 2026 18:00:30 GMT", "Date", "Sun, 01 Mar 2026 18:00:00 GMT"),
		budget.Advice{Pause: 30 * time.Second, Remaining: -1},
	},
	{"a date that has passed", tooMany, headers("Retry-After", "Sun, 01 Mar 2020 12:00:30 GMT"), budget.Advice{Remaining: -1}},
	{"no word of when", tooMany, headers(), budget.Advice{Pause: time.Second, Remaining: -1}},
	{"negative", tooMany, headers("Retry-After", "-5"), budget.Advice{Pause: time.Second, Remaining: -1}},
	{"huge", tooMany, headers("Retry-After", "99999999999999999999"), budget.Advice{Pause: year, Remaining: -1}},
	{"NaN", tooMany, headers("Retry-After", "NaN"), budget.Advice{Pause: time.Second, Remaining: -1}},
	{"infinite", tooMany, headers("Retry-After", "inf"), budget.Advice{Pause: time.Second, Remaining: -1}},
	{"an exponent", tooMany, headers("Retry-After", "1e9"), budget.Advice{Pause: time.Second, Remaining: -1}},
	{"two points", tooMany, headers("Retry-After", "1.2.3"), budget.Advice{Pause: time.Second, Remaining: -1}},

	{
		"named policies", 200,
		headers("RateLimit-Policy", `"minute";q=100;w=60, "day";q=5000;w=86400`, "RateLimit", `"minute";r=20;t=23, "day";r=4100;t=70000`),
		budget.Advice{Remaining: 20, Reset: 23 * time.Second, Limit: 100, Window: time.Minute},
	},
	{
		"named policies on two lines, as tokens", 200,
		headers("RateLimit", `minute;r=20;t=23`, "RateLimit", `day;r=3;t=70000`),
		budget.Advice{Remaining: 3, Reset: 70000 * time.Second},
	},
	{
		"no reset: the window", 200, headers("RateLimit-Policy", `"a";q=10;w=60`, "RateLimit", `"a";r=0`),
		budget.Advice{Remaining: 0, Reset: time.Minute, Limit: 10, Window: time.Minute},
	},
	{
		"bytes are no calls", 200,
		headers("RateLimit-Policy", `"b";q=1;w=60;qu="content-bytes", "c";q=9;w=60;qu="requests"`, "RateLimit", `"b";r=0;t=9, "c";r=5;t=30`),
		budget.Advice{Remaining: 5, Reset: 30 * time.Second, Limit: 9, Window: time.Minute},
	},
	{"draft 07", 200, headers("RateLimit", "limit=100, remaining=50, reset=5"), budget.Advice{Remaining: 50, Reset: 5 * time.Second, Limit: 100}},
	{
		"drafts to 06", 200, headers("RateLimit-Limit", "100, 100;w=60", "RateLimit-Remaining", "7", "RateLimit-Reset", "30", "RateLimit-Policy", "100;w=60"),
		budget.Advice{Remaining: 7, Reset: 30 * time.Second, Limit: 100, Window: time.Minute},
	},
	{"negative parameters", 200, headers("RateLimit", `"a";r=-1;t=-5`), budget.Advice{Remaining: -1}},
	{"a decimal", 200, headers("RateLimit", `"a";r=1.5;t=5`), budget.Advice{Remaining: -1}},
	{"the largest integers", 200, headers("RateLimit", `"a";r=999999999999999;t=999999999999999`), budget.Advice{Remaining: maxUnits, Reset: year}},
	{"more than an integer can be", 200, headers("RateLimit", `"a";r=9999999999999999`), budget.Advice{Remaining: -1}},
	{"an inner list", 200, headers("RateLimit", `("a" "b");r=1`), budget.Advice{Remaining: -1}},
	{
		"malformed, and an older form", 200, headers("RateLimit", `"a`, "X-RateLimit-Remaining", "5"),
		budget.Advice{Remaining: 5},
	},

	{
		"GitHub", 200, headers("X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4987", "X-RateLimit-Reset", "1772368200"),
		budget.Advice{Remaining: 4987, Limit: 5000, Reset: 1772368200*time.Second - time.Duration(noon.Unix())*time.Second},
	},
	{
		"GitHub's primary limit", 403,
		headers("X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1772367600", "Date", "Sun, 01 Mar 2026 11:59:00 GMT"),
		budget.Advice{Remaining: 0, Limit: 60, Reset: 21 * time.Minute},
	},
	{
		"a 429 with a reset alone", tooMany, headers("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1772366460"),
		budget.Advice{Pause: time.Minute, Remaining: 0, Reset: time.Minute},
	},
	{
		"Twitter", 200, headers("x-rate-limit-limit", "900", "x-rate-limit-remaining", "0", "x-rate-limit-reset", "1772366460"),
		budget.Advice{Remaining: 0, Limit: 900, Reset: time.Minute},
	},
	{"seconds to go", 200, headers("X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "30"), budget.Advice{Remaining: 1, Reset: 30 * time.Second}},
	{"milliseconds since 1970", 200, headers("X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "1772366401500"), budget.Advice{Remaining: 1, Reset: 1500 * time.Millisecond}},
	{"a reset that has passed", 200, headers("X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "1600000000"), budget.Advice{Remaining: 1}},
	{"Discord", 200, headers("X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "1772366400.500", "X-RateLimit-Reset-After", "0.5"), budget.Advice{Remaining: 1, Reset: 500 * time.Millisecond}},
	{"overflow", 200, headers("X-RateLimit-Remaining", "99999999999999999999999", "X-RateLimit-Reset", "99999999999999999999999999"), budget.Advice{Remaining: maxUnits, Reset: year}},
	{"negative, and so unsaid", 200, headers("X-RateLimit-Remaining", "-1", "X-RateLimit-Reset", "5"), budget.Advice{Remaining: -1}},
	{"Shopify", 200, headers("X-Shopify-Shop-Api-Call-Limit", "32/40"), budget.Advice{Remaining: 8, Limit: 40}},
	{"Shopify, over", 200, headers("X-Shopify-Shop-Api-Call-Limit", "41/40"), budget.Advice{Remaining: 0, Limit: 40}},
	{"Shopify, nonsense", 200, headers("X-Shopify-Shop-Api-Call-Limit", "/"), budget.Advice{Remaining: -1}},
}

func TestAdvice(t *testing.T) {
	for _, c := range adviceCases {
		t.Run(c.name, func(t *testing.T) {
			got := budget.Advise(c.status, c.header, noon)
			if d := got.Reset - c.want.Reset; d > time.Microsecond || d < -time.Microsecond { // of a fraction of a second since 1970
				t.Errorf("Reset is %v, want %v", got.Reset, c.want.Reset)
			}
			if d := got.Pause - c.want.Pause; d > time.Microsecond || d < -time.Microsecond {
				t.Errorf("Pause is %v, want %v", got.Pause, c.want.Pause)
			}
			got.Reset, got.Pause = c.want.Reset, c.want.Pause
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// sane checks the properties of every advice.
func sane(t *testing.T, a budget.Advice) {
	t.Helper()
	for _, d := range []time.Duration{a.Pause, a.Reset, a.Window} {
		if d < 0 || d > year {
			t.Fatalf("a duration of %v: %+v", d, a)
		}
	}
	if a.Remaining < -1 || a.Remaining > maxUnits || a.Limit < 0 || a.Limit > maxUnits {
		t.Fatalf("units out of bounds: %+v", a)
	}
}

// fuzzHeader fuzzes the header that a parser reads, and one that it reads with
// it.
func fuzzHeader(f *testing.F, status int, name, with string) {
	for _, c := range adviceCases {
		f.Add(c.header.Get(name), c.header.Get(with))
	}
	for _, hostile := range []string{"NaN", "-0", "1e308", "0x7fffffffffffffff", "9223372036854775808", "٣", "\x00", "1;1", "0/0", ":AAAA:", "@99999999999999", `"a";r=00000000000000000000000`} {
		f.Add(hostile, hostile)
	}
	f.Fuzz(func(t *testing.T, value, second string) {
		h := http.Header{}
		h.Add(name, value)
		h.Add(with, second)
		a := budget.Advise(status, h, noon)
		sane(t, a)
		if again := budget.Advise(status, h, noon); again != a {
			t.Fatalf("%+v, and %+v", a, again)
		}
	})
}

func FuzzRetryAfter(f *testing.F) { fuzzHeader(f, tooMany, "Retry-After", "Date") }
func FuzzRateLimit(f *testing.F)  { fuzzHeader(f, 200, "RateLimit", "RateLimit-Policy") }
func FuzzRateLimitRemaining(f *testing.F) {
	fuzzHeader(f, 200, "RateLimit-Remaining", "RateLimit-Limit")
}

func FuzzRateLimitReset(f *testing.F) {
	f.Add("5", "30")
	f.Fuzz(func(t *testing.T, remaining, reset string) {
		for _, prefix := range []string{"RateLimit-", "X-RateLimit-", "X-Rate-Limit-"} {
			for _, name := range []string{"Reset", "Reset-After"} {
				sane(t, budget.Advise(tooMany, headers(prefix+"Remaining", remaining, prefix+name, reset, prefix+"Limit", reset), noon))
			}
		}
	})
}

func FuzzShopify(f *testing.F) { fuzzHeader(f, 200, "X-Shopify-Shop-Api-Call-Limit", "Retry-After") }
