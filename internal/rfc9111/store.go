package rfc9111

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An Audience is the set of users that may get a stored response.
type Audience uint8

const (
	Nobody Audience = iota // it must not be stored
	User                   // only the user of its request; never in a shared cache
	Anyone
)

// A Reason tells in Cache-Status why a response is not stored for anyone.
type Reason string

const (
	ReasonMethod         Reason = "method"           // not GET
	ReasonStatus         Reason = "status"           // not final, 206, or 304
	ReasonPartial        Reason = "partial"          // Content-Range
	ReasonMustUnderstand Reason = "must-understand"  // with a status that is unknown here
	ReasonRequestNoStore Reason = "request-no-store" // the request has no-store
	ReasonNoStore        Reason = "no-store"
	ReasonPrivate        Reason = "private"
	ReasonAuthorization  Reason = "authorization" // RFC 9111, 3.5
	ReasonSetCookie      Reason = "set-cookie"
	ReasonVary           Reason = "vary"         // Vary: *, or too many names
	ReasonNoFreshness    Reason = "no-freshness" // never fresh, and without a validator
	ReasonError          Reason = "error"        // an error that does not say that it may be shared
)

// A Decision tells whether a response may be stored, and its terms.
type Decision struct {
	For       Audience
	Once      Audience        // may share the running call: For, however short the freshness
	Reason    Reason          // against Anyone; empty otherwise
	Control   ResponseControl // of the response
	Freshness Freshness       // also if it is not stored
	Vary      []string        // see VaryNames
}

// redirects have caching rules in RFC 9110, so must-understand includes them.
var redirects = []int{http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect}

// Store decides whether the response to a request may be stored (RFC 9111, 3). The caller
// must not store a body shorter than its Content-Length.
//
// A response with a lifetime of zero, or with no-cache, is stored if it has a validator:
// MayServe then requires a validation before each use, also for waiting requests.
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
	cookies := http.Header{"Set-Cookie": resp.Header["Set-Cookie"], "Set-Cookie2": resp.Header["Set-Cookie2"]}
	c.removeLimited(cookies, o)
	setsCookie := len(cookies["Set-Cookie"])+len(cookies["Set-Cookie2"]) > 0
	switch {
	case req.Method != http.MethodGet && req.Method != "": // HEAD has no body to store
		d.limit(Nobody, ReasonMethod)
	case resp.Status < 200 || resp.Status > 599, resp.Status == http.StatusPartialContent, resp.Status == http.StatusNotModified:
		d.limit(Nobody, ReasonStatus)
	case len(resp.Header["Content-Range"]) > 0:
		d.limit(Nobody, ReasonPartial)
	case ParseRequest(req.Header).NoStore:
		d.limit(Nobody, ReasonRequestNoStore)
	case c.MustUnderstand && !heuristicStatus(resp.Status) && !slices.Contains(redirects, resp.Status):
		d.limit(Nobody, ReasonMustUnderstand)
	case c.NoStore && !c.MustUnderstand: // RFC 9111, 5.2.2.3
		d.limit(Nobody, ReasonNoStore)
	case !varyOK:
		d.limit(Nobody, ReasonVary)
	case setsCookie && !o.AllowSetCookie:
		d.limit(Nobody, ReasonSetCookie)
	}
	if c.Private || (!o.Shared && len(c.PrivateFields) > 0) {
		d.limit(restricted, ReasonPrivate)
	}
	if len(req.Header["Authorization"]) > 0 && !c.MustRevalidate && !c.SaysShared() { // RFC 9111, 3.5
		d.limit(restricted, ReasonAuthorization)
	}
	if setsCookie && !c.SaysShared() {
		d.limit(restricted, ReasonSetCookie)
	}
	d.Once = d.For
	switch {
	case !d.useful(resp, o):
		d.limit(Nobody, ReasonNoFreshness)
	case aboutRequest(resp.Status) && !c.SaysShared() && (o.Shared || !c.Private):
		d.limit(Nobody, ReasonError)
	}
	return d
}

// aboutRequest reports whether a status tells about one request, or one moment, more than
// about its target. A client could provoke such a response by a header that is no part of
// any key, and it would answer other clients. Its lifetime may be one that a server adds to
// all of its responses.
func aboutRequest(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusRequestTimeout,
		http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusUnsupportedMediaType,
		http.StatusRequestedRangeNotSatisfiable, http.StatusExpectationFailed, http.StatusTooManyRequests, http.StatusRequestHeaderFieldsTooLarge:
		return true
	}
	return status >= 500
}

