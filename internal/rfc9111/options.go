package rfc9111

import (
	"net/http"
	"time"
)

// Options is what kind of cache the rules are applied for. The zero value is a
// private cache that goes by what responses say and by nothing else.
type Options struct {
	// Shared: answers go to more than one user. The rules of private, s-maxage,
	// proxy-revalidate and Authorization apply, and the fields of Targets.
	Shared bool
	// Targets are the targeted fields (RFC 9213) that this cache obeys, the most
	// specific first. Nil means CDN-Cache-Control if Shared, and none otherwise.
	Targets []string
	// AllowSetCookie: a response with Set-Cookie may be stored, in a shared cache
	// if it also says public or s-maxage. Without it none is.
	AllowSetCookie bool
	// Heuristic: a response that states no lifetime is fresh for a tenth of the
	// time since it was last modified, and for 24 hours at most.
	Heuristic bool
	// Lifetime of responses that state none, from their arrival on. It goes before
	// Heuristic. 0: none.
	Lifetime time.Duration
	// StaleWhileRevalidate and StaleIfError are for responses that don't state
	// them, and that nothing forbids to be served stale. 0: none.
	StaleWhileRevalidate, StaleIfError time.Duration
	// ApparentAge: the Date of a response counts as its age, which is right if
	// its clock and ours agree. Without it only Age and the time that the request
	// took do.
	ApparentAge bool
}

// A Response is one that was received, or that is stored. Its body is no
// business of this package.
type Response struct {
	Status int
	Header http.Header
	// RequestTime and ResponseTime are when the request was sent and when the
	// response's header arrived, by one clock. The time between them counts as age;
	// a zero RequestTime means that it took none. ResponseTime also stands in for a
	// missing Date.
	RequestTime, ResponseTime time.Time
}
