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
	ReasonNoFreshness    Reason = "no-freshness" // never fresh, and nothing to validate it by
)

// A Decision is whether a response may be stored, and what is known of it then.
type Decision struct {
	For       Audience
	Once      Audience        // who may be given it that waited for the call: For, however short its freshness
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
// validator: MayServe then says that it must be validated before each use, and
// that goes for requests that wait for it, too.
func Store(req *http.Request, resp *Response, o Options) Decision {
	d := Decision{For: Anyone, Control: ParseResponse(resp.Header, o)}
	d.Freshness = freshnessOf(resp, d.Control, o)
	var varyOK bool
	d.Vary, varyOK = VaryNames(resp.Header)

	restricted := User
	if o.Shared {
		restricted = Nobody
	}
	c := &d.Control
	switch {
	case req.Method != http.MethodGet && req.Method != "": // HEAD has no body to store
		d.limit(Nobody, ReasonMethod)
	case !storableStatus(resp.Status):
		d.limit(Nobody, ReasonStatus)
	case len(resp.Header["Content-Range"]) > 0:
		d.limit(Nobody, ReasonPartial)
	case ParseRequest(req.Header).NoStore:
		d.limit(Nobody, ReasonRequestNoStore)
	case c.MustUnderstand && !understood(resp.Status):
		d.limit(Nobody, ReasonMustUnderstand)
	case c.NoStore && !c.MustUnderstand: // RFC 9111, 5.2.2.3
		d.limit(Nobody, ReasonNoStore)
	case !varyOK:
		d.limit(Nobody, ReasonVary)
	case setsCookie(resp.Header, *c, o) && !o.AllowSetCookie:
		d.limit(Nobody, ReasonSetCookie)
	}
	if c.Private || (!o.Shared && len(c.PrivateFields) > 0) {
		d.limit(restricted, ReasonPrivate)
	}
	if len(req.Header["Authorization"]) > 0 && !c.mayShareAuthorized() {
		d.limit(restricted, ReasonAuthorization)
	}
	if setsCookie(resp.Header, *c, o) && !c.SaysShared() {
		d.limit(restricted, ReasonSetCookie)
	}
	d.Once = d.For
	if !d.useful(resp, o) {
		d.limit(Nobody, ReasonNoFreshness)
	}
	return d
}

// limit restricts the audience. Of the reasons for the same restriction the first
// one given stays.
func (d *Decision) limit(to Audience, why Reason) {
	if to < d.For {
		d.For, d.Reason = to, why
	}
}

// storableStatus: those of a final response that is whole.
func storableStatus(status int) bool {
	return status >= 200 && status <= 599 && status != http.StatusPartialContent && status != http.StatusNotModified
}

// understood reports whether what a status asks of a cache is known here, which
// must-understand asks for: those of RFC 9110 with rules of their own are.
func understood(status int) bool {
	switch status {
	case http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect:
		return true
	}
	return heuristicStatus(status)
}

// setsCookie reports whether what would be stored of a response sets a cookie.
func setsCookie(h http.Header, c ResponseControl, o Options) bool {
	return c.keeps("Set-Cookie", h, o) || c.keeps("Set-Cookie2", h, o)
}

// keeps reports whether a response has a field that removeLimited leaves in.
func (c *ResponseControl) keeps(name string, h http.Header, o Options) bool {
	if len(h[name]) == 0 {
		return false
	}
	left := http.Header{name: nil}
	c.removeLimited(left, o)
	return len(left) > 0
}

// useful reports whether a response may be stored by the last item of RFC 9111,
// 3, and can be of any use then.
func (d *Decision) useful(resp *Response, o Options) bool {
	f := &d.Freshness
	marked := d.Control.Public || (d.Control.Private && !o.Shared)
	if f.Origin == FromNothing && !marked && !heuristicStatus(resp.Status) {
		return false
	}
	if HasValidator(resp.Header) {
		return true
	}
	return !f.NoCache && f.InitialAge < f.Lifetime+max(f.StaleWhileRevalidate, f.StaleIfError)
}
