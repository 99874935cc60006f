package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// This file is what the guard's fetch does: it runs the handler, and decides at
// the response's header whether the others may have it.

// A statusError is a response that says that the handler failed, where there is a
// stale one to serve instead.
type statusError struct{ status int }

func (e *statusError) Error() string {
	return "middleware: the handler answered " + strconv.Itoa(e.status)
}

// fetchPage fetches what is stored under a page's own key.
func (c *call) fetchPage(key string) fetchFunc {
	return func(ctx context.Context, f *guard.Fill[*page]) (*page, error) {
		return c.lead(ctx, f, lead{key: key})
	}
}

// fetchVariant fetches a variant of a page whose index is known.
func (c *call) fetchVariant(key, variant string) fetchFunc {
	ix := c.index
	return func(ctx context.Context, f *guard.Fill[*page]) (*page, error) {
		return c.lead(ctx, f, lead{key: key, ix: ix, variant: variant})
	}
}

// A lead is a fetch of one key.
type lead struct {
	key     string
	ix      *index // nil: of the page itself
	variant string
	stale   *page
	run     *run
	rfc     rfc9111.Options
	d       rfc9111.Decision
	tags    []string
}

func (c *call) lead(ctx context.Context, f *guard.Fill[*page], l lead) (*page, error) {
	if f.Private {
		c.m.marks.remember(l.key, c.event.began, f.TTL)
		return nil, nil // marked: the request goes to the handler by itself
	}
	if f.Stale != nil && (*f.Stale).status != 0 {
		l.stale = *f.Stale
	}
	var nominated []string
	if l.ix != nil {
		nominated = l.ix.names
	}
	l.run = c.start(ctx, nominated, l.stale)
	if l.stale != nil {
		c.noteStale(l.run)
	}
	if err := l.run.awaitHeader(ctx); err != nil {
		return nil, err
	}
	if l.run.staleAsked && l.run.status == http.StatusNotModified {
		return c.validated(ctx, f, &l)
	}
	return c.decide(ctx, f, &l)
}

// awaitHeader waits for the run's header.
func (r *run) awaitHeader(ctx context.Context) error {
	select {
	case <-r.committed:
	case <-ctx.Done():
		r.timeUp()
		return context.Cause(ctx)
	}
	if r.status == 0 {
		if cause := context.Cause(r.req.Context()); errors.Is(cause, errRunTimedOut) {
			return fmt.Errorf("%w: %w", guard.ErrFetchTimeout, cause)
		}
		return r.failure()
	}
	return nil
}

// response is the run's, for the rules.
func (r *run) response() *rfc9111.Response {
	return &rfc9111.Response{Status: r.status, Header: r.header, RequestTime: r.askedAt(), ResponseTime: r.headerAt}
}

// askedAt is since when the response may have existed, so that it has aged on its way.
// What has neither Date nor Age is made here: it begins to exist with its header. If
// its handler's time counted, what takes longer than its max-age would help nobody.
func (r *run) askedAt() time.Time {
	if r.header.Get("Date") == "" && r.header.Get("Age") == "" {
		return r.headerAt
	}
	return r.began
}

// decide says what becomes of a response whose header is there.
func (c *call) decide(ctx context.Context, f *guard.Fill[*page], l *lead) (*page, error) {
	r := l.run
	if rfc9111.IsError(r.status) && l.stale != nil && l.stale.usableOnError() {
		r.goPrivate() // if nothing stale can be served after all, the client gets this
		return nil, &statusError{r.status}
	}
	l.rfc = c.m.rfc(c.asked.terms, r.status)
	l.d = rfc9111.Store(r.req, r.response(), l.rfc)
	l.tags = c.m.tagsOf(r.req, r.header)
	reason := c.notShared(l)
	passing := reason == string(rfc9111.ReasonNoFreshness) && r.status >= 500 && !c.asked.credentialed
	if reason != "" && !passing {
		c.leaveIfWithheld(l)
		return c.keepPrivate(f, r, reason)
	}
	passing = passing || c.noEpoch
	if !l.ix.covers(l.d.Vary) {
		c.leaveIfWithheld(l)
		if l.ix != nil {
			c.learn(ctx, l)
			return c.keepPrivate(f, r, "vary")
		}
		return c.branch(ctx, f, l, passing)
	}
	return c.record(ctx, f, l, passing)
}

// notShared is why others may not have a response; empty if they may.
func (c *call) notShared(l *lead) string {
	switch {
	case l.run.hijacked:
		return "hijacked"
	case l.run.expected > int64(c.m.opts.MaxBody):
		return "too-large"
	}
	return c.withheld(&l.d, l.tags)
}

