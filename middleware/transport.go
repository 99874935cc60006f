package middleware

import (
	"context"
	"errors"
	"net/http"
	"net/textproto"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A Transport is an [http.RoundTripper] that calls an upstream once for a whole
// fleet: identical GET and HEAD requests, in all processes, share a call while it
// is under way, and its response for as long as RFC 9111 allows. It is safe for
// concurrent use, and made once for each kind of upstream.
//
//	t, err := middleware.NewTransport(store, middleware.TransportOptions{})
//	...
//	client := &http.Client{Transport: t}
//
// Nothing else changes for the caller. What is stale is validated with its ETag or
// Last-Modified; a 304 makes it fresh again. A response comes to the request that
// made the call as the upstream sends it, and to those who waited when it is
// whole. Other methods are passed on, and make what they change be forgotten.
// Cache-Status (RFC 9211) says on each response what was done.
//
// # Who shares
//
// Requests share only with those that say the same of who asks: in Authorization,
// cookies, API keys and the like ([TransportOptions.Credentials]), wherever they
// are. In Redis the credentials are part of a keyed digest, never in the clear.
// Each such group has a private cache in the sense of RFC 9111, so that a response
// may be stored which says private, if the request said who asks. A response that
// can't be stored goes to the one who asked, and for two minutes the requests for
// it go side by side. [TransportOptions.Shared] makes it one shared cache.
//
// What is stored is what the upstream sent, without Set-Cookie: who can read Redis
// can read it. Apart from those that say who asks, headers of requests tell them
// apart only as far as Vary names them.
type Transport struct {
	opts  TransportOptions
	guard *guard.Guard[*page]
	keys  *trKeyer

	mu     sync.Mutex
	lifted map[string]time.Time // by key, when lift last did
}

// NewTransport returns a transport on the store. All that is wrong with the
// options is returned, joined. Close the transport before the store.
func NewTransport(store cache.Store, o TransportOptions) (*Transport, error) {
	o = o.withDefaults()
	most, wait := o.MaxBody, o.MaxBudgetWait
	for _, p := range o.Hosts {
		most, wait = max(most, p.MaxBody), max(wait, p.MaxBudgetWait)
	}
	g, err := guard.New[*page](store, o.Name, guard.Policy{
		TTL: trIndexTTL, Bypass: o.Bypass, FetchTimeout: o.FetchTimeout + wait,
		WaitTimeout: o.WaitTimeout + wait, OnWaitTimeout: guard.StaleOrFetch,
		WhenUnavailable: o.WhenUnavailable, MaxUnguarded: o.MaxUnguarded,
		MaxBytes: most + trMaxHeader, Codec: pageCodec{}, Errors: sentinels,
		Near: o.Near, Observer: o.Observer,
	})
	if err := errors.Join(err, o.validate()); err != nil {
		if g != nil {
			_ = g.Close()
		}
		return nil, err
	}
	return &Transport{opts: o, guard: g, keys: newTrKeyer(&o), lifted: map[string]time.Time{}}, nil
}

// trMaxHeader is room for what is stored besides a body.
const trMaxHeader = 1 << 20

// RoundTrip implements [http.RoundTripper]. Errors are those of the base transport
// where the request made the call itself, and otherwise those of
// [guard.Guard.Load]. A failure of the upstream (429, 5xx) that another request
// waited for, or was told of, is a response.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil || req.URL.Host == "" {
		return t.opts.Base.RoundTrip(req) // to say what is wrong with it
	}
	p := t.opts.hostPolicy(trHost(req.URL))
	why, detail := passesOn(req)
	custom, cached := t.customKey(p, req)
	if why == "" && !cached {
		why = rfc9111.FwdBypass
	}
	switch {
	case why == rfc9111.FwdBypass && rfc9111.ParseRequest(req.Header).OnlyIfCached:
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return (&trExchange{t: t, req: req, method: req.Method}).gatewayTimeout(), nil
	case why != "":
		return t.pass(req, p, why, detail)
	}
	if req.Body != nil {
		_ = req.Body.Close()
	}
	x := t.newExchange(p, req, custom)
	var resp *http.Response
	var err error
	if len(req.Header["Range"]) > 0 {
		resp, err = x.ranges()
	} else {
		resp, err = x.roundTrip()
	}
	if !x.streams {
		x.release()
	}
	return resp, err
}

