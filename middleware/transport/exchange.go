package transport

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// An exchange is one request that may be answered from a stored response, and share the
// call that is made for it.
type exchange struct {
	t        *Transport
	p        *HostPolicy
	req      *http.Request // the client's: not changed, and not read after the response (see own)
	method   string
	control  rfc9111.RequestControl
	key      string
	personal bool // the key contains credentials
	came     time.Time
	rules    rfc9111.Options

	ctx       context.Context // ends with the request's, and with its Cancel
	release   func()          // of ctx, when the response is over
	cancelled <-chan struct{} // the request's Cancel
	cancel    context.CancelCauseFunc
	watched   bool

	copying sync.Once
	copied  *http.Request
	unusual bool          // it has headers of which nothing is known, and the policy has a TTL
	variant *http.Request // see varying; nil: not made yet

	// The client's goroutine uses these.
	fwd     rfc9111.Fwd // the reason for a call
	by304   http.Header // of the 304 that answered the exchange's own call; nil: another status did
	streams bool        // the client reads a call's response
	again   bool        // the call of another request had no answer for this one
}

// A slot is a key that a page may have: a request's own, or that of a variant.
type slot struct {
	key string
	ix  *httpcache.Index // nil: the request's own key
}

func newExchange(t *Transport, p *HostPolicy, req *http.Request, custom string) *exchange {
	x := &exchange{
		t: t, p: p, req: req, method: cmp.Or(req.Method, http.MethodGet), control: rfc9111.ParseRequest(req.Header), came: time.Now(),
		rules: rfc9111.Options{
			Shared: t.opts.Shared, AllowSetCookie: t.opts.StoreSetCookie, Heuristic: t.opts.Heuristic,
			Lifetime: p.TTL, StaleWhileRevalidate: p.Stale, StaleIfError: p.StaleIfError,
		},
		fwd: rfc9111.FwdURIMiss, ctx: req.Context(), release: func() {},
	}
	x.unusual = p.TTL > 0 && t.keys.others(req.Header) != ""
	x.key, x.personal = t.keys.key(x.method, req, custom, x.unusual)
	x.cancelled = req.Cancel //nolint:staticcheck // http.Client sets it
	if x.cancelled != nil {
		x.ctx, x.cancel = context.WithCancelCause(x.ctx)
		x.release = func() { x.cancel(context.Canceled) }
	}
	return x
}

// watch ends the exchange's context with the request's Cancel, if it has one.
func (x *exchange) watch() {
	if x.cancelled == nil || x.watched {
		return
	}
	x.watched = true
	go func() { // ends with ctx, which release ends at the latest
		select {
		case <-x.cancelled:
			x.cancel(errCancelled)
		case <-x.ctx.Done():
		}
	}()
}

var errCancelled = fmt.Errorf("transport: the request's Cancel was closed: %w", context.Canceled)

// own is a copy of the request for work that may go on after the client has its response
// and may use its request again. The copy is made before that.
func (x *exchange) own() *http.Request {
	x.copying.Do(func() {
		x.copied = x.req.Clone(x.ctx)
		x.variant = x.copied
		if x.unusual {
			x.variant = &http.Request{Host: x.copied.Host, Header: x.copied.Header.Clone()}
			x.variant.Header[othersName] = []string{x.t.keys.others(x.copied.Header)}
		}
	})
	return x.copied
}

// varying is the request for the digests of variants. It is not changed.
func (x *exchange) varying() *http.Request {
	x.own()
	return x.variant
}

// peek returns the page that is stored for the request, and its slot.
func (x *exchange) peek(at slot) (*found, slot, bool) {
	x.watch()
	for range 2 {
		r, err := x.t.guard.Peek(x.ctx, at.key)
		if err != nil {
			return nil, at, false
		}
		if ix := r.Value.Index; ix != nil && at.ix == nil {
			at = slot{x.t.keys.variant(at.key, ix, x.varying()), ix}
			continue
		}
		if r.Value.Header == nil {
			return nil, at, false
		}
		return foundIn(r), at, true
	}
	return nil, at, false
}

// getSlot is the slot of a GET of the same URL.
func (x *exchange) getSlot() slot {
	custom, _ := customKey(x.p, x.own())
	key, _ := x.t.keys.key(http.MethodGet, x.own(), custom, x.unusual)
	return slot{key: key}
}

// A found is a page as it was found, or fetched.
type found struct {
	page   *httpcache.Page
	age    time.Duration
	source guard.Source
	stored bool
}

func foundIn(r guard.Result[*httpcache.Page]) *found {
	return &found{r.Value, r.Value.Freshness.InitialAge + r.Age, r.Source, r.Source != guard.UnguardedFetch}
}

