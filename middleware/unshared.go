package middleware

import (
	"net/http"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A response that can't be shared is for the client of its run. The client chose a part of
// the run's input: its Accept, its cookies. The response may be about that part, and not
// about the page. So it takes neither the stored page from other clients, nor their
// collapsing.

// A statusError is a response that says that the handler failed. The requests that waited
// get it, once, and it is not stored.
type statusError struct {
	status int
	page   *httpcache.Page // the response; nil: a stale page is served in its place
	tagged bool            // a purge by tag may have come since the run began: it ends no lease
}

func (e *statusError) Error() string {
	return "middleware: the handler answered " + strconv.Itoa(e.status)
}

// Unwrap returns the error that stands for the status in other processes.
func (e *statusError) Unwrap() error { return httpcache.StatusError(e.status) }

// refreshPause is the pause after a refresh in the background with a response that can't be
// shared. The stale page is served meanwhile.
const refreshPause = time.Second

// pausing is an error with the pause that is to follow it. After a run that a request asked
// for, the next such request has a run of its own at once.
func (r *run) pausing(err error) error {
	if r.turn.Background() {
		return guard.RetryAfter(err, refreshPause)
	}
	return guard.RetryAfter(err, 0)
}

// passes reports whether a response that is not stored answers the requests that waited
// for it and were given the same headers. A failure does: a herd that asks one by one would
// wait for long.
func (r *run) passes(reason string) bool {
	switch {
	case r.asked.credentialed || r.status < 400:
		return false
	case reason != string(rfc9111.ReasonNoFreshness) && reason != string(rfc9111.ReasonError):
		return false
	}
	return r.status >= 500 || !r.asked.terms.headers.all && !r.asked.isStripped() && r.m.tags.fit(r.tags)
}

// yield ends the turn of a response that can't be shared.
func (r *run) yield(reason string) {
	marks, key := r.m.pages.marks, r.at.key()
	about := r.isAboutPage(reason)
	usable := r.hasUsable()
	switch {
	case usable && !about:
		r.turn.Fail(r.pausing(httpcache.ErrUnshared))
		return
	case usable || !about && (!r.asked.credentialed || r.asked.mixes()) || marks.Get(key).Trusted:
		if before := marks.Strike(key); before.Strikes == 0 {
			r.turn.Fail(r.pausing(httpcache.ErrUnshared)) // the next one tells
			return
		}
	}
	r.turn.Fill.Private = true
	r.turn.Store(nil)
}

// hasUsable reports whether a page is stored that may be served, by its own terms.
func (r *run) hasUsable() bool {
	return r.known != nil && r.known.UsableAt(r.known.Freshness.InitialAge+r.knownAge())
}

// isAboutPage reports whether a response that can't be shared says so of the page, and not
// of its client's request.
func (r *run) isAboutPage(reason string) bool {
	if r.asked.credentialed {
		return false
	}
	switch {
	case r.status >= 200 && r.status < 300, r.status == http.StatusNotFound, r.status == http.StatusGone:
		return reason != "vary"
	}
	return false
}

// mayPass reports whether a response that was passed to waiting requests answers this one:
// if its run was given the headers that this request would have given it.
func (a *asked) mayPass(p *httpcache.Page) bool {
	return len(p.Vary) == 0 || p.Variant == rfc9111.VariantKey(p.Vary, a.varying(p.Vary))
}

// passed turns the page of a response that is not stored into one for the requests that
// waited, which were given the same headers.
func (r *run) passed(p *httpcache.Page) *httpcache.Page {
	p.Freshness = rfc9111.Freshness{}
	if !r.asked.terms.headers.all {
		p.Vary = (&httpcache.Index{Names: r.asked.terms.headers.passed}).With(p.Vary)
		p.Variant = rfc9111.VariantKey(p.Vary, r.req)
	}
	return p
}
