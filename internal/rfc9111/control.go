package rfc9111

import (
	"net/http"
	"time"
)

// A Delta is the argument of a directive that counts seconds.
type Delta struct {
	Set   bool
	Value time.Duration // 0 to MaxDelta
}

// MaxDelta is what longer times are cut to: 2^31 seconds (RFC 9111, 1.2.2).
const MaxDelta = (1 << 31) * time.Second

// ResponseControl is what a response's Cache-Control says, or the targeted field
// that takes its place.
type ResponseControl struct {
	// Field is the name of the field that rules, in its canonical form. It is
	// empty if the response has none.
	Field string

	NoStore, NoTransform            bool
	Public, Private, NoCache        bool // the latter two without field names
	MustRevalidate, ProxyRevalidate bool
	MustUnderstand, Immutable       bool
	PrivateFields, NoCacheFields    []string // private="…" and no-cache="…", canonical names
	MaxAge, SMaxAge                 Delta
	StaleWhileRevalidate            Delta
	StaleIfError                    Delta
}

// ParseResponse reads a response's Cache-Control, or the targeted field that
// takes its place (RFC 9213, 2.2).
func ParseResponse(h http.Header, o Options) ResponseControl { return ResponseControl{} }

// RequestControl is what a request's Cache-Control says.
type RequestControl struct {
	NoStore, NoTransform  bool
	NoCache, OnlyIfCached bool
	MaxAge, MinFresh      Delta
	MaxStale              Delta // MaxDelta if any staleness is accepted
	StaleIfError          Delta
}

// ParseRequest reads a request's Cache-Control, or its Pragma if it has none.
func ParseRequest(h http.Header) RequestControl { return RequestControl{} }
