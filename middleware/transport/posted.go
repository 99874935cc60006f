package transport

import (
	"net/http"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A posted is the response to a POST, on its way to the page of the POST's URL: see
// Options.StorePost. A nil posted is none. Its turns are those of [httpcache.BeginBeside]. It
// takes the page's turn at the end of the body: its client may be slow, and GETs would wait.
type posted struct {
	x   *exchange // of a GET of the same URL
	key string
	own *guard.Turn[*httpcache.Page]
}

// methodPosted stands for the method in the keys of the POSTs' own turns.
const methodPosted = "GET-posted"

// post prepares for the response to a request, if that may be stored.
func (t *Transport) post(req *http.Request, p *HostPolicy) *posted {
	if !t.opts.StorePost || req.Method != http.MethodPost || misspelled(req.Header) || httpcache.Upgrades(req.Header) {
		return nil
	}
	get := *req
	get.Method, get.Body, get.GetBody, get.ContentLength = http.MethodGet, nil, nil, 0
	get.Cancel = nil //nolint:staticcheck // no call is made with it
	get.Header = req.Header.Clone()
	for _, name := range []string{"Content-Type", "Content-Encoding", "Content-Language"} {
		delete(get.Header, name) // of the body: the GETs have none
	}
	custom, ok := customKey(p, &get)
	if !ok {
		return nil
	}
	x := newExchange(t, p, &get, custom)
	own := &posted{x: x}
	own.key, _ = t.keys.key(methodPosted, &get, custom, x.unusual)
	if own.own = httpcache.BeginBeside(req.Context(), t.guard, own.key); own.own == nil {
		return nil
	}
	return own
}

// spared is the key that the POST's own invalidation leaves.
func (p *posted) spared() string {
	if p == nil {
		return ""
	}
	return p.key
}

func (p *posted) release() {
	if p != nil {
		release(p.own)
	}
}

// store lets a response be stored when its client has read it. It reports whether it can be.
// It is called after the invalidation.
func (p *posted) store(req *http.Request, resp *http.Response, began time.Time) bool {
	if p == nil {
		return false
	}
	page := p.decide(req, resp, began)
	if page == nil {
		p.release()
		return false
	}
	arrived := time.Now()
	p.x.keep(resp, resp.ContentLength, func(body []byte, whole bool) {
		defer p.own.Release()
		if !whole {
			return
		}
		turn := p.own.Also(p.x.key)
		if turn == nil {
			return // a GET from after the POST has the turn, or has stored its response
		}
		p.x.finish(page, body, arrived)
		p.x.t.terms.Set(turn.Fill, page)
		httpcache.EndBeside(p.own, httpcache.Forget(p.own), turn, page)
	})
	return true
}

// decide returns the page of a response that may be stored, without its body. Without
// credentials, or with Shared, the response has to say public or s-maxage: it was made of a
// body that one client sent.
func (p *posted) decide(req *http.Request, resp *http.Response, began time.Time) *httpcache.Page {
	x, arrived := p.x, time.Now()
	r := &rfc9111.Response{Status: resp.StatusCode, Header: resp.Header, RequestTime: began, ResponseTime: arrived}
	d := rfc9111.StorePosted(req, req.URL.Scheme == "https", r, x.rules) // with its cookies
	dec := x.decide(resp.StatusCode, resp.Header, began, arrived)
	switch {
	case d.For == rfc9111.Nobody, !dec.storable:
	case !x.personal && !d.Control.SaysShared():
	case resp.Body == http.NoBody, len(resp.Trailer) > 0, x.tooLong(resp):
	default:
		return dec.page
	}
	return nil
}

// finish makes a page whole.
func (x *exchange) finish(page *httpcache.Page, body []byte, arrived time.Time) {
	page.Freshness.InitialAge += time.Since(arrived)
	page.Body = body
	page.Header.Set("Content-Length", strconv.Itoa(len(body)))
}
