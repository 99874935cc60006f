package transport

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/textproto"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// RoundTrip implements [http.RoundTripper]. If the request made the call itself, errors
// are those of the base transport, and otherwise those of [guard.Guard.Begin]. A failure
// of the upstream (429, 5xx) that another request waited for is a response.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil || req.URL.Host == "" {
		return t.opts.Base.RoundTrip(req) // for its error
	}
	p := t.policyFor(req)
	why, detail := passesOn(req)
	custom, cached := customKey(p, req)
	if why == "" && !cached {
		why = rfc9111.FwdBypass
	}
	switch {
	case why == rfc9111.FwdBypass && rfc9111.ParseRequest(req.Header).OnlyIfCached:
		closeBody(req)
		return (&exchange{t: t, req: req, method: req.Method}).gatewayTimeout(), nil
	case why != "":
		return t.pass(req, p, why, detail)
	}
	closeBody(req)
	x := newExchange(t, p, req, custom)
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

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// passesOn returns the reason why a request is not for a cache, or nothing if it is.
func passesOn(req *http.Request) (why rfc9111.Fwd, detail string) {
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != "":
		return rfc9111.FwdMethod, ""
	case misspelled(req.Header):
		return rfc9111.FwdBypass, "field-name"
	case req.Body != nil && req.Body != http.NoBody:
		return rfc9111.FwdBypass, "request-body"
	case httpcache.Upgrades(req.Header):
		return rfc9111.FwdBypass, "upgrade"
	case len(req.Header["If-Match"]) > 0, len(req.Header["If-Unmodified-Since"]) > 0:
		return rfc9111.FwdBypass, "precondition"
	case rfc9111.ParseRequest(req.Header).NoStore:
		return rfc9111.FwdBypass, string(rfc9111.ReasonRequestNoStore)
	}
	return "", ""
}

// misspelled reports whether a field that matters to caches is not spelled in net/http's
// way. Such a field is sent, and the upstream understands it.
func misspelled(h http.Header) bool {
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

// pass makes a call for one request alone.
func (t *Transport) pass(req *http.Request, p *HostPolicy, why rfc9111.Fwd, detail string) (*http.Response, error) {
	began, answered := time.Now(), false
	own := t.post(req, p)
	defer func() {
		if !answered {
			own.release()
		}
	}()
	resp, err := t.send(req.Context(), attempt{p: p, sent: &began}, req)
	if err != nil {
		return nil, err
	}
	t.invalidate(req, p, resp, own.spared())
	answered = true
	return t.passed(req, resp, rfc9111.Status{Fwd: why, Detail: detail, Stored: own.store(req, resp, began)}), nil
}

// passed adds Cache-Status to a response that was passed on.
func (t *Transport) passed(req *http.Request, resp *http.Response, s rfc9111.Status) *http.Response {
	resp.Request = req
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	s.Cache = t.opts.CacheStatus
	s.AppendTo(resp.Header)
	return resp
}

// invalidate deletes the stored responses that a response to an unsafe request makes
// invalid, for the request's credentials: each set of credentials has its own cache. It leaves
// one key.
func (t *Transport) invalidate(req *http.Request, p *HostPolicy, resp *http.Response, except string) {
	urls := rfc9111.Invalidated(req, req.URL.Scheme == "https", resp.StatusCode, resp.Header)
	if len(urls) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), storeTimeout)
	defer cancel()
	for _, u := range urls {
		get := req.WithContext(ctx)
		get.Method, get.URL, get.Body = http.MethodGet, u, nil
		get.URL.User = req.URL.User
		_ = t.forget(get, p, except) // without Redis its entries are out of reach
	}
}

// maxRounds bounds the entries that a request looks at: its own, an index, a variant,
// reloads, and an index that changes meanwhile.
const maxRounds = 6

