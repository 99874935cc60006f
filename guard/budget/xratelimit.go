package budget

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// legacyRateLimit reads RateLimit-Limit, -Remaining and -Reset, of
// draft-ietf-httpapi-ratelimit-headers up to 06. The limit may be followed by
// policies: "100, 100;w=60".
func legacyRateLimit(h http.Header, now time.Time) (Advice, bool) {
	a, ok := counted(h, "RateLimit-Remaining", "RateLimit-Limit")
	if !ok {
		return Advice{}, false
	}
	if d, ok := resetAt(h.Get("RateLimit-Reset"), now); ok {
		a.Reset = d
	}
	for _, p := range policiesOf(h) {
		if p.quota == a.Limit {
			a.Window = p.window
		}
	}
	return a, true
}

// xRateLimit reads the headers that became a custom before there was a draft.
func xRateLimit(h http.Header, now time.Time) (Advice, bool) {
	for _, prefix := range []string{"X-RateLimit-", "X-Rate-Limit-"} {
		a, ok := counted(h, prefix+"Remaining", prefix+"Limit")
		if !ok {
			continue
		}
		if d, ok := seconds(h.Get(prefix + "Reset-After")); ok {
			a.Reset = d
		} else if d, ok := resetAt(h.Get(prefix+"Reset"), now); ok {
			a.Reset = d
		}
		return a, true
	}
	return Advice{}, false
}

// counted reads what is left, and of how much.
func counted(h http.Header, remaining, limit string) (Advice, bool) {
	left, ok := count(h.Get(remaining))
	if !ok {
		return Advice{}, false
	}
	a := Advice{Remaining: left}
	value, _, _ := strings.Cut(h.Get(limit), ",")
	value, _, _ = strings.Cut(value, ";")
	a.Limit, _ = count(value)
	return a, true
}

// resetAt reads a reset that may be a point in time or a distance: what would be
// 31 years away is seconds since 1970, and what would be 31,000 is milliseconds.
func resetAt(value string, now time.Time) (time.Duration, bool) {
	n, ok := number(value)
	if !ok {
		return 0, false
	}
	switch {
	case n >= 1e12:
		n = n/1e3 - float64(now.UnixMilli())/1e3
	case n >= 1e9:
		n -= float64(now.UnixMilli()) / 1e3
	}
	return fromSeconds(max(0, n)), true
}

// shopify reads X-Shopify-Shop-Api-Call-Limit: how full its bucket is, and how
// large. It leaks, so there is no reset.
func shopify(h http.Header, _ time.Time) (Advice, bool) {
	used, size, ok := strings.Cut(h.Get("X-Shopify-Shop-Api-Call-Limit"), "/")
	n, okUsed := count(used)
	limit, okSize := count(size)
	if !ok || !okUsed || !okSize || limit == 0 {
		return Advice{}, false
	}
	return Advice{Remaining: max(0, limit-n), Limit: limit}, true
}

// count reads a whole number of units.
func count(value string) (int, bool) {
	value = strings.TrimSpace(value)
	if value == "" || len(value) > 40 || strings.Trim(value, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil { // it has digits alone: too many of them
		n = math.MaxInt64
	}
	return units(n), true
}

// seconds reads a number of seconds, whole or not.
func seconds(value string) (time.Duration, bool) {
	n, ok := number(value)
	return fromSeconds(n), ok
}

func fromSeconds(n float64) time.Duration {
	return time.Duration(min(n, maxAdvice.Seconds()) * float64(time.Second))
}

// number reads digits, with a point or without, and nothing else that
// strconv takes: no sign, exponent, hexadecimal, infinity or NaN.
func number(value string) (float64, bool) {
	value = strings.TrimSpace(value)
	if value == "" || len(value) > 40 || strings.Trim(value, "0123456789.") != "" || value[0] == '.' {
		return 0, false
	}
	n, err := strconv.ParseFloat(value, 64)
	return n, err == nil
}
