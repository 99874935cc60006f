package middleware

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// Purge deletes all that is stored for an absolute URL: all variants, for all requests. A
// run that is under way will not bring it back, and a request that starts after Purge
// returned is not answered with a response from before.
//
// The URL is exact: with the query parameters that count ([Options.Query]), and with the
// scheme and host that this server sees, or [Options.Host]. Behind a proxy that terminates
// TLS the scheme is http. It is no error if nothing is stored for the URL.
//
// Errors: those of [guard.Guard.Delete], and for URLs that are not http or https.
func (m *Middleware) Purge(ctx context.Context, rawURL string) error {
	u, err := parseURL(rawURL)
	if err != nil {
		return err
	}
	return m.pages.forget(ctx, m.site.keysOf(u))
}

// SoftPurge makes the pages of a URL stale instead: they are fetched anew at their next use,
// and served until then if they may be served stale. The variants are found by the page's
// index. If there is none, or if more than the URL tells responses apart
// ([Options.Headers], [Options.Cookies], [Options.Key]), SoftPurge is Purge.
func (m *Middleware) SoftPurge(ctx context.Context, rawURL string) error {
	u, err := parseURL(rawURL)
	if err != nil {
		return err
	}
	if m.site.epochs {
		return m.pages.forget(ctx, m.site.keysOf(u))
	}
	return m.pages.expire(ctx, m.site.keysOf(u))
}

// PurgeTag deletes all responses that carry one of the tags ([Options.TagHeaders],
// [Options.Tags]), at a cost that does not depend on their number. Its promise is that of
// Purge: a run that is under way will not bring one back, and a request that starts after
// PurgeTag returned is not answered with a response from before.
//
// Errors: those of [guard.Guard.DeleteTag].
func (m *Middleware) PurgeTag(ctx context.Context, tags ...string) error {
	return m.pages.guard.DeleteTag(ctx, tags...)
}

// SoftPurgeTag makes the responses stale instead: see SoftPurge. It may delete all variants
// of a page that varies. Errors: those of [guard.Guard.ExpireTag].
func (m *Middleware) SoftPurgeTag(ctx context.Context, tags ...string) error {
	return m.pages.guard.ExpireTag(ctx, tags...)
}

func parseURL(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("middleware: %q is not an absolute http or https URL", rawURL)
	}
	return u, nil
}

// PurgeHandler returns a handler that purges the URL of its request, with any method:
// mount it for PURGE. It answers 403 to a request that allowed refuses, and to all if allowed
// is nil. With "Soft-Purge: 1" in the request it is a soft purge.
//
// In an [http.ServeMux] the pattern is "PURGE /". All other patterns need a method then
// ("GET /report"), or the mux panics as they conflict.
func (m *Middleware) PurgeHandler(allowed func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if allowed == nil || !allowed(r) {
			http.Error(w, "not allowed to purge", http.StatusForbidden)
			return
		}
		u := scheme(r) + "://" + r.Host + pathOf(r)
		if r.URL.RawQuery != "" {
			u += "?" + r.URL.RawQuery
		}
		purge := m.Purge
		if r.Header.Get("Soft-Purge") == "1" {
			purge = m.SoftPurge
		}
		if err := purge(r.Context(), u); err != nil {
			http.Error(w, "not purged: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
