package middleware

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A posted is the response to a POST, on its way to the page of the POST's URL: see
// Options.StorePost. The goroutine of the request uses it. A nil posted is none. Its turns
// are those of [httpcache.BeginBeside]: it takes the page's turn at the end, as its client may be
// slow and GETs would wait. Of two POSTs at the same time the second one is not stored.
type posted struct {
	m        *Middleware
	received *http.Request
	asked    *asked // the GET of the same URL
	began    time.Time
	own      *guard.Turn[*httpcache.Page]

	// Set by decide.
	kept     bool // the response is to be stored
	rfc      rfc9111.Options
	d        rfc9111.Decision
	response *rfc9111.Response

	body []byte
}

// post prepares for the response to a request, if that may be stored.
func (m *Middleware) post(received *http.Request) *posted {
	if !m.opts.StorePost || received.Method != http.MethodPost {
		return nil
	}
	get := *received
	get.Method, get.Body, get.ContentLength = http.MethodGet, http.NoBody, 0
	p := &posted{m: m, received: received, asked: &asked{Request: &get, site: m.site, terms: m.site.termsFor(&get)}, began: time.Now()}
	p.asked.read()
	if p.asked.terms.bypass || p.asked.terms.epochs || bypasses(&get) || !p.asked.isExact() {
		return nil
	}
	if p.own = httpcache.BeginBeside(received.Context(), m.pages.guard, p.key()); p.own == nil {
		return nil
	}
	return p
}

// isExact reports whether the request's host and query are those in its key, apart from the
// order of parameters. The handler of a POST sees all of them, and that of a shared run does not.
func (a *asked) isExact() bool {
	return len(a.query) == len(a.URL.RawQuery) && a.sharedHost() == httpcache.CanonicalHost(scheme(a.Request), a.Host)
}

// key is the key of the POST's own turn; empty if there is none.
func (p *posted) key() string {
	if p == nil {
		return ""
	}
	return keyPosted + p.asked.page()
}

// wanted reports whether the body is to be kept.
func (p *posted) wanted() bool { return p != nil && p.kept }

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
	case len(h["Trailer"]) > 0:
	default:
		p.kept = true
	}
	return p.wanted()
}

// add takes a part of the body.
func (p *posted) add(part []byte) {
	switch {
	case !p.wanted():
	case len(p.body)+len(part) > p.m.opts.MaxBody:
		p.kept, p.body = false, nil
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
	for name := range w.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return
		}
	}
	length := p.response.Header.Get("Content-Length")
	if !w.returned || w.hijacked || int64(len(p.body)) != w.n || length != "" && length != strconv.FormatInt(w.n, 10) {
		return
	}
	turn := p.own.Also(p.asked.key(""))
	if turn == nil {
		return // a GET from after the POST has the turn, or has stored its page
	}
	page := p.whole()
	p.m.terms.Set(turn.Fill, page)
	if httpcache.EndBeside(p.own, httpcache.Forget(p.own), turn, page) {
		p.m.pages.keep(p.m.ctx, p.asked.key(""))
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
