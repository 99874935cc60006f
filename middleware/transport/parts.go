package transport

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// Parts of a response (RFC 9111, 3.3 and 3.4). A URL has one stored part, under a key of its
// own. It grows by further parts that touch it and have the same strong ETag. When it is
// whole, it is stored as the response to GET instead.
//
// A request for a part does not wait for the response of another, as clients load the parts of a
// file side by side. It takes the turn of the part's key if that is free within 100 ms, and
// stores nothing otherwise: see [httpcache.BeginBeside].

// methodPart stands for the method in the keys of parts.
const methodPart = "GET-part"

// A part is a stored part of a response, or a stored whole.
type part struct {
	*found
	is  rfc9111.Part
	key string
}

func (x *exchange) partKey() string {
	custom, _ := customKey(x.p, x.own())
	key, _ := x.t.keys.key(methodPart, x.own(), custom, x.unusual)
	return key
}

// forgetPart deletes the stored part of the request's URL, whichever request ends meanwhile.
func (x *exchange) forgetPart() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), storeTimeout)
	defer cancel()
	_ = x.t.guard.Delete(ctx, x.partKey())
}

// findPart returns the stored part of the request's URL and variant; nil: there is none.
func (x *exchange) findPart() *part {
	f, at, ok := x.peek(slot{key: x.partKey()})
	if !ok || f.page.Variant != rfc9111.VariantKey(f.page.Vary, x.varying()) {
		return nil
	}
	is, ok := partOf(f.page)
	if !ok {
		return nil
	}
	return &part{f, is, at.key}
}

// wholeAsPart makes a part of a stored whole; nil: it can't be validated as one.
func wholeAsPart(f *found, key string) *part {
	if f == nil || f.page.Status != http.StatusOK || len(f.page.Trailer) > 0 {
		return nil
	}
	n := int64(len(f.page.Body))
	return &part{f, rfc9111.Part{First: 0, Last: n - 1, Total: n}, key}
}

// partOf is the part that an entry has.
func partOf(p *httpcache.Page) (rfc9111.Part, bool) {
	is, ok := rfc9111.PartOf(p.Status, p.Header)
	return is, ok && is.Size() == int64(len(p.Body))
}

// ranges answers a request for a part of a response if the whole, or that part of it, is
// stored and fresh. Else the request is passed on: the whole may be long.
func (x *exchange) ranges() (*http.Response, error) {
	whole, at, ok := x.peek(slot{key: x.key})
	if ok {
		verdict, _ := rfc9111.MayServe(whole.page.Freshness, whole.age, x.control)
		if verdict == rfc9111.ServeFresh || verdict == rfc9111.ServeStale {
			if rfc9111.AnswerFor(x.req, whole.page.Stored()) == rfc9111.AnswerRanges {
				return x.part(whole), nil
			}
			return x.answer(whole, x.hit(whole)), nil
		}
	}
	p, want := x.partFor(wholeAsPart(whole, at.key))
	if p != nil {
		verdict, _ := rfc9111.MayServe(p.page.Freshness, p.age, x.control)
		if verdict == rfc9111.ServeFresh || verdict == rfc9111.ServeStale {
			return x.cut(p, want, x.hit(p.found)), nil
		}
	}
	if x.control.OnlyIfCached {
		return x.gatewayTimeout(), nil
	}
	return x.fetchPart(p, want)
}

// partFor returns the stored part that has the bytes that the request asks for, or the stored
// whole, which is not fresh; nil: there is none. A part of another version than the whole does
// not answer in turn with it.
func (x *exchange) partFor(whole *part) (p *part, want rfc9111.Part) {
	if !rfc9111.AsksForPart(x.own()) {
		return nil, want
	}
	x.t.noteParts(x.own())
	for _, p := range []*part{x.findPart(), whole} {
		if p == nil || whole != nil && !p.isOf(whole) || !rfc9111.IfRangeHolds(x.own().Header, p.page.Stored()) {
			continue
		}
		if want, within := rfc9111.RequestedPart(x.own(), p.is.Total); within && p.is.Has(want) {
			return p, want
		}
	}
	return nil, want
}

// isOf reports whether a part is of the representation that a whole has. Some servers give their
// compressed content the ETag of the plain one, and send parts of the plain one only.
func (p *part) isOf(whole *part) bool {
	return p.is.Total == whole.is.Total && rfc9111.Combines(whole.page.Header, p.page.Header)
}

