package middleware

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A posted is the response to a POST, on its way to the page of the POST's URL: see
// Options.StorePost. The goroutine of the request uses it. A nil posted is none.
//
// An invalidation during the POST must win, whichever process it comes from. The POST can't
// have the page's turn from its start: requests for the page would wait for it. It has the turn
// of another key, which nothing waits for and which invalidations delete before the page. It
// takes the page's turn at the header, and ends its own turn before that of the page. An
// invalidation from before the end of its own turn makes that end fail. A later one finds
// the page's turn, or the page.
type posted struct {
	m        *Middleware
	received *http.Request
	asked    *asked // the GET of the same URL
	began    time.Time
	own      *guard.Turn[*httpcache.Page]

	// Set by decide.
	page     *guard.Turn[*httpcache.Page] // nil: the response is not stored
	rfc      rfc9111.Options
	d        rfc9111.Decision
	response *rfc9111.Response

	body []byte
}

// postWithin bounds the wait for the turn of a POST, which costs its client time.
const postWithin = 100 * time.Millisecond

// post prepares for the response to a request, if that may be stored.
func (m *Middleware) post(received *http.Request) *posted {
	if !m.opts.StorePost || received.Method != http.MethodPost {
		return nil
	}
	get := *received
	get.Method, get.Body, get.ContentLength = http.MethodGet, http.NoBody, 0
	p := &posted{m: m, received: received, asked: &asked{Request: &get, site: m.site, terms: m.site.termsFor(&get)}, began: time.Now()}
	p.asked.read()
	if p.asked.terms.bypass || p.asked.terms.epochs || bypasses(&get) {
		return nil
	}
	ctx, cancel := context.WithTimeout(received.Context(), postWithin)
	defer cancel()
	// Of two POSTs at the same time the second one is not stored, and does not wait: Also
	// needs some turn, and no other request has that of a random key.
	_, door, _ := m.pages.guard.Begin(ctx, keyPosted+httpcache.RandomName(), nil)
	if door == nil {
		return nil
	}
	door.Fill.Cost = 0 // no run of a page
	p.own = door.Also(p.key())
	door.Release()
	if p.own == nil {
		return nil
	}
	return p
}

// key is the key of the POST's own turn; empty if there is none.
func (p *posted) key() string {
	if p == nil {
		return ""
	}
	return keyPosted + p.asked.page()
}

// wanted reports whether the body is to be kept.
func (p *posted) wanted() bool { return p != nil && p.page != nil }

// decide decides at the header, after the invalidation. It reports whether the response will
// be stored if it is whole.
func (p *posted) decide(status int, h http.Header) bool {
	if p == nil {
		return false
	}
	p.response = &rfc9111.Response{Status: status, Header: h, ResponseTime: time.Now()}
	if h.Get("Date") != "" || h.Get("Age") != "" {
		p.response.RequestTime = p.began // it came from elsewhere: see run.madeAt
	}
	p.rfc = p.m.site.rfc(p.asked.terms, status)
	p.d = rfc9111.StorePosted(p.received, p.received.TLS != nil, p.response, p.rfc)
	switch {
	case p.asked.withheld(&p.d, true) != "", len(p.m.tags.of(p.asked.Request, h)) > 0:
	case len(h["Content-Encoding"]) > 0, len(h["Trailer"]) > 0:
	default:
		p.page = p.own.Also(p.asked.key(""), guard.MaxAge(0))
	}
	return p.wanted()
}

// add takes a part of the body.
func (p *posted) add(part []byte) {
	switch {
	case !p.wanted():
	case len(p.body)+len(part) > p.m.opts.MaxBody:
		p.page.Release()
		p.page, p.body = nil, nil
	default:
		p.body = append(p.body, part...)
	}
}

// end ends the turns when the handler has returned, and stores a response that is whole.
func (p *posted) end(w *passWriter) {
	if p == nil {
		return
	}
	defer p.own.Release()
	if !p.wanted() {
		return
	}
	defer p.page.Release()
	for name := range w.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return
		}
	}
	length := p.response.Header.Get("Content-Length")
	if !w.returned || w.hijacked || int64(len(p.body)) != w.n || length != "" && length != strconv.FormatInt(w.n, 10) {
		return
	}
	p.own.Fill.TTL, p.own.Fill.StaleFor = time.Millisecond, guard.Off
	if !p.own.Store(&httpcache.Page{Epoch: "posted"}) {
		return // an invalidation came meanwhile
	}
	page := p.whole()
	p.m.terms.Set(p.page.Fill, page)
	if p.page.Store(page) {
		_ = p.m.pages.drop(p.m.ctx, p.m.pages.kept.add(p.asked.key("")))
	}
}

// whole makes the page.
func (p *posted) whole() *httpcache.Page {
	page := &httpcache.Page{
		Status: p.response.Status, Header: rfc9111.StoredHeader(p.response, p.d.Control, p.rfc), Freshness: p.d.Freshness,
		Body: p.body, Length: strconv.Itoa(len(p.body)), Began: p.response.ResponseTime,
	}
	delete(page.Header, "Content-Length")
	withoutTraces(page.Header)
	if _, set := page.Header["Content-Type"]; !set && len(p.body) > 0 {
		page.Header.Set("Content-Type", http.DetectContentType(p.body))
	}
	if p.m.opts.MakeETag && len(page.Header["Etag"]) == 0 {
		page.Header.Set("ETag", madeETag(p.body))
	}
	page.Freshness.InitialAge += time.Since(p.response.ResponseTime)
	return page
}