// compareHead deletes the page of a GET, and a part of it, that the answer to a HEAD shows to be
// outdated (RFC 9111, 4.3.5).
func (x *exchange) compareHead(resp *http.Response) {
	if x.method != http.MethodHead || resp.StatusCode != http.StatusOK {
		return
	}
	for _, at := range []slot{{key: x.partKey()}, x.getSlot()} {
		if f, at, ok := x.peek(at); ok && !x.headAgrees(f, resp.Header) {
			_ = x.t.guard.Delete(context.WithoutCancel(x.ctx), at.key)
		}
	}
}

func (x *exchange) headAgrees(f *found, head http.Header) bool {
	if slices.Contains(f.page.Vary, "Accept-Encoding") && len(x.own().Header["Accept-Encoding"]) == 0 {
		// A base may ask for an encoding by itself, as net/http's does for GET only.
		head = head.Clone()
		delete(head, "Etag")
		delete(head, "Content-Length")
	}
	return rfc9111.HeadAgrees(f.page.Header, head)
}

// A decision is about a response at its header.
type decision struct {
	storable bool
	private  bool            // nor may requests have it that waited for it
	detail   string          // the reason
	page     *httpcache.Page // without its body
}

var setCookies = []string{"Set-Cookie", "Set-Cookie2"}

// decide applies the rules for storing a response.
func (x *exchange) decide(status int, header http.Header, began, arrived time.Time) decision {
	kept := header
	if !x.t.opts.StoreSetCookie {
		kept = header.Clone()
		for _, name := range setCookies {
			delete(kept, name)
		}
	}
	resp := &rfc9111.Response{Status: status, Header: kept, RequestTime: began, ResponseTime: arrived}
	dec := rfc9111.Store(x.asStored(), resp, x.rules)
	x.restrict(&dec, header)
	names := dec.Vary
	if x.unusual && dec.Freshness.Origin == rfc9111.FromOptions {
		names = append(slices.Clone(names), othersName)
		slices.Sort(names)
	}
	if len(kept["Content-Encoding"]) > 0 && len(x.own().Header["Accept-Encoding"]) > 0 && !slices.Contains(names, "Accept-Encoding") {
		// The response should have said so: a client that accepts no encoding can't read it.
		names = append(slices.Clone(names), "Accept-Encoding")
		slices.Sort(names)
	}
	// A private response is for the credentials in the key. Without any, it is for no other request.
	meant := func(a rfc9111.Audience) bool { return a == rfc9111.Anyone || (a == rfc9111.User && x.personal) }
	d := decision{
		storable: meant(dec.For), private: !meant(dec.Once), detail: string(dec.Reason),
		page: &httpcache.Page{
			Status: status, Header: rfc9111.StoredHeader(resp, dec.Control, x.rules), Freshness: dec.Freshness,
			Vary: names, Variant: rfc9111.VariantKey(names, x.varying()),
		},
	}
	if d.storable {
		d.detail = ""
	}
	return d
}

// restrict applies the rules that are stricter than the RFC. In a shared cache a response to
// a request with credentials has to say that it may be shared, and must-revalidate does not
// say so. A response that states no lifetime and begins a session may have a part of the
// session in its body.
func (x *exchange) restrict(d *rfc9111.Decision, header http.Header) {
	shares := x.rules.Shared || !x.personal
	switch {
	case d.For == rfc9111.Nobody:
	case x.rules.Shared && x.personal && !d.Control.SaysShared():
		d.For, d.Once, d.Reason = rfc9111.Nobody, rfc9111.Nobody, rfc9111.ReasonAuthorization
	case shares && !x.t.opts.StoreSetCookie && d.Freshness.Origin == rfc9111.FromOptions && beginsSession(header):
		d.For, d.Once, d.Reason = rfc9111.Nobody, rfc9111.Nobody, rfc9111.ReasonSetCookie
	}
}

// beginsSession reports whether a response sets a cookie that is not one of a load balancer
// or a bot filter, which set theirs on all responses.
func beginsSession(h http.Header) bool {
	for _, name := range setCookies {
		for _, line := range h[name] {
			if !slices.ContainsFunc(balancers, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
				return true
			}
		}
	}
	return false
}

// balancers are prefixes of cookies that load balancers and bot filters set.
var balancers = []string{
	"__cf", "_cf", "cf_", "AWSALB", "AWSELB", "GCLB=", "ARRAffinity", "BIGip", "incap_ses_", "visid_incap_", "nlbi_", "ak_bmsc", "bm_s", "SERVERID=",
}

// asStored is the request for the rules of storing. A HEAD has a key of its own, and so is
// stored like a GET. In a shared cache all credentials count as Authorization.
func (x *exchange) asStored() *http.Request {
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

// keepable reports whether a response may be kept in some slot, by its header.
func (x *exchange) keepable(resp *http.Response, dec decision) bool {
	return dec.storable && !isFailure(resp.StatusCode) && !x.tooLong(resp)
}

// tooLong reports whether a response says that it is too long to be kept.
func (x *exchange) tooLong(resp *http.Response) bool {
	return resp.ContentLength > int64(x.p.MaxBody) && x.method != http.MethodHead
}
