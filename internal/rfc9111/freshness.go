package rfc9111

import (
	"net/http"
	"strings"
	"time"
)

// Freshness is the time for which a response may be used.
type Freshness struct {
	// Lifetime from its generation on. A response of that age is stale.
	Lifetime time.Duration
	Origin   Origin // of Lifetime
	// InitialAge is its age at the arrival (RFC 9111, 4.2.3), from which it grows.
	InitialAge time.Duration

	// NoCache: it is validated before each use.
	NoCache bool
	// NeverStale: must-revalidate, no-cache and, in a shared cache, proxy-revalidate and
	// s-maxage forbid any stale use.
	NeverStale bool
	Immutable  bool // a request's max-age does not validate it while it is fresh

	// The times after Lifetime in which it may be served during a validation, or after one
	// that failed. 0 if NeverStale.
	StaleWhileRevalidate, StaleIfError time.Duration
}

// Origin is the source of a lifetime.
type Origin uint8

const (
	FromNothing   Origin = iota // none is stated; the lifetime is zero
	FromSMaxAge                 // s-maxage
	FromMaxAge                  // max-age
	FromExpires                 // Expires
	FromOptions                 // Options.Lifetime
	FromHeuristic               // Last-Modified
)

// FreshnessOf computes the freshness of a response.
func FreshnessOf(resp *Response, o Options) Freshness {
	return freshnessOf(resp, ParseResponse(resp.Header, o), o)
}

func freshnessOf(resp *Response, c ResponseControl, o Options) Freshness {
	f := Freshness{
		InitialAge: resp.initialAge(o),
		NoCache:    c.NoCache,
		Immutable:  c.Immutable,
		NeverStale: c.NoCache || c.MustRevalidate || (o.Shared && (c.ProxyRevalidate || c.SMaxAge.Set)),
	}
	f.Lifetime, f.Origin = resp.lifetime(c, o)
	if f.Origin == FromOptions {
		// It starts at the arrival: a response that takes longer must be fresh for some time.
		f.Lifetime = min(f.Lifetime+resp.delay(), MaxDelta)
	}
	if !f.NeverStale {
		f.StaleWhileRevalidate = c.StaleWhileRevalidate.or(o.StaleWhileRevalidate)
		f.StaleIfError = c.StaleIfError.or(o.StaleIfError)
	}
	return f
}

// lifetime is RFC 9111, 4.2.1: the first that is present counts, valid or not.
func (r *Response) lifetime(c ResponseControl, o Options) (time.Duration, Origin) {
	expires, hasExpires := r.Header["Expires"]
	targeted := c.Field != "" && c.Field != cacheControl
	switch {
	case o.Shared && c.SMaxAge.Set:
		return c.SMaxAge.Value, FromSMaxAge
	case c.MaxAge.Set:
		return c.MaxAge.Value, FromMaxAge
	case hasExpires && !targeted: // RFC 9213, 2.2
		return r.untilExpiry(expires), FromExpires
	case !c.Public && !heuristicStatus(r.Status):
		return 0, FromNothing
	case o.Lifetime > 0:
		return min(o.Lifetime, MaxDelta), FromOptions
	}
	modified, ok := r.lastModified()
	if age := r.date().Sub(modified); o.Heuristic && ok && age > 0 { // RFC 9111, 4.2.2
		return min(age/10, 24*time.Hour), FromHeuristic
	}
	return 0, FromNothing
}

// untilExpiry is Expires less Date. A malformed Expires has expired (RFC 9111, 5.3), and
// of several the earliest counts.
func (r *Response) untilExpiry(expires []string) time.Duration {
	left := MaxDelta
	for _, e := range expires {
		t, ok := ParseDate(e, r.ResponseTime)
		if !ok {
			return 0
		}
		left = min(left, t.Sub(r.date()))
	}
	return max(left, 0)
}

// initialAge is corrected_initial_age of RFC 9111, 4.2.3. Of several ages the first
// counts, and a malformed one is ignored (5.1).
func (r *Response) initialAge(o Options) time.Duration {
	first, _, _ := strings.Cut(r.Header.Get("Age"), ",")
	age, _ := parseSeconds(trim(first))
	age += r.delay()
	if o.ApparentAge {
		age = max(age, r.ResponseTime.Sub(r.date()))
	}
	return min(age, MaxDelta)
}