// roundTrip answers the request.
func (x *exchange) roundTrip() (*http.Response, error) {
	at := slot{key: x.key}
	if x.method == http.MethodHead {
		if resp := x.headOfGet(); resp != nil {
			return resp, nil
		}
	}
	force := x.control.NoCache
	if force || x.control.OnlyIfCached || x.control.MaxStale.Set {
		f, stored, ok := x.peek(at)
		if ok && !force {
			verdict, _ := rfc9111.MayServe(f.page.Freshness, f.age, x.control)
			if verdict != rfc9111.Validate && verdict != rfc9111.GatewayTimeout {
				return x.answer(f, x.hit(f)), nil
			}
		}
		if x.control.OnlyIfCached {
			return x.gatewayTimeout(), nil
		}
		at = stored // so that the variant is fetched anew, and not its index
		if ok && force {
			x.fwd = rfc9111.FwdRequest
		}
	}
	if err := x.pausedApart(); err != nil {
		return x.duringPause(at, err)
	}
	var have *found
	reloads := 0
	for range maxRounds {
		if force {
			reloads++
		}
		r, own, err := x.begin(at, force)
		switch {
		case own != nil:
			return x.follow(own, at, have)
		case err != nil && x.looksAgain(err):
			continue
		case err != nil:
			return x.failed(at, have, err)
		}
		if ix := r.Value.Index; ix != nil {
			at = slot{x.t.keys.variant(x.key, ix, x.varying()), ix}
			x.fwd = rfc9111.FwdVaryMiss
			reloads = 0 // of another slot
			continue
		}
		if r.Value.Header == nil {
			break
		}
		f := foundIn(r)
		// The first reload may have waited for a call from before this request, which
		// validates nothing for it. The calls of a slot come one after the other, so that a
		// second one began later.
		if reloads > 1 {
			return x.answer(f, x.forwarded(f)), nil
		}
		verdict, why := rfc9111.MayServe(f.page.Freshness, f.age, x.control)
		if verdict != rfc9111.Validate {
			return x.answer(f, x.hit(f)), nil
		}
		x.fwd = why
		if httpcache.AlwaysValidated(f.page.Freshness) {
			return x.validate(at, f)
		}
		have, force = f, true
	}
	return x.t.pass(x.req, x.p, rfc9111.FwdMiss, "")
}

// duringPause answers a request whose user the upstream asked for a pause: from a stored page
// if it may, and without a call.
func (x *exchange) duringPause(at slot, err error) (*http.Response, error) {
	f, at, ok := x.peek(at)
	if !ok {
		return x.failed(at, nil, err)
	}
	if verdict, _ := rfc9111.MayServe(f.page.Freshness, f.age, x.control); verdict == rfc9111.Validate {
		return x.failed(at, f, err)
	}
	return x.answer(f, x.hit(f)), nil
}

// looksAgain reports whether the exchange looks again, as the call of another request had no
// answer for it. It does so once.
func (x *exchange) looksAgain(err error) bool {
	unshared := errors.Is(err, httpcache.ErrUnshared)
	if _, paused := guard.PauseOf(err); paused || x.again || !unshared && !errors.Is(err, httpcache.ErrNotWhole) {
		return false
	}
	var remote *guard.RemoteError
	if unshared && errors.As(err, &remote) {
		x.t.notes.Strike(x.key) // the call's process has counted its own
	}
	x.again = true
	return true
}

// begin asks the guard. It returns a page, or the call that this exchange has started.
func (x *exchange) begin(at slot, force bool) (guard.Result[*httpcache.Page], *call, error) {
	x.watch()
	var opts []guard.CallOption
	if force {
		opts = append(opts, guard.MaxAge(0))
	}
	r, turn, err := x.t.guard.Begin(x.ctx, at.key, func(turn *guard.Turn[*httpcache.Page]) { go newCall(x, at, turn).run() }, opts...)
	if err != nil || r.Source != guard.FromNear {
		x.own() // a refresh may be about to begin
	}
	if turn == nil {
		return r, nil, err
	}
	c := newCall(x, at, turn)
	c.here = true
	if !turn.Alone() {
		go c.run()
	}
	return r, c, nil
}

// follow answers the request from its own call.
func (x *exchange) follow(c *call, at slot, have *found) (*http.Response, error) {
	if c.turn.Alone() {
		defer c.turn.Store(nil)
		return x.alone(at)
	}
	r, err := c.wait(x.ctx)
	if err != nil {
		return x.failed(at, have, err)
	}
	x.fwd, x.by304 = r.fwd, r.by304
	switch {
	case r.opening != nil:
		return x.stream(r.opening), nil
	case r.err != nil:
		return x.failed(at, have, r.err)
	}
	return x.answer(r.found, x.forwarded(r.found)), nil
}

