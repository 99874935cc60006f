package rfc9111

import "net/http"

// An Answer is the form in which a stored response answers a request.
type Answer uint8

const (
	// AnswerWhole: with its status, header and, unless the request is HEAD, its
	// body.
	AnswerWhole Answer = iota
	// AnswerNotModified: 304 with NotModifiedHeader.
	AnswerNotModified
	// AnswerRanges: what http.ServeContent makes of RangeRequest, which is 206, 416
	// or 200.
	AnswerRanges
	// AnswerElsewhere: it has an If-Match or If-Unmodified-Since that doesn't hold of
	// what is stored. What that means is the origin's to say, so the request goes
	// there by itself.
	AnswerElsewhere
)

// AnswerFor says how a stored response answers a GET or HEAD that it was chosen
// for (RFC 9110, 13.2.2; RFC 9111, 4.3.2).
func AnswerFor(req *http.Request, stored *Response) Answer { return AnswerWhole }

// RangeRequest is the request for http.ServeContent to answer AnswerRanges: it
// has the Range and no conditions, as those have been seen to.
func RangeRequest(req *http.Request) *http.Request { return req }

// NotModifiedHeader is what of a stored response's header a 304 carries (RFC
// 9110, 15.4.5), as a copy.
func NotModifiedHeader(stored http.Header) http.Header { return nil }

// RemoveConditions takes out of a request's header what asks for less than the
// whole response: the If- fields and Range.
func RemoveConditions(h http.Header) {}
