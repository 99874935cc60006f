// Package rfc9111 has the rules of HTTP caching for the middleware and the transport: which
// responses may be stored, how long they are fresh, when they may be used again, and in
// which form they answer a request. Its functions are pure functions of messages and
// times. A function changes a header only if its doc says so.
//
// The rules are those of RFC 9111 (caching), RFC 9110 sections 13 and 14 (conditional
// requests and ranges), RFC 5861 (stale-while-revalidate and stale-if-error), RFC 8246
// (immutable), RFC 9211 (Cache-Status) and RFC 9213 (targeted Cache-Control).
// docs/http.md lists them with the tests of each.
package rfc9111

import (
	"net/http"
	"time"
)

// Options describe the cache. The zero value is a private cache that follows the
// responses alone.
type Options struct {
	// Shared: answers go to more than one user. The rules of private, s-maxage,
	// proxy-revalidate and Authorization apply, and the fields of Targets.
	Shared bool
	// Targets are the targeted fields (RFC 9213) that this cache obeys, the most
	// specific first. Nil means CDN-Cache-Control if Shared, and none otherwise.
	Targets []string
	// AllowSetCookie: a response with Set-Cookie may be stored, in a shared cache only if
	// it also has public or s-maxage.
	AllowSetCookie bool
	// Heuristic: a response that states no lifetime is fresh for a tenth of the time since
	// its last change, at most 24 hours.
	Heuristic bool
	// Lifetime of responses that state none, from their arrival on; it precedes Heuristic.
	Lifetime time.Duration
	// Defaults for responses that state none and may be served stale.
	StaleWhileRevalidate, StaleIfError time.Duration
	// ApparentAge: the Date of a response counts for its age. Its clock and ours must agree.
	ApparentAge bool
}

// A Response is a received or a stored response, without its body.
type Response struct {
	Status int
	Header http.Header
	// RequestTime and ResponseTime are the times of sending the request and of receiving
	// the header, by one clock. The time between them counts as age, unless RequestTime is
	// zero. ResponseTime also replaces a missing Date.
	RequestTime, ResponseTime time.Time
}
