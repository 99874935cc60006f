package budget

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
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
	value = strings.TrimSpace(value)
	if value == "" || len(value) > 40 || strings.Trim(value, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil { // too many digits
		n = math.MaxInt64
	}
	return units(n), true
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
