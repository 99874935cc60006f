package rfc9111

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Unsafe reports whether a method may change stored responses: all but GET, HEAD, OPTIONS
// and TRACE.
func Unsafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return false
	}
	return true
}

// Invalidated returns the URLs that the response to an unsafe request makes invalid (RFC
// 9111, 4.4): if its status is 2xx or 3xx, the target, and Location and Content-Location
// of the same origin. The URLs are absolute, without fragments and duplicates. A target
// without a host gets the request's Host; secure: the request came by https.
func Invalidated(req *http.Request, secure bool, status int, resp http.Header) []*url.URL {
	target := targetOf(req, secure)
	if !Unsafe(req.Method) || status < 200 || status > 399 || target == nil {
		return nil
	}
	urls := []*url.URL{target}
	for _, name := range []string{"Location", "Content-Location"} {
		given := resp.Get(name)
		u, err := target.Parse(given)
		if given == "" || err != nil || !sameOrigin(u, target) {
			continue
		}
		u.User, u.Fragment, u.RawFragment = nil, "", ""
		if !slices.ContainsFunc(urls, func(have *url.URL) bool { return have.String() == u.String() }) {
			urls = append(urls, u)
		}
	}
	return urls
}

// targetOf is the absolute URL of a request without its fragment; nil: the request has none.
func targetOf(req *http.Request, secure bool) *url.URL {
	if req.URL == nil {
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
	return &target
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
	}
	return "80"
}
