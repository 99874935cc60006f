package budget

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// An Advice is the part of a response that states the upstream's limits.
type Advice struct {
	// Pause is the time in which no calls should be sent; 0: not stated.
	Pause time.Duration
	// Remaining is the number of units allowed until Reset; -1: not stated.
	Remaining int
	// Reset is the time until more units are allowed; 0: not stated, or the upstream has
	// a leaky bucket.
	Reset time.Duration
	// Limit and Window are the quota of which Remaining is left; 0: not stated. A budget
	// does not use them: it keeps to its own Limit.
	Limit  int
	Window time.Duration
}

// maxAdvice bounds the times of an upstream, before Options.MaxPause does.
const maxAdvice = 366 * 24 * time.Hour

// defaultPause follows a 429 or 503 that states no time.
const defaultPause = time.Second

// Advise reads the upstream's limits from a response. It knows
//
//   - Retry-After, in seconds and as a date (RFC 9110, 10.2.3), of a 429, a 503, or
//     a 403, which GitHub sends for its secondary limits
//   - RateLimit and RateLimit-Policy, as structured fields: as a list of named
//     policies (draft-ietf-httpapi-ratelimit-headers-08 and later), and as a
//     dictionary (07)
//   - RateLimit-Limit, -Remaining and -Reset (06 and earlier)
//   - X-RateLimit-Limit, -Remaining and -Reset (GitHub: seconds since 1970; others:
//     seconds or milliseconds since 1970, or seconds to go), also written
//     X-Rate-Limit-… (Twitter, X), and X-RateLimit-Reset-After
//   - X-Shopify-Shop-Api-Call-Limit: used/size
//
// in this order: the first that states the remaining units counts. Dates and points in
// time are compared with the response's own Date, as clocks differ, or with now if it
// has none.
//
// A malformed, negative or infinite value counts as not stated. A huge one counts as a
// year, or as the largest number of units. A 429 or 503 that states no time is a pause
// of a second.
func Advise(status int, header http.Header, now time.Time) Advice {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	a := Advice{Remaining: -1}
	for _, read := range []func(http.Header, time.Time) (Advice, bool){rateLimit, countedLimit, shopify} {
		if found, ok := read(header, now); ok {
			a = found
			break
		}
	}
	rejected := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
	if rejected || status == http.StatusForbidden {
		retry, ok := retryAfter(header.Get("Retry-After"), now)
		switch {
		case ok:
			a.Pause = retry
		case rejected && a.Remaining <= 0 && a.Reset > 0:
			a.Pause = a.Reset
		case rejected:
			a.Pause = defaultPause
		}
	}
	return a
}

// retryAfter reads a number of seconds or a date.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	if n, ok := number(value); ok {
		return seconds(n), true
	}
	date, err := http.ParseTime(value)
	return max(0, min(date.Sub(now), maxAdvice)), err == nil
}

func units(n int64) int { return int(min(n, maxUnits)) }

func seconds(n float64) time.Duration {
	return time.Duration(max(0, min(n, maxAdvice.Seconds())) * float64(time.Second))
}

// count reads digits.
func count(value string) (int, bool) {
	n, ok := number(value)
	return int(min(n, maxUnits)), ok && !strings.Contains(value, ".")
}

// number reads digits with or without a point. It refuses the other forms of
// strconv: signs, exponents, hexadecimal numbers, infinity and NaN.
func number(value string) (float64, bool) {
	value = strings.TrimSpace(value)
	if value == "" || len(value) > 40 || strings.Trim(value, "0123456789.") != "" || value[0] == '.' {
		return 0, false
	}
	n, err := strconv.ParseFloat(value, 64)
	return n, err == nil
}

// rateLimit reads RateLimit and RateLimit-Policy as structured fields, and returns the
// policy with the least remaining units.
//
//	RateLimit-Policy: "minute";q=100;w=60, "day";q=5000;w=86400
//	RateLimit: "minute";r=20;t=23, "day";r=4100;t=70000
//
// and, in draft 07,
//
//	RateLimit: limit=100, remaining=50, reset=5
func rateLimit(h http.Header, _ time.Time) (least Advice, found bool) {
	fields := h.Values("RateLimit")
	if a, ok := readDictionary(fields); ok {
		return a, true
	}
	policies := readPolicies(h)
	for _, item := range readItems(fields) {
		name, _ := policyName(item)
		p := policies[name]
		remaining, ok := param(item, "r")
		if !ok || p.otherUnits {
			continue
		}
		a := Advice{Remaining: units(remaining), Limit: p.quota, Window: p.window, Reset: p.window}
		if t, ok := param(item, "t"); ok {
			a.Reset = seconds(float64(t))
		}
		if !found || a.Remaining < least.Remaining || a.Remaining == least.Remaining && a.Reset > least.Reset {
			least, found = a, true
		}
	}
	return least, found
}

