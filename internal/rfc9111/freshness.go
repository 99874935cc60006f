package rfc9111

import (
	"net/http"
	"time"
)

// Freshness is how long a response may be used.
type Freshness struct {
	// Lifetime from its generation on. What is that old is stale.
	Lifetime time.Duration
	Origin   Origin // of Lifetime
	// InitialAge is how old it was when it arrived (RFC 9111, 4.2.3). Its age
	// later on is that and the time it has been here.
	InitialAge time.Duration

	// NoCache: to be validated before each use.
	NoCache bool
	// NeverStale: nobody may have it stale, whatever a request or a policy says:
	// must-revalidate, no-cache and, in a shared cache, proxy-revalidate and
	// s-maxage.
	NeverStale bool
	Immutable  bool // a request's max-age is no reason to validate it while fresh

	// StaleWhileRevalidate and StaleIfError are how long after Lifetime it may be
	// served while it is validated, or when that fails. 0 if NeverStale.
	StaleWhileRevalidate, StaleIfError time.Duration
}

// Origin is where a lifetime is from.
type Origin uint8

const (
	FromNothing   Origin = iota // none is stated; the lifetime is zero
	FromSMaxAge                 // s-maxage
	FromMaxAge                  // max-age
	FromExpires                 // Expires
	FromOptions                 // Options.Lifetime
	FromHeuristic               // Last-Modified
)

// maxHeuristic bounds the lifetime that is guessed from Last-Modified.
const maxHeuristic = 24 * time.Hour

// FreshnessOf works out how long a response may be used.
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
		// The options don't know when it was generated: they mean from when it is here.
		// Or what takes longer than they say would never be fresh, and shared with nobody.
		f.Lifetime = min(f.Lifetime+resp.delay(), MaxDelta)
	}
	if !f.NeverStale {
		f.StaleWhileRevalidate = c.StaleWhileRevalidate.or(o.StaleWhileRevalidate)
		f.StaleIfError = c.StaleIfError.or(o.StaleIfError)
	}
	return f
}

func (d Delta) or(other time.Duration) time.Duration {
	if d.Set {
		return d.Value
	}
	return min(max(other, 0), MaxDelta)
}

// lifetime is RFC 9111, 4.2.1: the first that is there counts, valid or not.
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
	case o.Heuristic:
		return r.guess()
	}
	return 0, FromNothing
}

// untilExpiry is Expires less Date. What is invalid has expired (RFC 9111, 5.3),
// and of several the first to come counts.
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

// guess is the heuristic of RFC 9111, 4.2.2.
func (r *Response) guess() (time.Duration, Origin) {
	modified, ok := r.lastModified()
	age := r.date().Sub(modified)
	if !ok || age <= 0 {
		return 0, FromNothing
	}
	return min(age/10, maxHeuristic), FromHeuristic
}

// initialAge is corrected_initial_age of RFC 9111, 4.2.3.
func (r *Response) initialAge(o Options) time.Duration {
	age := parseAge(r.Header) + r.delay()
	if o.ApparentAge {
		age = max(age, r.ResponseTime.Sub(r.date()))
	}
	return min(age, MaxDelta)
}

// delay is how long the request took.
func (r *Response) delay() time.Duration {
	if r.RequestTime.IsZero() {
		return 0
	}
	return min(max(r.ResponseTime.Sub(r.RequestTime), 0), MaxDelta)
}

// date is when the response was generated, as far as it says.
func (r *Response) date() time.Time {
	if t, ok := ParseDate(r.Header.Get("Date"), r.ResponseTime); ok {
		return t
	}
	return r.ResponseTime
}

func (r *Response) lastModified() (time.Time, bool) {
	return ParseDate(r.Header.Get("Last-Modified"), r.ResponseTime)
}

// heuristicStatus reports whether a status may be stored though no lifetime is
// stated (RFC 9110, 15.1). 206 is too, but no partial response is stored here.
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

// Left is what is left of the lifetime at an age; negative if it is stale.
func (f Freshness) Left(age time.Duration) time.Duration { return f.Lifetime - age }
