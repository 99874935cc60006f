package rfc9111

import (
	"net/http"
	"net/url"
	"strings"
)

// Unsafe reports whether a method may change what is stored: whatever isn't GET,
// HEAD, OPTIONS or TRACE.
func Unsafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return false
	}
	return true
}

// Invalidated returns what the response to a request makes invalid (RFC 9111,
// 4.4): nothing unless the method is unsafe and the status 2xx or 3xx; then the
// request's target, and its Location and Content-Location if of the same origin.
// The URLs are absolute, without fragment, and each is there once. A request to a
// server, whose URL has no host, is taken as for its Host; secure says whether it
// came by https.
func Invalidated(req *http.Request, secure bool, status int, resp http.Header) []*url.URL {
	if !Unsafe(req.Method) || status < 200 || status > 399 || req.URL == nil {
		return nil
	}
	target := *req.URL
	if target.Host == "" {
		target.Scheme, target.Host = "http", req.Host
		if secure {
			target.Scheme = "https"
		}
	}
	target.User, target.Fragment, target.RawFragment = nil, "", ""
	urls := []*url.URL{&target}
	for _, name := range []string{"Location", "Content-Location"} {
		given := resp.Get(name)
		if given == "" {
			continue
		}
		u, err := target.Parse(given)
		if err != nil || !sameOrigin(u, &target) {
			continue
		}
		u.User, u.Fragment, u.RawFragment = nil, "", ""
		urls = appendURL(urls, u)
	}
	return urls
}

func appendURL(urls []*url.URL, u *url.URL) []*url.URL {
	for _, have := range urls {
		if have.String() == u.String() {
			return urls
		}
	}
	return append(urls, u)
}

// sameOrigin compares scheme, host and port (RFC 9110, 4.3.1).
func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	switch p := u.Port(); {
	case p != "":
		return p
	case strings.EqualFold(u.Scheme, "https"):
		return "443"
	default:
		return "80"
	}
}
