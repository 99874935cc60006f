package rfc9111

import (
	"net/http"
	"net/url"
)

// StorePosted is Store for the response to a POST, which may answer later GETs of its URL (RFC
// 9110, 9.3.3): if its status is 200, its Content-Location is the URL of the request, and it
// is fresh by a lifetime that it states. secure: the request came by https.
//
// The function is stricter than the RFC. In a shared cache the response has to say public or
// s-maxage, as it was made of a body that one client sent. It must not vary, and
// have no content coding: the fields of a POST are not those of a GET.
func StorePosted(req *http.Request, secure bool, resp *Response, o Options) Decision {
	get := *req
	get.Method = http.MethodGet
	d := Store(&get, resp, o)
	f := &d.Freshness
	switch {
	case req.Method != http.MethodPost, resp.Status != http.StatusOK, !isContentOf(req, secure, resp.Header):
		d.limit(Nobody, ReasonMethod)
	case len(d.Vary) > 0, len(resp.Header["Content-Encoding"]) > 0:
		d.limit(Nobody, ReasonVary)
	case f.Origin != FromSMaxAge && f.Origin != FromMaxAge && f.Origin != FromExpires, f.NoCache, f.Left(f.InitialAge) <= 0:
		d.limit(Nobody, ReasonNoFreshness)
	case o.Shared && !d.Control.SaysShared():
		d.limit(Nobody, ReasonPrivate)
	}
	d.Once = Nobody
	return d
}

// isContentOf reports whether a response says that its content is that of the request's URL
// (RFC 9110, 8.7).
func isContentOf(req *http.Request, secure bool, h http.Header) bool {
	target := targetOf(req, secure)
	given := h["Content-Location"]
	if target == nil || len(given) != 1 || given[0] == "" {
		return false
	}
	u, err := target.Parse(given[0])
	return err == nil && u.User == nil && u.Fragment == "" && sameOrigin(u, target) &&
		pathOf(u) == pathOf(target) && u.RawQuery == target.RawQuery
}

func pathOf(u *url.URL) string {
	if p := u.EscapedPath(); p != "" {
		return p
	}
	return "/"
}