// cut answers the request with some bytes of a part.
func (x *exchange) cut(p *part, want rfc9111.Part, s rfc9111.Status) *http.Response {
	h := make(http.Header, len(p.page.Header)+3)
	httpcache.CopyHeader(h, p.page.Header)
	h.Set("Content-Range", want.String())
	h.Set("Content-Length", strconv.FormatInt(want.Size(), 10))
	rfc9111.RemoveContentDigests(h)
	rfc9111.SetAge(h, p.age)
	x.addCookies(h, s)
	s.AppendTo(h)
	return x.response(http.StatusPartialContent, h, p.page.Body[want.First-p.is.First:want.Last-p.is.First+1])
}

// fetchPart passes the request on, and stores the part that it is answered with, or the
// whole. A stale part that has the wanted bytes is validated: the upstream answers 304, or as
// if it had not been asked about the part.
func (x *exchange) fetchPart(stale *part, want rfc9111.Part) (*http.Response, error) {
	var turn *guard.Turn[*httpcache.Page]
	if rfc9111.AsksForPart(x.own()) {
		turn = httpcache.BeginBeside(x.ctx, x.t.guard, x.partKey(), guard.MaxAge(0))
	}
	kept := false
	defer func() {
		if !kept {
			release(turn)
		}
	}()
	resp, began, err := x.askPart(stale)
	if err != nil {
		if stale != nil && x.ctx.Err() == nil && mayServeInstead(stale.page, stale.age, x.control, err) {
			return x.cut(stale, want, x.insteadOf(stale.found, 0)), nil
		}
		return nil, err
	}
	switch {
	case stale != nil && resp.StatusCode == http.StatusNotModified && len(rfc9111.Selected(resp.Header, stale.page.Header)) > 0:
		return x.renewPart(turn, stale, want, resp, began), nil
	case stale != nil && isFailure(resp.StatusCode) && mayServeInstead(stale.page, stale.age, x.control, &rejection{status: resp.StatusCode}):
		discard(resp)
		return x.cut(stale, want, x.insteadOf(stale.found, resp.StatusCode)), nil
	}
	kept = x.recordPart(turn, resp, began)
	outdated := stale != nil && resp.StatusCode < 300 && !rfc9111.Combines(resp.Header, stale.page.Header)
	if outdated && (!kept || stale.key != x.partKey()) { // a new part takes the place of the old one
		_ = x.t.guard.Delete(x.ctx, stale.key)
	}
	return x.t.passed(x.req, resp, rfc9111.Status{Fwd: x.fwd, Stored: kept}), nil
}

// askPart makes the call for a part. stale is validated; nil: there is none.
func (x *exchange) askPart(stale *part) (*http.Response, time.Time, error) {
	began := time.Now()
	req := x.req
	x.fwd = rfc9111.FwdPartial
	if stale != nil {
		x.fwd = rfc9111.FwdStale
		// If-None-Match counts before Range. If-Range stays: without it a client with a part
		// of the old version would get a part of the new one.
		conditional := *req
		conditional.Header = req.Header.Clone()
		conditional.Header["If-None-Match"] = []string{stale.page.Header.Get("Etag")}
		req = &conditional
	}
	resp, err := x.t.send(x.req.Context(), attempt{p: x.p, sent: &began}, req)
	if err == nil && stale != nil && resp.StatusCode == http.StatusNotModified && len(rfc9111.Selected(resp.Header, stale.page.Header)) == 0 {
		discard(resp) // it is about another response
		return x.askPart(nil)
	}
	return resp, began, err
}

// discard ends a response that no request wants.
func discard(resp *http.Response) {
	drain(resp.Body, func() { _ = resp.Body.Close() })
	_ = resp.Body.Close()
}

// renewPart answers from a part that a 304 has validated, and stores it again.
func (x *exchange) renewPart(turn *guard.Turn[*httpcache.Page], stale *part, want rfc9111.Part, resp *http.Response, began time.Time) *http.Response {
	discard(resp)
	arrived := time.Now()
	header := rfc9111.WholeHeader(rfc9111.Freshen(stale.page.Header, resp.Header, x.rules))
	page := x.storablePart(header, began, arrived)
	switch {
	case page == nil:
		_ = x.t.guard.Delete(x.ctx, x.partKey()) // a whole is judged by the next GET
	case turn != nil:
		x.storePart(turn, page, stale.page.Body, stale.is, arrived)
	}
	x.by304 = resp.Header
	dec := x.decide(http.StatusOK, header, began, arrived)
	renewed := &found{dec.page, dec.page.Freshness.InitialAge, guard.Fetched, turn != nil && page != nil}
	renewed.page.Body = stale.page.Body
	return x.cut(&part{found: renewed, is: stale.is}, want, x.forwarded(renewed))
}

