package rfc9111

import "net/http"

// HasValidator reports whether a stored response can be validated: whether it
// has an ETag or a Last-Modified.
func HasValidator(h http.Header) bool { return false }

// SetConditions makes a request's header ask for validation of stored responses
// (RFC 9111, 4.3.1). It replaces conditions that are there, and reports whether it
// set any.
func SetConditions(req http.Header, stored ...http.Header) bool { return false }

// Selected returns which of the stored responses a 304 speaks of (RFC 9111,
// 4.3.4), as indices. They are to be freshened. If there are none the request has
// to be made again without conditions. Stored responses are given the newest
// first.
func Selected(notModified http.Header, stored ...http.Header) []int { return nil }

// Freshen returns the header of a stored response after a 304 or a HEAD, as a copy
// (RFC 9111, 3.2). The response is then subject to Store again, with the times of
// the request that validated it.
func Freshen(stored, update http.Header, o Options) http.Header { return nil }

// HeadAgrees reports whether the answer to a HEAD agrees with a stored response,
// which may then be freshened by it. If not it is stale (RFC 9111, 4.3.5).
func HeadAgrees(stored, head http.Header) bool { return false }