// limit restricts the audience. Of several reasons for the same audience the first stays.
func (d *Decision) limit(to Audience, why Reason) {
	if to < d.For {
		d.For, d.Reason = to, why
	}
}

// useful reports whether a response may be stored by the last item of RFC 9111, 3, and
// can be used then.
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

// hopByHop are the fields for the next hop (RFC 9110, 7.6.1), and those that only a
// proxy may store (RFC 9111, 3.1).
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info",
	"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// RemoveHopByHop changes h: it removes the fields for the next hop (RFC 9110, 7.6.1), and
// those that Connection names.
func RemoveHopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(trim(name))
		}
	}
	removeFields(h, hopByHop)
}

// StoredHeader returns the stored part of a response's header (RFC 9111, 3.1), as a copy:
// without the fields of the connection, those that no-cache or private name, and Age. A
// missing Date is added.
func StoredHeader(resp *Response, c ResponseControl, o Options) http.Header {
	h := resp.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	RemoveHopByHop(h)
	c.removeLimited(h, o)
	delete(h, "Age")
	if _, ok := ParseDate(h.Get("Date"), resp.ResponseTime); !ok {
		h.Set("Date", resp.ResponseTime.UTC().Format(http.TimeFormat))
	}
	return h
}

// SetAge sets Age to whole seconds.
func SetAge(h http.Header, age time.Duration) { h["Age"] = []string{AgeLine(age)} }

// AgeLine is the value of Age.
func AgeLine(age time.Duration) string {
	return strconv.FormatInt(int64(min(max(age, 0), MaxDelta)/time.Second), 10)
}

// MaxVaryNames bounds the fields that a stored response may nominate.
const MaxVaryNames = 16

// VaryNames returns the request fields that a response nominates: canonical and sorted,
// each once. ok is false if no later request can match: for *, for a malformed name, and
// for more than MaxVaryNames.
func VaryNames(h http.Header) (names []string, ok bool) {
	for _, line := range h["Vary"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = trim(name); name == "" {
				continue
			}
			if name == "*" || !isToken(name) {
				return nil, false
			}
			names = append(names, canonical(name))
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > MaxVaryNames {
		return nil, false
	}
	return names, true
}

// VariantKey is a digest of the request's fields of the given names (RFC 9111, 4.1), and
// empty without names. Two requests match if their keys are equal. It shows no
// credentials, but a reader of it can check a guess.
func VariantKey(names []string, req *http.Request) string {
	if len(names) == 0 {
		return ""
	}
	var b []byte
	for _, name := range names {
		lines, ok := req.Header[name]
		if name == "Host" { // net/http moves it
			lines, ok = []string{strings.ToLower(req.Host)}, req.Host != ""
		} else if !ok {
			lines, ok = otherCase(req.Header, name)
		}
		b = appendSized(b, name)
		if !ok {
			b = append(b, 0) // absent only matches absent
			continue
		}
		b = append(b, 1)
		b = appendSized(b, normalized(name, lines))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// otherCase finds a field that a client wrote in another case than net/http.
func otherCase(h http.Header, name string) ([]string, bool) {
	for written, lines := range h {
		if strings.EqualFold(written, name) {
			return lines, true
		}
	}
	return nil, false
}

func appendSized(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// normalized joins the lines of a field. Lists lose white space and empty elements, and
// lists without regard to case become lower case. The order stays: servers may use it. A
// field that is not known counts as a list if it looks like one of tokens.
func normalized(name string, lines []string) string {
	switch name {
	case "Accept-Language":
		if field, ok := Languages(lines); ok {
			return field
		}
		return joinList(lines)
	case "Accept-Encoding", "Accept-Charset":
		return strings.ToLower(joinList(lines))
	case "Accept", "Cache-Control", "Forwarded", "Prefer", "Te", "Via", "X-Forwarded-For":
		return joinList(lines)
	}
	joined := joinTrimmed(lines, ", ")
	elements := strings.Split(joined, ",")
	for i, e := range elements {
		if elements[i] = trim(e); !isToken(elements[i]) {
			return joined
		}
	}
	return strings.Join(elements, ",")
}

func joinList(lines []string) string {
	var elements []string
	for _, line := range lines {
		for _, e := range splitList(line) {
			if strings.Contains(e, ";") && !strings.Contains(e, `"`) { // quoted white space counts
				e = joinTrimmed(strings.Split(e, ";"), ";")
			}
			elements = append(elements, e)
		}
	}
	return strings.Join(elements, ",")
}

func joinTrimmed(parts []string, sep string) string {
	trimmed := make([]string, len(parts))
	for i, p := range parts {
		trimmed[i] = trim(p)
	}
	return strings.Join(trimmed, sep)
}
