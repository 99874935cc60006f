package middleware

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A decision is the result of a run's header, as far as Cache-Status tells it.
type decision struct {
	fwd     rfc9111.Fwd
	stored  bool
	reason  string
	ttl     time.Duration
	fwdCode int // the handler's answer to a validation
}

// decide decides about a response at its header. It is called once, by the
// handler's first write.
func (r *run) decide() {
	if r.asksStale && r.status == http.StatusNotModified {
		r.validated()
		return
	}
	if rfc9111.IsError(r.status) && r.stale != nil && r.stale.UsableOnError() {
		r.goPrivate() // if the stale page may not be served after all, the client gets this
		r.fail(&statusError{status: r.status})
		return
	}
	r.rfc = r.m.site.rfc(r.asked.terms, r.status)
	r.d = rfc9111.Store(r.req, r.response(), r.rfc)
	r.tags = r.m.tags.of(r.req, r.header)
	r.impliedVary()
	reason := r.notShared()
	r.failure = reason != "" && r.passes(reason)
	r.passing = r.failure || r.noEpoch
	switch {
	case reason != "" && !r.failure:
		r.keepPrivate(reason)
	case r.failure:
		r.record()
	case r.at.ix.Covers(r.d.Vary):
		r.record()
	case r.at.ix != nil:
		r.learn()
		r.keepPrivate("vary")
	default:
		r.branch()
	}
}

// impliedVary adds Accept-Encoding to the names of a response that is encoded and does not
// name it: a client that accepts no encoding could not read it.
func (r *run) impliedVary() {
	if len(r.header["Content-Encoding"]) > 0 && len(r.req.Header["Accept-Encoding"]) > 0 {
		r.d.Vary = (&httpcache.Index{Names: []string{"Accept-Encoding"}}).With(r.d.Vary)
	}
}

// response is the run's, for the rules.
func (r *run) response() *rfc9111.Response {
	return &rfc9111.Response{Status: r.status, Header: r.header, RequestTime: r.madeAt(), ResponseTime: r.headerAt}
}

// madeAt is the time from which on the response may have existed. A response without Date
// and Age is made here and begins to exist with its header. If its handler's time counted
// as age, a response that takes longer than its max-age would help no other request.
func (r *run) madeAt() time.Time {
	if r.header.Get("Date") == "" && r.header.Get("Age") == "" {
		return r.headerAt
	}
	return r.began
}

// notShared is the reason why others may not have the response; empty if they may.
func (r *run) notShared() string {
	switch {
	case r.hijacked:
		return "hijacked"
	case r.expected > int64(r.m.opts.MaxBody):
		return "too-large"
	}
	return r.asked.withheld(&r.d, r.m.tags.fit(r.tags))
}

// withheld is notShared as far as the response's header tells.
func (a *asked) withheld(d *rfc9111.Decision, tagsFit bool) string {
	switch {
	case d.For != rfc9111.Anyone:
		return string(d.Reason)
	case a.credentialed && !d.Control.SaysShared() && !a.trusts(d):
		return "personal"
	case a.credentialed && needsValidation(d):
		return "always-validated"
	case !tagsFit:
		return "tags"
	}
	return ""
}

// trusts reports whether a response to a request with credentials may be shared though it
// does not say so: see Options.TrustOrigin. Store has applied the rules of Authorization. A
// client's certificate is no header, and so the response can't vary on it.
func (a *asked) trusts(d *rfc9111.Decision) bool {
	return a.mixes() && a.mayUse(d.Freshness) && (a.TLS == nil || len(a.TLS.PeerCertificates) == 0)
}

// mayUse reports whether a page's freshness lets it answer a request that mixes. The response
// has to state its lifetime: otherwise its handler may not know of caches, and looked for
// credentials without a word of it.
func (a *asked) mayUse(f rfc9111.Freshness) bool {
	switch f.Origin {
	case rfc9111.FromNothing, rfc9111.FromOptions, rfc9111.FromHeuristic:
		return !a.mixes()
	}
	return true
}

