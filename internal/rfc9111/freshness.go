package rfc9111

import "time"

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

// FreshnessOf works out how long a response may be used.
func FreshnessOf(resp *Response, o Options) Freshness { return Freshness{} }

// Left is what is left of the lifetime at an age; negative if it is stale.
func (f Freshness) Left(age time.Duration) time.Duration { return f.Lifetime - age }
