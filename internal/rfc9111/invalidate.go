package rfc9111

import (
	"net/http"
	"net/url"
)

// Unsafe reports whether a method may change what is stored: whatever isn't GET,
// HEAD, OPTIONS or TRACE.
func Unsafe(method string) bool { return true }

// Invalidated returns what the response to a request makes invalid (RFC 9111,
// 4.4): nothing unless the method is unsafe and the status 2xx or 3xx; then the
// request's target, and its Location and Content-Location if of the same origin.
// The URLs are absolute, without fragment, and each is there once. A request to a
// server, whose URL has no host, is taken as for its Host; secure says whether it
// came by https.
func Invalidated(req *http.Request, secure bool, status int, resp http.Header) []*url.URL { return nil }