// needsValidation reports whether a response says that it must be validated before each use.
// A handler may tell users apart by the validation alone, with the same Cache-Control for
// all: each validation is made with the credentials of its request. Options.Stale does not
// change the response's statement.
func needsValidation(d *rfc9111.Decision) bool {
	f := d.Freshness
	verdict, _ := rfc9111.MayServe(f, f.InitialAge, rfc9111.RequestControl{})
	return verdict == rfc9111.Validate || verdict == rfc9111.ServeAndRefresh && !d.Control.StaleWhileRevalidate.Set
}

// misfits reports whether the response varies on a header of the client's that the run was
// not given. It answers requests without that header, and not its client.
func (r *run) misfits() bool { return r.client != nil && r.asked.misses(r.req, r.d.Vary) }

// fail ends the turn with an error.
func (r *run) fail(err error) {
	if r.notOver() {
		r.turn.Fail(err)
	}
	r.publish(outcome{then: giveUp, err: err})
}

// keepPrivate leaves the response to the run's client. Requests that wait run the handler
// for themselves, and so do requests that come, for a while.
func (r *run) keepPrivate(reason string) {
	defer r.endLive(nil)
	r.recording = false
	over := !r.notOver()
	o := outcome{then: readAlong, decision: decision{reason: reason}}
	if !r.hijacked && (r.misfits() || r.client != nil && (r.asked.isStripped() || r.tooLongForRange())) {
		o.then = runAlone // with the whole request
	}
	if r.publish(o) && o.then == runAlone { // else the client has begun to read along
		r.detach()
	}
	r.goPrivate()
	if !over {
		r.yield(reason)
	}
}

// tooLongForRange reports whether the client asked for ranges of a response that says that it
// is too long to be kept. The handler can make the ranges by itself.
func (r *run) tooLongForRange() bool {
	return r.expected > int64(r.m.opts.MaxBody) && r.asked.Method == http.MethodGet && r.asked.Header["Range"] != nil
}

// tooLarge is called before a write that exceeds MaxBody.
func (r *run) tooLarge() { r.keepPrivate("too-large") }

// record keeps the body until it is whole, while the client reads along. A client that
// wants ranges waits for the whole.
func (r *run) record() {
	r.recording = true
	r.mu.Lock()
	r.forWhole = r.asked.Header["Range"] != nil && !r.private
	forWhole := r.forWhole
	r.mu.Unlock()
	if !forWhole {
		r.publish(outcome{then: readAlong, decision: r.recorded()})
	}
	r.share()
}

func (r *run) recorded() decision {
	return decision{stored: !r.passing && !r.isPrivate(), reason: string(r.d.Reason), ttl: r.d.Freshness.Left(r.d.Freshness.InitialAge)}
}

// store ends the turn with the recorded page. A response that is passing goes to the
// requests that wait: a failure, or a page whose epoch is not known.
func (r *run) store() {
	body, ok := r.rec.Kept()
	over := !r.notOver()
	if !over && !ok {
		r.turn.Release()
	}
	if over || !ok {
		r.publish(outcome{then: readAlong, decision: decision{reason: "timeout"}})
		return
	}
	p, f := r.page(body), r.turn.Fill
	if !r.failure || r.status < 500 { // a failure of the server says nothing of the page
		f.Tags = append(f.Tags, r.tags...)
	}
	switch {
	case r.failure && r.known != nil && r.status != http.StatusNotFound && r.status != http.StatusGone:
		p = r.passed(p)
		r.turn.Fail(r.pausing(&statusError{r.status, p, len(f.Tags) > 0})) // the stored page stays
		r.publish(outcome{then: servePage, page: p, decision: r.recorded()})
		return
	case r.failure:
		p = r.passed(p)
		fallthrough
	case r.passing:
		f.TTL, f.StaleFor = 0, guard.Off
	default:
		r.m.pages.marks.Trust(r.at.key())
		r.enlist()
		r.m.terms.Set(f, p)
	}
	stored := r.turn.Store(p)
	if r.live != nil {
		r.live.End(p, nil)
	}
	r.publish(outcome{then: servePage, page: p, stored: stored, decision: r.recorded()})
	if stored && !r.passing {
		r.m.pages.keep(r.m.ctx, r.at.page)
	}
}