// alone makes the client's own call, as the requests for the slot run side by side. If
// its response could be stored, the bypass ends. The response itself is not stored: the
// call had no lease, and so a Delete may have come since it began.
func (x *exchange) alone(at slot) (*http.Response, error) {
	began := time.Now()
	resp, err := x.t.send(x.req.Context(), attempt{p: x.p, sent: &began}, x.req)
	if err != nil {
		return nil, err
	}
	if d := pauseFor(resp, time.Now(), x.t.opts.MaxPause); d > 0 {
		x.pauseApart(resp.StatusCode, d)
	}
	dec := x.decide(resp.StatusCode, resp.Header, began, time.Now())
	x.compareHead(resp)
	// Under a lease, a URL's own slot gets an index if the response varies.
	lift := x.keepable(resp, dec) && (at.ix == nil || at.ix.Covers(dec.page.Vary))
	if lift && time.Since(x.came) < x.t.opts.WaitTimeout { // else it is alone because it waited for too long
		x.t.lift(at.key)
	}
	return x.t.passed(x.req, resp, rfc9111.Status{Fwd: x.fwd, Detail: dec.detail}), nil
}

// headOfGet answers a HEAD from the page that is stored for GET; nil: it can't.
func (x *exchange) headOfGet() *http.Response {
	f, _, ok := x.peek(x.getSlot())
	if !ok {
		return nil
	}
	switch verdict, _ := rfc9111.MayServe(f.page.Freshness, f.age, x.control); verdict {
	case rfc9111.ServeFresh, rfc9111.ServeStale:
		return x.answer(f, x.hit(f))
	}
	return nil
}

// validate asks the upstream about a page that must be validated before each use. Each
// request does so for itself, as the answer to another validates nothing for it.
func (x *exchange) validate(at slot, f *found) (*http.Response, error) {
	if x.control.OnlyIfCached {
		return x.gatewayTimeout(), nil
	}
	c := newCall(x, at, nil)
	c.here = true
	r, err := c.ask(x.ctx, f.page, nil)
	x.fwd = c.fwd
	if err != nil {
		return x.failed(at, f, err)
	}
	if d := pauseFor(r.d.resp, r.arrived, x.t.opts.MaxPause); d > 0 {
		x.pauseApart(r.d.resp.StatusCode, d)
	}
	if r.renewed != nil {
		r.d.discard()
		x.by304 = r.d.resp.Header
		dec := x.decide(r.renewed.Status, r.renewed.Header, r.began, r.arrived)
		if !dec.storable {
			_ = x.t.guard.Delete(x.ctx, at.key)
		} else if !httpcache.AlwaysValidated(dec.page.Freshness) {
			x.t.lift(at.key) // from now on it is worth waiting for
		}
		dec.page.Body, dec.page.Trailer = f.page.Body, f.page.Trailer
		renewed := &found{dec.page, dec.page.Freshness.InitialAge, guard.Fetched, true}
		return x.answer(renewed, x.forwarded(renewed)), nil
	}
	if status := r.d.resp.StatusCode; isFailure(status) && mayServeInstead(f.page, f.age, x.control, &rejection{status: status}) {
		r.d.discard()
		return x.failed(at, f, &rejection{status: status})
	}
	return x.stream(c.replace(r)), nil
}

// failed answers when the guard, or the exchange's own call, had nothing but an error:
// with a stale page if that is allowed, or with the upstream's rejection.
func (x *exchange) failed(at slot, have *found, err error) (*http.Response, error) {
	if x.ctx.Err() != nil {
		return nil, err
	}
	if have == nil {
		have, _, _ = x.peek(at)
	}
	status := rejectedWith(err)
	if have != nil && mayServeInstead(have.page, have.age, x.control, err) {
		return x.answer(have, x.insteadOf(have, status)), nil
	}
	if status != 0 {
		return x.rejected(err, status), nil
	}
	if errors.Is(err, httpcache.ErrUnshared) {
		return x.t.pass(x.req, x.p, x.fwd, "")
	}
	var exhausted *guard.ExhaustedError
	if _, paused := guard.PauseOf(err); paused && errors.As(err, &exhausted) && x.p.MaxBudgetWait > 0 {
		// The pause is for requests that a stale page will do for. This one may wait for
		// the budget by itself.
		return x.t.pass(x.req, x.p, x.fwd, "")
	}
	// The client gets the base's error without the pause that was added for the guard.
	if _, paused := guard.PauseOf(err); paused {
		err = cmp.Or(errors.Unwrap(err), err)
	}
	return nil, err
}
