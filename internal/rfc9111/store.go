package rfc9111

import "net/http"

// An Audience is who may be answered from a stored response.
type Audience uint8

const (
	Nobody Audience = iota // it must not be stored
	User                   // only the user whose request it answered; never in a shared cache
	Anyone
)

// A Reason is a word that says why a response isn't stored for anyone, for
// the detail of Cache-Status.
type Reason string

const (
	ReasonMethod         Reason = "method"           // not GET
	ReasonStatus         Reason = "status"           // not final, 206, or 304
	ReasonPartial        Reason = "partial"          // Content-Range
	ReasonMustUnderstand Reason = "must-understand"  // with a status that isn't known here
	ReasonRequestNoStore Reason = "request-no-store" // the request says no-store
	ReasonNoStore        Reason = "no-store"
	ReasonPrivate        Reason = "private"
	ReasonAuthorization  Reason = "authorization" // RFC 9111, 3.5
	ReasonSetCookie      Reason = "set-cookie"
	ReasonVary           Reason = "vary"         // Vary: *, or too many names
	ReasonNoFreshness    Reason = "no-freshness" // no lifetime, and nothing to validate it by
)

// A Decision is whether a response may be stored, and what is known of it then.
type Decision struct {
	For       Audience
	Reason    Reason          // why not for Anyone; empty otherwise
	Control   ResponseControl // what the response says
	Freshness Freshness       // how long it may be used; also if it isn't stored
	Vary      []string        // see VaryNames
}

// Store decides whether the response to a request may be stored (RFC 9111, 3).
// That its body is complete is for the caller to know: what is shorter than its
// Content-Length must not be stored.
//
// A response with a lifetime of zero, or with no-cache, is stored if it has a
// validator: Freshness then says that it must be validated before each use, and
// it isn't for requests that wait for it either.
func Store(req *http.Request, resp *Response, o Options) Decision { return Decision{} }
