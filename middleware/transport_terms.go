package middleware

import (
	"net/http"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A trDecision is what is to become of a response.
type trDecision struct {
	storable bool
	private  bool   // it isn't for others who waited for it either
	detail   string // why not
	page     *page  // without its body
}

var setCookies = []string{"Set-Cookie", "Set-Cookie2"}

// decide applies the rules for storing a response.
func (x *trExchange) decide(status int, header http.Header, began, arrived time.Time) trDecision {
	kept := header
	if !x.t.opts.StoreSetCookie {
		kept = header.Clone()
		for _, name := range setCookies {
			delete(kept, name)
		}
	}
	resp := &rfc9111.Response{Status: status, Header: kept, RequestTime: began, ResponseTime: arrived}
	dec := rfc9111.Store(x.asStored(), resp, x.rules)
	names := dec.Vary
	if len(kept["Content-Encoding"]) > 0 && len(x.own().Header["Accept-Encoding"]) > 0 && !slices.Contains(names, "Accept-Encoding") {
		// It should have said so: who didn't ask for an encoding couldn't read it.
		names = append(slices.Clone(names), "Accept-Encoding")
		slices.Sort(names)
	}
	// What is private is for who is known by the key, or it would be for anybody.
	meant := func(a rfc9111.Audience) bool { return a == rfc9111.Anyone || (a == rfc9111.User && x.personal) }
	d := trDecision{
		storable: meant(dec.For), private: !meant(dec.Once), detail: string(dec.Reason),
		page: &page{
			status: status, header: rfc9111.StoredHeader(resp, dec.Control, x.rules), freshness: dec.Freshness,
			vary: names, variant: rfc9111.VariantKey(names, x.own()),
		},
	}
	if d.storable {
		d.detail = ""
	}
	return d
}

// asStored is the request as the rules for storing see it. A HEAD has a key of its
// own, so it is stored as a GET is. In a shared cache all credentials count as
// Authorization does.
func (x *trExchange) asStored() *http.Request {
	own := x.own()
	req := &http.Request{Method: http.MethodGet, Header: own.Header}
	if x.rules.Shared && x.personal && len(own.Header["Authorization"]) == 0 {
		req.Header = own.Header.Clone()
		if req.Header == nil {
			req.Header = http.Header{}
		}
		req.Header.Set("Authorization", "some")
	}
	return req
}

// alwaysValidated reports whether a page is of no use before it was validated. It
// is not worth waiting for then: each request has to ask for itself.
func alwaysValidated(f rfc9111.Freshness) bool {
	return f.NoCache || (f.Lifetime <= f.InitialAge && f.StaleWhileRevalidate == 0)
}

// fits reports whether a response may be kept in a slot, as far as its header tells.
func (x *trExchange) fits(slot trSlot, resp *http.Response, dec trDecision) bool {
	return x.keepable(resp, dec) && slot.ix.covers(dec.page.vary)
}

// keepable reports whether a response may be kept in some slot, as far as its header
// tells.
func (x *trExchange) keepable(resp *http.Response, dec trDecision) bool {
	return dec.storable && !isFailure(resp.StatusCode) && !x.tooLong(resp)
}

// tooLong reports whether a response says that it is too long to be kept.
func (x *trExchange) tooLong(resp *http.Response) bool {
	return resp.ContentLength > int64(x.p.MaxBody) && x.method != http.MethodHead
}

// keep sets the terms on which a page is stored. Its age goes on from now.
func (x *trExchange) keep(f *guard.Fill[*page], p *page, body []byte, trailer http.Header) (*page, error) {
	p.body, p.trailer = body, trailer
	fresh := &p.freshness
	past := max(fresh.StaleWhileRevalidate, fresh.StaleIfError)
	if x.t.opts.Keep != guard.Off && rfc9111.HasValidator(p.header) {
		past = max(past, x.t.opts.Keep)
	}
	f.Private, f.StaleUse = false, guard.ServeStale
	left := fresh.Lifetime - fresh.InitialAge
	switch {
	case alwaysValidated(*fresh):
		// The guard is to give it to everybody at once, for each to validate.
		f.TTL, f.StaleFor = max(past, time.Millisecond), guard.Off
	case fresh.StaleWhileRevalidate > 0:
		f.TTL, f.StaleFor = max(left, time.Millisecond), past
	case past > 0:
		f.TTL, f.StaleFor, f.StaleUse = left, past, guard.OnlyValidate
	default:
		f.TTL, f.StaleFor = left, guard.Off
	}
	return p, nil
}
