package budget

import (
	"net/http"
	"time"
)

// An Advice is what an upstream says of its limits with a response.
type Advice struct {
	// Pause is for how long nothing should be sent; 0: it didn't say.
	Pause time.Duration
	// Remaining is how many units it still allows until Reset; -1: it didn't say.
	Remaining int
	// Reset is when it allows more; 0: it didn't say, or it is a bucket that leaks.
	Reset time.Duration
	// Limit and Window are the quota of which Remaining is left; 0: it didn't say.
	// They are for information: a budget keeps to its own Limit.
	Limit  int
	Window time.Duration
}

// The most that is believed of any upstream, before Options.MaxPause.
const maxAdvice = 366 * 24 * time.Hour

// unasked is how long an upstream is left alone that answered 429 or 503 and
// didn't say for how long.
const unasked = time.Second

// Advise reads what a response says of the upstream's limits. It knows
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
// in this order: the first that says how much is left counts. Dates and points in
// time are compared with the response's own Date, if it has one, as clocks differ;
// now is used where it has none.
//
// What is malformed, negative, infinite or not a number counts as not said, and
// what is huge as a year, or the most units there are. A 429 or 503 that says
// nothing of when is a pause of a second.
func Advise(status int, header http.Header, now time.Time) Advice {
	if date, ok := parseDate(header.Get("Date")); ok {
		now = date
	}
	a := Advice{Remaining: -1}
	for _, read := range []func(http.Header, time.Time) (Advice, bool){rateLimit, legacyRateLimit, xRateLimit, shopify} {
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
			a.Pause = unasked
		}
	}
	return a
}

// retryAfter reads Retry-After: a number of seconds, or a date.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	if d, ok := seconds(value); ok {
		return d, true
	}
	if date, ok := parseDate(value); ok {
		return until(date, now), true
	}
	return 0, false
}

func parseDate(value string) (time.Time, bool) {
	t, err := http.ParseTime(value)
	return t, err == nil
}

// until is from now to t, at least 0.
func until(t, now time.Time) time.Duration { return max(0, min(t.Sub(now), maxAdvice)) }