// passesOn says why a request is no business of a cache, if it isn't.
func passesOn(req *http.Request) (why rfc9111.Fwd, detail string) {
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != "":
		return rfc9111.FwdMethod, ""
	case namesOtherwise(req.Header):
		return rfc9111.FwdBypass, "field-name"
	case req.Body != nil && req.Body != http.NoBody:
		return rfc9111.FwdBypass, "request-body"
	case len(req.Header["Upgrade"]) > 0:
		return rfc9111.FwdBypass, "upgrade"
	case len(req.Header["If-Match"]) > 0, len(req.Header["If-Unmodified-Since"]) > 0:
		return rfc9111.FwdBypass, "precondition"
	case rfc9111.ParseRequest(req.Header).NoStore:
		return rfc9111.FwdBypass, string(rfc9111.ReasonRequestNoStore)
	}
	return "", ""
}

// namesOtherwise reports whether a request says something to caches under a name that
// isn't written as net/http writes it. It is sent so, and understood by the upstream.
func namesOtherwise(h http.Header) bool {
	for name := range h {
		plain := textproto.CanonicalMIMEHeaderKey(name)
		if plain == name {
			continue
		}
		switch plain {
		case "Cache-Control", "Pragma", "Range", "Upgrade", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range":
			return true
		}
	}
	return false
}

// customKey is what the policy's Key says; not ok: nothing is to be stored.
func (t *Transport) customKey(p *HostPolicy, req *http.Request) (key string, ok bool) {
	if p.Key == nil {
		return "", true
	}
	key = p.Key(req)
	return key, key != ""
}

// pass makes a call for one request alone.
func (t *Transport) pass(req *http.Request, p *HostPolicy, why rfc9111.Fwd, detail string) (*http.Response, error) {
	resp, err := t.send(req.Context(), trCall{p: p}, req)
	if err != nil {
		return nil, err
	}
	resp.Request = req
	t.invalidate(req, p, resp)
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	rfc9111.Status{Cache: t.opts.CacheStatus, Fwd: why, Detail: detail}.AppendTo(resp.Header)
	return resp, nil
}

// invalidate forgets what a response to an unsafe request makes invalid, among
// what is stored for those credentials: others have caches of their own.
func (t *Transport) invalidate(req *http.Request, p *HostPolicy, resp *http.Response) {
	urls := rfc9111.Invalidated(req, req.URL.Scheme == "https", resp.StatusCode, resp.Header)
	if len(urls) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), 5*time.Second)
	defer cancel()
	for _, u := range urls {
		get := req.WithContext(ctx)
		get.Method, get.URL, get.Body = http.MethodGet, u, nil
		get.URL.User = req.URL.User
		_ = t.forget(get, p) // where Redis is away what was stored is out of reach
	}
}

// Purge forgets what is stored for a GET or HEAD of the request's URL and
// credentials. A call for it that is under way will not be stored. Errors as of
// [guard.Guard.Delete].
func (t *Transport) Purge(req *http.Request) error {
	return t.forget(req, t.opts.hostPolicy(trHost(req.URL)))
}

func (t *Transport) forget(req *http.Request, p *HostPolicy) error {
	var errs []error
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		like := *req
		like.Method = method
		custom, ok := t.customKey(p, &like)
		if !ok {
			continue
		}
		key, _ := t.keys.key(method, &like, custom)
		// With the index the variants are gone.
		errs = append(errs, t.guard.Delete(req.Context(), key))
	}
	return errors.Join(errs...)
}

// CloseIdleConnections is the base transport's, if it has one.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.opts.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Stats is what the guard has done in this process. Of budgets it has nothing but
// Errors.Exhausted: the transport pays for its calls by itself, so ask the budget.
func (t *Transport) Stats() guard.Stats { return t.guard.Stats() }

// Close ends the calls that are shared; those whose response somebody reads are
// left to the reader. Requests made later get [guard.ErrClosed]. The base
// transport stays as it is.
func (t *Transport) Close() error { return t.guard.Close() }