// delay is the time from the request to the response.
func (r *Response) delay() time.Duration {
	if r.RequestTime.IsZero() {
		return 0
	}
	return min(max(r.ResponseTime.Sub(r.RequestTime), 0), MaxDelta)
}

// date is the time of the response's generation, or that of its arrival if it has no Date.
func (r *Response) date() time.Time {
	if t, ok := ParseDate(r.Header.Get("Date"), r.ResponseTime); ok {
		return t
	}
	return r.ResponseTime
}

func (r *Response) lastModified() (time.Time, bool) {
	return ParseDate(r.Header.Get("Last-Modified"), r.ResponseTime)
}

// heuristicStatus reports whether a response with that status and no lifetime may be
// stored (RFC 9110, 15.1). 206 is left out: partial responses are not stored here.
func heuristicStatus(status int) bool {
	switch status {
	case http.StatusOK, http.StatusNonAuthoritativeInfo, http.StatusNoContent,
		http.StatusMultipleChoices, http.StatusMovedPermanently, http.StatusPermanentRedirect,
		http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone,
		http.StatusRequestURITooLong, http.StatusNotImplemented:
		return true
	}
	return false
}

// Left is the rest of the lifetime at an age; negative if the response is stale.
func (f Freshness) Left(age time.Duration) time.Duration { return f.Lifetime - age }

// A Verdict decides about a request, given a stored response.
type Verdict uint8

const (
	Validate        Verdict = iota // validate it first, or fetch it anew
	ServeFresh                     // it is fresh, and answers the request
	ServeStale                     // it is stale, and the client accepts that (max-stale)
	ServeAndRefresh                // stale-while-revalidate: serve it, and validate it in the background
	GatewayTimeout                 // answer 504: only-if-cached forbids to ask the origin
)

// MayServe decides about a request, given the age of a stored response (RFC 9111, 4). With
// Validate and GatewayTimeout comes the reason: FwdRequest if the response is fresh and
// the request excludes it, else FwdStale.
func MayServe(f Freshness, age time.Duration, req RequestControl) (Verdict, Fwd) {
	v, why := judge(f, age, req)
	if v == Validate {
		v = MayServeNothing(req)
	}
	return v, why
}

// MayServeNothing is MayServe without a stored response.
func MayServeNothing(req RequestControl) Verdict {
	if req.OnlyIfCached {
		return GatewayTimeout
	}
	return Validate
}

func judge(f Freshness, age time.Duration, req RequestControl) (Verdict, Fwd) {
	left, tooOld := f.Left(age), req.MaxAge.Set && age > req.MaxAge.Value
	switch {
	case f.NoCache:
		return Validate, FwdStale
	case left > 0 && (req.NoCache || tooOld && !f.Immutable || req.MinFresh.Set && left < req.MinFresh.Value):
		return Validate, FwdRequest
	case left > 0:
		return ServeFresh, ""
	case f.NeverStale, req.NoCache, req.MinFresh.Set, tooOld,
		req.MaxAge.Set && !req.MaxStale.Set: // RFC 9111, 5.2.1.1
		return Validate, FwdStale
	case -left < f.StaleWhileRevalidate:
		return ServeAndRefresh, ""
	case req.MaxStale.Set && -left <= req.MaxStale.Value:
		return ServeStale, ""
	}
	return Validate, FwdStale
}

// MayServeOnError reports whether a stored response may be served after its validation
// failed: no answer came, or one that IsError (RFC 5861, 4). A request with no-cache gets
// the error.
func MayServeOnError(f Freshness, age time.Duration, req RequestControl) bool {
	left := f.Left(age)
	switch {
	case f.NoCache, req.NoCache:
		return false
	case left > 0:
		return true
	case f.NeverStale:
		return false
	}
	return -left < max(f.StaleIfError, req.StaleIfError.Value)
}

// IsError reports whether stale-if-error covers a status.
func IsError(status int) bool {
	return status == 500 || status == 502 || status == 503 || status == 504
}
