package rfc9111

import (
	"net/http"
	"time"
)

// A Fwd is why a request went on to the origin (RFC 9211, 2.2).
type Fwd string

const (
	FwdBypass   Fwd = "bypass"    // the cache doesn't handle such requests
	FwdMethod   Fwd = "method"    // the method has to be forwarded
	FwdURIMiss  Fwd = "uri-miss"  // nothing is stored for the URI
	FwdVaryMiss Fwd = "vary-miss" // something is, and no variant matches
	FwdMiss     Fwd = "miss"      // one of the two
	FwdRequest  Fwd = "request"   // it is fresh, but the request says otherwise
	FwdStale    Fwd = "stale"     // it is stale
	FwdPartial  Fwd = "partial"   // not all of what is asked for is stored
)

// Status is one cache's member of Cache-Status (RFC 9211).
type Status struct {
	Cache     string // its name; required
	Hit       bool   // answered without going to the origin; then Fwd is left out
	Fwd       Fwd
	FwdStatus int // what the origin answered, where that isn't the response's status. 0: left out
	Stored    bool
	Collapsed bool
	TTL       Seconds // what is left of the lifetime; negative if stale
	Key       string
	Detail    string
}

// Seconds may be left out.
type Seconds struct {
	Set   bool
	Value time.Duration
}

// String is the member as it stands in the field.
func (s Status) String() string { return "" }

// AppendTo adds the member at the end of the header's Cache-Status.
func (s Status) AppendTo(h http.Header) {}