// readDictionary reads the form of draft 07.
func readDictionary(fields []string) (Advice, bool) {
	d, err := httpsfv.UnmarshalDictionary(fields)
	if err != nil {
		return Advice{}, false
	}
	value := func(name string) (int64, bool) {
		member, _ := d.Get(name)
		item, _ := member.(httpsfv.Item)
		return positive(item.Value)
	}
	remaining, ok := value("remaining")
	limit, _ := value("limit")
	reset, _ := value("reset")
	return Advice{Remaining: units(remaining), Limit: units(limit), Reset: seconds(float64(reset))}, ok
}

// A policy is an item of RateLimit-Policy.
type policy struct {
	quota      int
	window     time.Duration
	otherUnits bool // it counts no requests but, for example, bytes
}

// readPolicies returns the policies by name.
func readPolicies(h http.Header) map[string]policy {
	all := map[string]policy{}
	for _, item := range readItems(h.Values("RateLimit-Policy")) {
		name, quota := policyName(item)
		if q, ok := param(item, "q"); ok {
			quota = q
		}
		window, _ := param(item, "w")
		unit, ok := item.Params.Get("qu")
		all[name] = policy{
			quota: units(quota), window: seconds(float64(window)),
			otherUnits: ok && unit != "requests" && unit != "request",
		}
	}
	return all
}

// policyName returns the name of a policy: a string, or a token in some drafts. Up to
// draft 06 an item has its quota in place of a name.
func policyName(item httpsfv.Item) (name string, quota int64) {
	switch v := item.Value.(type) {
	case string:
		return v, 0
	case httpsfv.Token:
		return string(v), 0
	}
	quota, _ = positive(item.Value)
	return "", quota
}

// readItems returns the items of a list, and none of a malformed list.
func readItems(fields []string) (items []httpsfv.Item) {
	list, _ := httpsfv.UnmarshalList(fields)
	for _, member := range list {
		if item, ok := member.(httpsfv.Item); ok {
			items = append(items, item)
		}
	}
	return items
}

func param(item httpsfv.Item, name string) (int64, bool) {
	v, _ := item.Params.Get(name)
	return positive(v)
}

// positive returns v if it is an integer of at least 0, else 0.
func positive(v any) (int64, bool) {
	if n, ok := v.(int64); ok && n >= 0 {
		return n, true
	}
	return 0, false
}

// countedLimit reads the fields of draft-ietf-httpapi-ratelimit-headers up to 06, in
// which policies may follow the limit ("100, 100;w=60"), and the X- fields before them.
func countedLimit(h http.Header, now time.Time) (Advice, bool) {
	for _, prefix := range []string{"RateLimit-", "X-RateLimit-", "X-Rate-Limit-"} {
		remaining, ok := count(h.Get(prefix + "Remaining"))
		if !ok {
			continue
		}
		a := Advice{Remaining: remaining}
		limit := h.Get(prefix + "Limit")
		if i := strings.IndexAny(limit, ",;"); i >= 0 {
			limit = limit[:i]
		}
		a.Limit, _ = count(limit)
		if n, ok := number(h.Get(prefix + "Reset-After")); ok {
			a.Reset = seconds(n)
		} else if n, ok := number(h.Get(prefix + "Reset")); ok {
			a.Reset = untilReset(n, now)
		}
		for _, p := range readPolicies(h) {
			if p.quota == a.Limit {
				a.Window = p.window
			}
		}
		return a, true
	}
	return Advice{}, false
}

// untilReset takes a number for a point in time if it would be 31 years away as a number
// of seconds. A point that would be 31,000 years away is in milliseconds.
func untilReset(n float64, now time.Time) time.Duration {
	switch unix := float64(now.UnixMilli()) / 1e3; {
	case n >= 1e12:
		n = n/1e3 - unix
	case n >= 1e9:
		n -= unix
	}
	return seconds(n)
}

// shopify reads X-Shopify-Shop-Api-Call-Limit: the level and the size of a leaky bucket,
// which has no reset.
func shopify(h http.Header, _ time.Time) (Advice, bool) {
	level, size, _ := strings.Cut(h.Get("X-Shopify-Shop-Api-Call-Limit"), "/")
	used, ok := count(level)
	limit, _ := count(size)
	return Advice{Remaining: max(0, limit-used), Limit: limit}, ok && limit > 0
}