// insteadOf is the status of a stale answer in place of a failure.
func (x *exchange) insteadOf(f *found, status int) rfc9111.Status {
	return x.status(rfc9111.Status{Fwd: rfc9111.FwdStale, FwdStatus: status, Detail: "stale-if-error", TTL: f.left()})
}

func release(turn *guard.Turn[*httpcache.Page]) {
	if turn != nil {
		turn.Release()
	}
}

// recordPart lets the response to a request for a part be stored when its client has read it.
// It reports whether the response can be stored.
func (x *exchange) recordPart(turn *guard.Turn[*httpcache.Page], resp *http.Response, began time.Time) bool {
	is, partial := rfc9111.PartOf(resp.StatusCode, resp.Header)
	size, header := resp.ContentLength, resp.Header
	switch {
	case turn == nil, resp.Body == http.NoBody:
		return false
	case partial && (!rfc9111.Combines(header, header) || size >= 0 && size != is.Size()):
		return false
	case partial:
		size, header = is.Size(), rfc9111.WholeHeader(header)
	case resp.StatusCode != http.StatusOK || len(resp.Trailer) > 0:
		return false
	}
	arrived := time.Now()
	page := x.storablePart(header, began, arrived)
	if page == nil || size > int64(x.p.MaxBody) || !partial && len(page.Vary) > 0 {
		return false
	}
	x.keep(resp, size, func(body []byte, whole bool) {
		defer turn.Release()
		switch {
		case !whole:
		case partial:
			x.storePart(turn, page, body, is, arrived)
		default:
			x.storeWhole(turn, page, body, arrived)
		}
	})
	return true
}

// storablePart returns the page of a response with a header, without its body, if parts of it
// may be stored; nil: they may not. A part that is never fresh is not worth its place.
func (x *exchange) storablePart(header http.Header, began, arrived time.Time) *httpcache.Page {
	dec := x.decide(http.StatusOK, header, began, arrived)
	if f := &dec.page.Freshness; !dec.storable || f.NoCache || f.Left(f.InitialAge) <= 0 {
		return nil
	}
	return dec.page
}

// storePart stores a part, combined with the stored one if they touch; or the whole, if that
// is all of it. page has the header of the whole.
func (x *exchange) storePart(turn *guard.Turn[*httpcache.Page], page *httpcache.Page, body []byte, is rfc9111.Part, arrived time.Time) {
	combined := false
	if old := turn.Fill.Stale; old != nil {
		body, is, combined = combine(*old, page, body, is, int64(x.p.MaxBody))
	}
	if !combined && len(x.own().Header["If-Range"]) > 0 && len(page.Header["Content-Type"]) == 0 {
		return // the client has the other fields, and the cache has not (RFC 9110, 15.3.7)
	}
	if is.IsWhole() && len(page.Vary) == 0 && x.storeWhole(turn, page, body, arrived) {
		return
	}
	stored := *page
	stored.Status, stored.Header, stored.Body = http.StatusPartialContent, page.Header.Clone(), body
	delete(stored.Header, "Content-Length")
	stored.Header.Set("Content-Range", is.String())
	stored.Freshness.InitialAge += time.Since(arrived)
	x.t.terms.Set(turn.Fill, &stored)
	turn.Store(&stored)
}

// storeWhole stores a response to GET in place of its parts. It reports whether it ended the
// turn of the parts.
func (x *exchange) storeWhole(turn *guard.Turn[*httpcache.Page], page *httpcache.Page, body []byte, arrived time.Time) bool {
	whole := turn.Also(x.key)
	if whole == nil {
		return false // a GET has the turn, or has stored a page
	}
	done := *page
	done.Header = page.Header.Clone()
	x.finish(&done, body, arrived)
	x.t.terms.Set(whole.Fill, &done)
	httpcache.EndBeside(turn, httpcache.Forget(turn), whole, &done)
	return true
}

// combine adds the bytes of a stored part before and after a new one, and changes the page's
// header, if both are of one representation and there is no gap.
func combine(old, page *httpcache.Page, body []byte, is rfc9111.Part, most int64) ([]byte, rfc9111.Part, bool) {
	had, ok := partOf(old)
	both := rfc9111.Part{First: min(had.First, is.First), Last: max(had.Last, is.Last), Total: is.Total}
	if !ok || !had.Touches(is) || both.Size() > most || !rfc9111.Combines(old.Header, page.Header) || old.Variant != page.Variant {
		return body, is, false
	}
	page.Header = rfc9111.WholeHeader(rfc9111.CombinedHeader(old.Header, page.Header))
	all := slices.Concat(old.Body[:max(0, is.First-had.First)], body)
	if had.Last > is.Last {
		all = append(all, old.Body[is.Last+1-had.First:]...)
	}
	return all, both, true
}
