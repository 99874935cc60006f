package middleware

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// otherMethod lets a request through that is neither GET nor HEAD. It is never
// shared. If its method is unsafe and it succeeds, what it changed is forgotten
// before its client hears of it (RFC 9111, 4.4).
func (c *call) otherMethod(w http.ResponseWriter) {
	r := c.asked.Request
	received, overTLS := asReceived(r), r.TLS != nil // before the handler has it, which may rewrite it
	pw := &passWriter{ResponseWriter: w}
	pw.onHeader = func(status int, h http.Header) {
		c.m.addVia(h, r.ProtoMajor, r.ProtoMinor)
		for _, u := range rfc9111.Invalidated(received, overTLS, status, canonical(h)) {
			if err := c.m.forget(context.WithoutCancel(r.Context()), u); err != nil {
				c.event.Err = err
			}
		}
		c.status(h, rfc9111.Status{Fwd: rfc9111.FwdMethod})
	}
	defer c.passed(pw)
	pw.run(c.next, c.m.withVia(r))
}

// asReceived is a request whose URL has no scheme and host but those of the
// connection and of Host, by which keys are made, and a mount's prefix. A client may
// send others.
func asReceived(r *http.Request) *http.Request {
	r2, u := *r, *r.URL
	u.Scheme, u.Host = "", ""
	if path := pathOf(r); path != u.EscapedPath() {
		u.RawPath = path
		u.Path, _ = url.PathUnescape(path) // it was parsed before
	}
	r2.URL = &u
	return &r2
}

// Purge forgets what is stored for an absolute URL: all variants, for all who
// ask, whatever tells their requests apart. A run that is under way will not
// bring it back, and a request that starts after Purge returned is not answered
// with what was produced before.
//
// The URL is exact: with its query as far as it counts ([Options.Query]), and with the
// scheme and host that this server sees or [Options.Host] says. Behind what terminates
// TLS the scheme is http. It is no error that nothing is stored for it.
//
// Errors: those of [guard.Guard.Delete], and for URLs that are not http or https.
func (m *Middleware) Purge(ctx context.Context, rawURL string) error {
	u, err := parseURL(rawURL)
	if err != nil {
		return err
	}
	return m.forget(ctx, u)
}

// SoftPurge marks it stale instead: it is fetched anew at its next use, and served
// until then if it may be served stale. What a response varies on is looked up for
// that; where that is not stored, or where more than the URL tells responses
// apart ([Options.Headers], [Options.Cookies], [Options.Key]), it is Purge.
func (m *Middleware) SoftPurge(ctx context.Context, rawURL string) error {
	u, err := parseURL(rawURL)
	if err != nil {
		return err
	}
	if m.epochs {
		return m.forget(ctx, u)
	}
	var errs []error
	for _, key := range m.keysOf(u) {
		res, err := m.guard.Peek(ctx, key)
		switch {
		case errors.Is(err, guard.ErrMiss):
			err = m.guard.Delete(ctx, key)
		case err == nil && res.Value.ix != nil:
			err = m.expireVariants(ctx, key)
		case err == nil:
			err = m.guard.Expire(ctx, key)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func parseURL(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("middleware: %q is no absolute http or https URL", rawURL)
	}
	return u, nil
}

// forget deletes what all that is stored for a URL hangs on.
func (m *Middleware) forget(ctx context.Context, u *url.URL) error {
	var errs []error
	for _, key := range m.keysOf(u) {
		errs = append(errs, m.guard.Delete(ctx, key))
		m.marks.forget(key)
	}
	return errors.Join(errs...)
}

func (m *Middleware) keysOf(u *url.URL) []string {
	t := target(u.Scheme, m.host(u.Host), u.EscapedPath(), m.query(u.RawQuery))
	if m.epochs {
		return []string{keyEpoch + t}
	}
	return []string{keyShared + t, keyCredentialed + t}
}

// PurgeHandler purges the URL that it is asked for, by any method: mount it for
// PURGE, behind what decides who may. With "Soft-Purge: 1" in the request it is a
// soft purge.
//
// For an [http.ServeMux] that is the pattern "PURGE /", beside which all others need
// a method ("GET /report"), or it panics as they conflict.
func (m *Middleware) PurgeHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