// withheld is notShared as far as the response's header tells.
func (c *call) withheld(d *rfc9111.Decision, tags []string) string {
	switch {
	case d.For != rfc9111.Anyone:
		return string(d.Reason)
	case c.asked.personal && !d.Control.SaysShared():
		return "personal"
	case c.asked.credentialed && needsValidation(d.Freshness):
		return "always-validated"
	case !c.m.mayCarry(tags):
		return "tags"
	}
	return ""
}

// needsValidation reports whether a response must be validated before each use.
// That may be all by which a handler tells users apart that has the same
// Cache-Control for all: each validation is made in the name of who asks.
func needsValidation(f rfc9111.Freshness) bool {
	verdict, _ := rfc9111.MayServe(f, f.InitialAge, rfc9111.RequestControl{})
	return verdict == rfc9111.Validate
}

// leaveIfWithheld takes the client from its run where the response varies on a header
// of the client's that the run wasn't given. It answers those who don't send that
// header; this client goes round, or has the handler run for itself.
func (c *call) leaveIfWithheld(l *lead) {
	if c.asked.withholds(l.run.req, l.d.Vary) {
		l.run.detach()
		c.disown(l.run)
	}
}

// keepPrivate lets the run go on for its own client alone. Those who wait run the
// handler for themselves, and so do those who come, for a while.
func (c *call) keepPrivate(f *guard.Fill[*page], r *run, reason string) (*page, error) {
	c.note(r, decision{reason: reason})
	r.goPrivate()
	c.letStream(r)
	f.Private = true
	return nil, nil
}

// record keeps the body until it is whole, while the client reads along. With
// passing it is nothing that may be stored, but shared with those who wait: a failure,
// or a page whose epoch can't be had.
func (c *call) record(ctx context.Context, f *guard.Fill[*page], l *lead, passing bool) (*page, error) {
	r := l.run
	c.note(r, decision{stored: !passing, reason: string(l.d.Reason), ttl: l.d.Freshness.Left(l.d.Freshness.InitialAge)})
	if len(c.asked.Header["Range"]) == 0 {
		c.letStream(r)
	}
	select {
	case <-r.ended:
	case <-r.over:
	case <-ctx.Done():
		r.timeUp()
		return nil, context.Cause(ctx)
	}
	if r.tooLarge() { // and may have ended all the same
		return c.keepPrivate(f, r, "too-large")
	}
	body, trailer, err := r.whole()
	if err != nil {
		return nil, err
	}
	p := c.pageOf(l, body, trailer)
	if l.ix != nil && !passing {
		c.enlist(ctx, l)
	}
	if passing {
		f.TTL, f.StaleFor = 0, guard.Off
		return p, nil
	}
	f.Tags = append(f.Tags, l.tags...)
	c.m.setTerms(f, p)
	return p, nil
}

// pageOf makes a page of a run that is whole.
func (c *call) pageOf(l *lead, body []byte, trailer http.Header) *page {
	r := l.run
	p := &page{
		status: r.status, body: body, trailer: c.m.storedTrailer(trailer, l), vary: l.d.Vary, freshness: l.d.Freshness,
		header: rfc9111.StoredHeader(r.response(), l.d.Control, l.rfc), length: strconv.Itoa(len(body)),
	}
	p.began, p.hidesTags = r.began, c.m.hidesTags(r.req, p.header, l.tags)
	delete(p.header, "Content-Length")
	if len(p.vary) > 0 {
		p.variant = rfc9111.VariantKey(p.vary, r.req)
	}
	p.freshness.InitialAge += time.Since(r.headerAt)
	if _, set := p.header["Content-Type"]; !set && len(body) > 0 && len(p.header["Content-Encoding"]) == 0 {
		p.header.Set("Content-Type", http.DetectContentType(body))
	}
	if c.m.opts.MakeETag && len(p.header["Etag"]) == 0 && p.status == http.StatusOK {
		p.header.Set("ETag", madeETag(body))
	}
	if c.m.opts.Compress && !l.d.Control.NoTransform {
		p.gzip = compress(p)
	}
	return p
}

// storedTrailer is what is stored of a trailer: what would be stored of a header
// with these fields. A cookie that comes this way is nobody else's either.
func (m *Middleware) storedTrailer(trailer http.Header, l *lead) http.Header {
	if len(trailer) == 0 {
		return nil
	}
	kept := rfc9111.StoredHeader(&rfc9111.Response{Header: trailer, ResponseTime: l.run.headerAt}, l.d.Control, l.rfc)
	if _, sent := trailer["Date"]; !sent {
		delete(kept, "Date")
	}
	if !m.opts.StoreSetCookie || !l.d.Control.SaysShared() {
		delete(kept, "Set-Cookie")
		delete(kept, "Set-Cookie2")
	}
	return kept
}