// page makes a page of a response that is whole.
func (r *run) page(body []byte) *httpcache.Page {
	p := r.head()
	p.Body, p.Length, p.Trailer = body, strconv.Itoa(len(body)), r.storedTrailer()
	if _, set := p.Header["Content-Type"]; !set && len(body) > 0 && len(p.Header["Content-Encoding"]) == 0 {
		p.Header.Set("Content-Type", http.DetectContentType(body))
	}
	if r.m.opts.MakeETag && len(p.Header["Etag"]) == 0 && p.Status == http.StatusOK {
		p.Header.Set("ETag", madeETag(body))
	}
	if r.m.opts.Compress && !r.d.Control.NoTransform {
		p.Gzip = compress(p)
	}
	return p
}

// head makes the page without the body and all that depends on it.
func (r *run) head() *httpcache.Page {
	p := &httpcache.Page{
		Status: r.status, Vary: r.d.Vary, Freshness: r.d.Freshness,
		Header: rfc9111.StoredHeader(r.response(), r.d.Control, r.rfc), Began: r.began,
	}
	p.HidesTags = r.m.tags.hides(r.req, p.Header, r.tags)
	delete(p.Header, "Content-Length")
	withoutTraces(p.Header)
	if len(p.Vary) > 0 {
		p.Variant = rfc9111.VariantKey(p.Vary, r.req)
	}
	p.Freshness.InitialAge += time.Since(r.headerAt)
	return p
}

// storedTrailer is the part of the trailer that would be stored of a header with the same
// fields.
func (r *run) storedTrailer() http.Header {
	if len(r.trailer) == 0 {
		return nil
	}
	kept := rfc9111.StoredHeader(&rfc9111.Response{Header: r.trailer, ResponseTime: r.headerAt}, r.d.Control, r.rfc)
	if _, sent := r.trailer["Date"]; !sent {
		delete(kept, "Date")
	}
	withoutTraces(kept)
	if !r.m.opts.StoreSetCookie || !r.d.Control.SaysShared() {
		delete(kept, "Set-Cookie")
		delete(kept, "Set-Cookie2")
	}
	return kept
}

// validated stores a stale page again that the handler has answered 304 for. The 304
// updates the header and leaves the body.
func (r *run) validated() {
	if len(rfc9111.Selected(r.header, r.stale.Header)) == 0 {
		r.goesAgain = true // the 304 is about another response
		return
	}
	r.rfc = r.m.site.rfc(r.asked.terms, r.stale.Status)
	p := *r.stale
	p.Header = rfc9111.Freshen(r.stale.Header, r.header, r.rfc)
	resp := &rfc9111.Response{Status: p.Status, Header: p.Header, RequestTime: r.madeAt(), ResponseTime: r.headerAt}
	r.d = rfc9111.Store(r.req, resp, r.rfc)
	if len(p.Header["Content-Encoding"]) > 0 && slices.Contains(p.Vary, "Accept-Encoding") {
		r.d.Vary = (&httpcache.Index{Names: []string{"Accept-Encoding"}}).With(r.d.Vary) // see impliedVary
	}
	p.Freshness, p.Began = r.d.Freshness, r.began
	r.tags = r.m.tags.of(r.req, updated(r.stale.Header, r.header))
	p.Header = rfc9111.StoredHeader(resp, r.d.Control, r.rfc)
	withoutTraces(p.Header)
	p.HidesTags = r.m.tags.hides(r.req, p.Header, r.tags)
	if r.d.Control.NoTransform || hasDigest(&p) {
		p.Gzip = nil
	}
	o := outcome{then: servePage, page: &p, decision: decision{
		stored: true, fwdCode: http.StatusNotModified, ttl: p.Freshness.Left(p.Freshness.InitialAge),
	}}
	unfit := r.notShared() != "" || !slices.Equal(r.d.Vary, p.Vary) || r.asked.mixes() && !r.renews(p.Status)
	if unfit && r.misfits() {
		o.then = runAlone
	}
	switch {
	case !r.notOver():
	case unfit && r.asked.mixes():
		r.turn.Fail(r.pausing(httpcache.ErrUnshared)) // the stored page stays
	default:
		f := r.turn.Fill
		if f.Private = unfit; !unfit {
			f.Tags = append(f.Tags, r.tags...)
			r.m.terms.Set(f, &p)
		}
		o.stored = r.turn.Store(&p)
	}
	r.publish(o)
	if o.stored {
		r.m.pages.keep(r.m.ctx, r.at.page)
	}
}

