// Package rfc9111 has the rules of HTTP caching: what may be stored, for how
// long it is fresh, when it may be used again, and what is answered from it. It
// serves the middleware and the transport alike.
//
// Everything here is a pure function of messages and times that are passed in.
// There is no store, no clock and no I/O. Values are safe for concurrent use as
// long as nobody changes them, and no function changes a header that it is given
// unless it says so.
//
// The rules are those of RFC 9111 (caching), RFC 9110 sections 13 and 14
// (conditional requests and ranges), RFC 5861 (stale-while-revalidate and
// stale-if-error), RFC 8246 (immutable), RFC 9211 (Cache-Status) and RFC 9213
// (targeted Cache-Control). docs/http.md lists them with the tests of each.
package rfc9111