// setTerms says for how long a page is fresh, and what it is good for then.
func (m *Middleware) setTerms(f *guard.Fill[*page], p *page) {
	fr := &p.freshness
	f.TTL = fr.Left(fr.InitialAge)
	if fr.NoCache {
		f.TTL = 0
	}
	f.StaleUse, f.StaleFor = guard.ServeStale, fr.StaleWhileRevalidate
	if fr.StaleIfError > fr.StaleWhileRevalidate {
		f.StaleFor = fr.StaleIfError
		if fr.StaleWhileRevalidate == 0 {
			f.StaleUse = guard.OnlyIfError
		}
	}
	if f.StaleFor > 0 && f.TTL <= 0 && !fr.NoCache {
		f.StaleFor, f.TTL = f.StaleFor+f.TTL, time.Millisecond // it came stale
	}
	if f.StaleFor <= 0 {
		f.StaleFor = guard.Off
		if m.opts.KeepFor > 0 && rfc9111.HasValidator(p.header) {
			f.StaleFor, f.StaleUse = m.opts.KeepFor, guard.OnlyValidate
		}
	}
}

// setConditions asks the handler for a 304, if the stale response can be told by
// something that the handler knows. It doesn't know a tag that was made here, for
// whose sake it would ignore If-Modified-Since (RFC 9110, 13.1.3). A response whose
// tags are not known from its header is fetched in full.
func (m *Middleware) setConditions(h http.Header, stale *page) bool {
	if stale.hidesTags {
		return false
	}
	about := stale.header
	if m.opts.MakeETag && about.Get("Etag") == madeETag(stale.body) {
		about = about.Clone()
		delete(about, "Etag")
	}
	return rfc9111.SetConditions(h, about)
}

// madeETag is the tag of a body whose handler gave it none.
func madeETag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
}

// validated is a stale page that the handler has said is still good. Only what
// says so travels: the body stays.
func (c *call) validated(ctx context.Context, f *guard.Fill[*page], l *lead) (*page, error) {
	r := l.run
	if len(rfc9111.Selected(r.header, l.stale.header)) == 0 {
		// It speaks of something else: ask again, without conditions.
		l.stale = nil
		var nominated []string
		if l.ix != nil {
			nominated = l.ix.names
		}
		l.run = c.start(ctx, nominated, nil)
		if err := l.run.awaitHeader(ctx); err != nil {
			return nil, err
		}
		return c.decide(ctx, f, l)
	}
	l.rfc = c.m.rfc(c.asked.terms, l.stale.status)
	p := *l.stale
	p.header = rfc9111.Freshen(l.stale.header, r.header, l.rfc)
	resp := &rfc9111.Response{Status: p.status, Header: p.header, RequestTime: r.askedAt(), ResponseTime: r.headerAt}
	l.d = rfc9111.Store(r.req, resp, l.rfc)
	p.freshness, p.began = l.d.Freshness, r.began
	l.tags = c.m.tagsOf(r.req, updated(l.stale.header, r.header))
	c.note(r, decision{stored: true, fwdCode: http.StatusNotModified, ttl: p.freshness.Left(p.freshness.InitialAge)})
	p.header = rfc9111.StoredHeader(resp, l.d.Control, l.rfc)
	p.hidesTags = c.m.hidesTags(r.req, p.header, l.tags)
	if l.d.Control.NoTransform || hasDigest(&p) {
		p.gzip = nil
	}
	if c.notShared(l) != "" || !slices.Equal(l.d.Vary, p.vary) {
		if !c.asked.withholds(r.req, l.d.Vary) {
			c.mu.Lock()
			c.own = &p
			c.mu.Unlock()
		}
		f.Private = true
		return nil, nil
	}
	f.Tags = append(f.Tags, l.tags...)
	c.m.setTerms(f, &p)
	return &p, nil
}

// note keeps what the client is told of its run.
func (c *call) note(r *run, d decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == r && !c.answering {
		d.fwd = c.decision.fwd
		c.decision = d
	}
}

// noteStale: a run was started as what is stored is stale, unless its client has been
// told something better.
func (c *call) noteStale(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == r && !c.answering && c.decision.fwd == "" {
		c.decision.fwd = rfc9111.FwdStale
	}
}

// disown leaves the run to others: the client gets its answer elsewhere.
func (c *call) disown(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == r {
		c.run = nil
	}
}