// renews reports whether a 304 to a request that mixes renews the page for others: the 304
// itself has to say so. The page may have been made without credentials.
func (r *run) renews(status int) bool {
	d := rfc9111.Store(r.req, &rfc9111.Response{Status: status, Header: r.header, RequestTime: r.madeAt(), ResponseTime: r.headerAt}, r.rfc)
	return r.asked.withheld(&d, true) == ""
}

// branch is for a response that varies on names that its page has no index for. The
// page's turn ends at once with the index, so that no request waits for a variant that
// isn't its own. The run goes on under the turn of its variant, which it takes before.
func (r *run) branch() {
	pages := r.turn
	variant := rfc9111.VariantKey(r.d.Vary, r.req)
	ix := httpcache.NewIndex(r.d.Vary, variant)
	at := slot{page: r.at.page, ix: ix, variant: variant}
	under := pages.Also(at.key())
	over := !r.notOver()
	if r.misfits() {
		r.detach()
		r.publish(outcome{then: lookAgain}) // it waits for the index, as others do
	}
	switch {
	case under != nil:
		r.at = at
		r.take(under)
		r.record()
	default:
		r.goPrivate()
		r.publish(outcome{then: readAlong, decision: decision{reason: "vary"}})
	}
	// The tags keep the index from being stored if one of them was purged since the run
	// began. The variant can't be reached then.
	if f := pages.Fill; !over {
		f.TTL, f.StaleFor, f.Tags = indexTTL, guard.Off, append(f.Tags, r.tags...)
		pages.Store(&httpcache.Page{Index: ix})
	}
}

// learn adds the names to the index that a variant's response turned out to vary on. It
// takes the page's turn for that, so that a purge in between wins.
func (r *run) learn() {
	names := r.at.ix.With(r.d.Vary)
	if len(names) <= rfc9111.MaxVaryNames {
		r.changeIndex(func(ix *httpcache.Index) { ix.Names, ix.Variants = names, nil }, func() {})
	}
}

// enlist adds the run's variant to the index, which bounds their number: it takes the place
// of the variant that has been of least use.
func (r *run) enlist() {
	ix, variant := r.at.ix, r.at.variant
	if ix == nil || ix.Contains(variant) {
		return
	}
	var dropped []string
	r.changeIndex(func(ix *httpcache.Index) {
		dropped = nil
		if ix.Contains(variant) {
			return
		}
		for len(ix.Variants) >= r.m.opts.MaxVariants {
			dropped = append(dropped, ix.Drop(r.m.pages.marks.Used(r.at.page)))
		}
		ix.Variants = append(ix.Variants, variant)
	}, func() {
		for _, suffix := range dropped {
			_ = r.m.pages.guard.Delete(r.m.ctx, r.at.page+"\n"+suffix)
		}
	})
}

// changeIndex changes the page's index on a goroutine that ends with the guard, and calls
// done if the index was changed.
func (r *run) changeIndex(change func(*httpcache.Index), done func()) {
	m, page, gen := r.m, r.at.page, r.at.ix.Gen
	go func() {
		if ix, err := m.pages.changeIndex(m.ctx, page, gen, change); ix != nil && err == nil {
			done()
		}
	}()
}
