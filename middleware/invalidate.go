package middleware

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A Scope says which pages a request with an unsafe method invalidates.
type Scope byte

const (
	// AllPages are the pages of the request's URL, and of Location and Content-Location of
	// the same origin.
	AllPages Scope = iota
	// OwnPages are those of them that the request itself could get: with its values of
	// [Options.Headers], [Options.Cookies] and [Options.Key]. Other tenants keep theirs.
	OwnPages
	// NoPages are none.
	NoPages
)

// invalidate deletes the pages that the response to a request with an unsafe method makes
// invalid (RFC 9111, 4.4), except for one key.
func (m *Middleware) invalidate(received *http.Request, status int, h http.Header, except string) error {
	urls := rfc9111.Invalidated(received, received.TLS != nil, status, h)
	if len(urls) == 0 {
		return nil
	}
	scope := AllPages
	switch {
	case m.opts.Invalidates != nil:
		scope = m.opts.Invalidates(received, status)
	case status >= 300 && leadsToLogin(h.Get("Location")):
		scope = NoPages // the request was refused
	case status >= 300 && isLogin(received.URL.Path):
		urls = urls[:1] // a client may choose the page that a login leads to
	}
	ctx := context.WithoutCancel(received.Context())
	var errs []error
	for _, u := range urls {
		switch scope {
		case AllPages:
			errs = append(errs, m.pages.forget(ctx, m.site.keysOf(u), except))
		case OwnPages:
			errs = append(errs, m.forgetOwn(ctx, received, u, except))
		}
	}
	return errors.Join(errs...)
}

// forgetOwn deletes the pages of a URL that a request could get, except for one key.
func (m *Middleware) forgetOwn(ctx context.Context, r *http.Request, u *url.URL, except string) error {
	get := r.Clone(ctx)
	get.Method, get.Host, get.RequestURI = http.MethodGet, u.Host, u.RequestURI()
	get.URL = &url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery}
	a := &asked{Request: get, site: m.site, terms: m.site.termsFor(get)}
	a.read()
	all := m.site.keysOf(u)
	if !a.terms.epochs {
		return m.pages.forget(ctx, all, except)
	}
	res, err := m.pages.guard.Peek(ctx, keyEpoch+a.page())
	switch {
	case errors.Is(err, guard.ErrMiss):
		return nil
	case err != nil || res.Value.Epoch == "":
		return errors.Join(err, m.pages.forget(ctx, all))
	}
	own := a.page() + "\n" + res.Value.Epoch + a.listed()
	return m.pages.forget(ctx, []string{keyShared + own, keyCredentialed + own})
}

// leadsToLogin reports whether a redirect leads to a login page: the response to a request
// that was refused.
func leadsToLogin(location string) bool {
	u, err := url.Parse(location)
	return location != "" && err == nil && (isLogin(u.Path) || isLogin(strings.ReplaceAll(u.Host, ".", "/")))
}

// isLogin reports whether a path has a segment that names a login.
func isLogin(path string) bool {
	for segment := range strings.SplitSeq(strings.ToLower(path), "/") {
		switch segment {
		case "login", "log-in", "log_in", "signin", "sign-in", "sign_in", "auth", "oauth", "oauth2", "authorize", "sso", "saml":
			return true
		}
	}
	return false
}
