package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A trExchange is one request that may be answered from what is stored, and share
// the call that is made for it.
type trExchange struct {
	t        *Transport
	p        *HostPolicy
	req      *http.Request // the client's; never changed, and not read once it has its response: see own
	method   string
	ctx      context.Context
	release  func() // of ctx, when the response is over
	control  rfc9111.RequestControl
	key      string
	personal bool // the key says who asks
	came     time.Time
	rules    rfc9111.Options

	copying sync.Once
	copied  *http.Request

	cancelled <-chan struct{} // the request's Cancel
	cancel    context.CancelCauseFunc
	watched   sync.Once

	fwd rfc9111.Fwd // why a call is made, if one is

	streams bool // the client is given a response that is on its way

	opened chan *trOpening // the response that the client is to read
	mu     sync.Mutex
	closed bool           // opened has had one, or the client has something else
	by304  *http.Response // the last fetch of this exchange was answered by it; nil: by another status
}

// A trOpening is a response whose header has come, and whose body is on its way.
type trOpening struct {
	d              *trDownload
	body           *trBody
	stored         bool // it will be, if it is whole
	detail         string
	from           http.Response // what the upstream said at the header
	fwd            rfc9111.Fwd
	began, arrived time.Time
}

// A trSlot is a key under which a page may be: a request's own, or that of a variant
// in the index that is there.
type trSlot struct {
	key string
	ix  *index // nil: the request's own
}

func (t *Transport) newExchange(p *HostPolicy, req *http.Request, custom string) *trExchange {
	x := &trExchange{
		t: t, p: p, req: req, method: cmp.Or(req.Method, http.MethodGet), control: rfc9111.ParseRequest(req.Header), came: time.Now(),
		rules: rfc9111.Options{
			Shared: t.opts.Shared, AllowSetCookie: t.opts.StoreSetCookie, Heuristic: t.opts.Heuristic,
			Lifetime: p.TTL, StaleWhileRevalidate: p.Stale, StaleIfError: p.StaleIfError,
		},
		fwd: rfc9111.FwdURIMiss, opened: make(chan *trOpening, 1),
	}
	x.key, x.personal = t.keys.key(x.method, req, custom)
	x.heedCancel()
	return x
}

// heedCancel gives the exchange a context that the request's Cancel can end, if it
// has one. That is how an http.Client ends what takes longer than its Timeout.
func (x *trExchange) heedCancel() {
	x.ctx, x.release = x.req.Context(), func() {}
	x.cancelled = x.req.Cancel //nolint:staticcheck // http.Client sets it
	if x.cancelled == nil {
		return
	}
	x.ctx, x.cancel = context.WithCancelCause(x.ctx)
	x.release = func() { x.cancel(context.Canceled) }
}

// watch sees to it that Cancel does end the context, from now on. load does that by
// itself: what is answered from there needs no goroutine for it.
func (x *trExchange) watch() {
	if x.cancelled == nil {
		return
	}
	x.watched.Do(func() {
		go func() {
			select {
			case <-x.cancelled:
				x.cancel(errCancelled)
			case <-x.ctx.Done():
			}
		}()
	})
}

var errCancelled = fmt.Errorf("middleware: the request's Cancel was closed: %w", context.Canceled)

// own is a copy of the request, for all that may go on when the client has its
// response, and with that the right to use its request again. Whoever starts such a
// thing sees to it that there is one before the client returns. A hit that starts
// nothing needs none.
func (x *trExchange) own() *http.Request {
	x.copying.Do(func() { x.copied = x.req.Clone(x.ctx) })
	return x.copied
}

// roundTrip answers the request.
func (x *trExchange) roundTrip() (*http.Response, error) {
	defer x.leave()
	slot := trSlot{key: x.key}
	if x.method == http.MethodHead {
		if resp := x.headOfGet(); resp != nil {
			return resp, nil
		}
	}
	force := x.control.NoCache
	if force || x.control.OnlyIfCached || x.control.MaxStale.Set {
		found, at, ok := x.peek(slot)
		if ok && !force {
			verdict, _ := rfc9111.MayServe(found.page.freshness, found.age, x.control)
			if verdict != rfc9111.Validate && verdict != rfc9111.GatewayTimeout {
				return x.answer(found.page, found.age, x.hit(found)), nil
			}
		}
		if x.control.OnlyIfCached {
			return x.gatewayTimeout(), nil
		}
		slot = at // so that what is reloaded is the variant, not its index
		if ok && force {
			x.forwardAs(rfc9111.FwdRequest)
		}
	}
	var have *trFound
	reloads := 0
	for range 6 { // own, index, variant, reloads; and an index that changes meanwhile
		if force {
			reloads++
		}
		op, r, err := x.load(slot, force)
		switch {
		case op != nil:
			return x.stream(op), nil
		case err != nil:
			return x.failed(slot, have, err)
		}
		if ix := r.Value.ix; ix != nil {
			slot = trSlot{key: x.t.keys.variant(x.key, ix, x.req), ix: ix}
			x.forwardAs(rfc9111.FwdVaryMiss)
			reloads = 0 // of another slot
			continue
		}
		if r.Value.header == nil {
			break // a private one whose client isn't this
		}
		found := &trFound{page: r.Value, age: r.Value.freshness.InitialAge + r.Age, source: r.Source}
		// The first reload may have waited for a call that began before this request
		// came, which validates nothing for it. What a second one waits for began
		// later, as a slot's calls come one after the other.
		if r.Source == guard.Fetched || reloads > 1 {
			return x.answer(found.page, found.age, x.forwarded(found)), nil
		}
		verdict, why := rfc9111.MayServe(found.page.freshness, found.age, x.control)
		if verdict != rfc9111.Validate {
			return x.answer(found.page, found.age, x.hit(found)), nil
		}
		x.forwardAs(why)
		if alwaysValidated(found.page.freshness) {
			return x.validate(slot, found)
		}
		have, force = found, true
	}
	return x.t.pass(x.req, x.p, rfc9111.FwdMiss, "")
}

// A trFound is a page as it was found, or fetched.
type trFound struct {
	page   *page
	age    time.Duration
	source guard.Source
}

// load asks the guard, and returns what it says, or the response that this
// exchange's own call is answered with, as soon as that has begun.
func (x *trExchange) load(slot trSlot, force bool) (*trOpening, guard.Result[*page], error) {
	type loaded struct {
		r   guard.Result[*page]
		err error
	}
	done := make(chan loaded, 1)
	var opts []guard.CallOption
	if force {
		opts = append(opts, guard.MaxAge(0))
	}
	ctx := x.ctx
	go func() {
		r, err := x.t.guard.Load(ctx, slot.key, x.fetch(slot), opts...)
		done <- loaded{r, err}
	}()
	cancelled := x.cancelled
	for {
		select {
		case <-cancelled:
			cancelled = nil
			x.cancel(errCancelled) // and so done is near
		case op := <-x.opened:
			return op, guard.Result[*page]{}, nil
		case l := <-done:
			if l.err != nil || l.r.Source != guard.FromNear {
				x.own() // a fetch of this exchange may be under way, or be about to be
			}
			if l.err != nil || l.r.Source == guard.Fetched || l.r.Source == guard.UnguardedFetch {
				select { // both may be there: a short body ends at once
				case op := <-x.opened:
					return op, l.r, nil
				default:
				}
			}
			return nil, l.r, l.err
		}
	}
}

// offer gives the client a response to read along, unless it has one, or is gone.
func (x *trExchange) offer(op *trOpening) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return
	}
	x.closed = true
	op.from = *op.d.resp // before anybody reads on, which adds trailers
	op.from.Trailer = op.from.Trailer.Clone()
	op.body = op.d.attach(x.ctx)
	x.opened <- op
}

// leave: whatever is opened from now on isn't for the client.
func (x *trExchange) leave() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	select {
	case op := <-x.opened:
		_ = op.body.Close()
	default:
	}
}

// renewed notes the 304 that a fetch was answered by, or nil.
func (x *trExchange) renewed(by304 *http.Response) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.by304 = by304
}

// validation is the header of the 304 that the last fetch of this exchange was answered
// by, if it was.
func (x *trExchange) validation() (h http.Header, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by304 == nil {
		return nil, false
	}
	return x.by304.Header, true
}

// peek is what is stored for the request, and where that is or would be.
func (x *trExchange) peek(slot trSlot) (*trFound, trSlot, bool) {
	x.watch()
	for range 2 {
		r, err := x.t.guard.Peek(x.ctx, slot.key)
		if err != nil {
			return nil, slot, false
		}
		if ix := r.Value.ix; ix != nil && slot.ix == nil {
			slot = trSlot{key: x.t.keys.variant(slot.key, ix, x.own()), ix: ix}
			continue
		}
		if r.Value.header == nil {
			return nil, slot, false
		}
		return &trFound{page: r.Value, age: r.Value.freshness.InitialAge + r.Age, source: r.Source}, slot, true
	}
	return nil, slot, false
}

// headOfGet answers a HEAD from what is stored for GET, if that may be.
func (x *trExchange) headOfGet() *http.Response {
	found, _, ok := x.peek(x.getSlot())
	if !ok {
		return nil
	}
	switch verdict, _ := rfc9111.MayServe(found.page.freshness, found.age, x.control); verdict {
	case rfc9111.ServeFresh, rfc9111.ServeStale:
		return x.answer(found.page, found.age, x.hit(found))
	}
	return nil
}

// getSlot is where a GET of the same URL is.
func (x *trExchange) getSlot() trSlot {
	custom, _ := x.t.customKey(x.p, x.own())
	key, _ := x.t.keys.key(http.MethodGet, x.own(), custom)
	return trSlot{key: key}
}

// failed answers when the guard had nothing but an error: with something stale, if
// that may be, or the upstream's own words, if there are any.
func (x *trExchange) failed(slot trSlot, have *trFound, err error) (*http.Response, error) {
	if x.ctx.Err() != nil {
		return nil, err
	}
	if have == nil {
		have, _, _ = x.peek(slot)
	}
	if have != nil && mayServeInstead(have.page, have.age, x.control, err) {
		s := x.status(rfc9111.Status{Fwd: rfc9111.FwdStale, FwdStatus: rejectedWith(err), Detail: "stale-if-error"})
		s.TTL = rfc9111.Seconds{Set: true, Value: have.page.freshness.Left(have.age)}
		return x.answer(have.page, have.age, s), nil
	}
	if status := rejectedWith(err); status != 0 {
		return x.rejection(err, status), nil
	}
	var exhausted *guard.ExhaustedError
	if _, paused := guard.PauseOf(err); paused && errors.As(err, &exhausted) && x.p.MaxBudgetWait > 0 {
		// Those for whom something stale will do have had the URL left alone. This
		// request may wait, by itself.
		return x.t.pass(x.req, x.p, x.whyForwarded(), "")
	}
	// What the base returned is the caller's as it was, without the pause that the
	// guard was asked for.
	var pause *guard.RetryAfterError
	if errors.As(err, &pause) {
		err = pause.Err
	}
	return nil, err
}

// validate asks the upstream about a page that has to be validated before each
// use: by itself, as another request's answer is no validation of this one's.
func (x *trExchange) validate(slot trSlot, found *trFound) (*http.Response, error) {
	if x.control.OnlyIfCached {
		return x.gatewayTimeout(), nil
	}
	x.watch()
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel() // what is opened is handed, or adopted, by then
	r, err := x.ask(ctx, found.page, trCall{})
	if err != nil {
		return x.failed(slot, found, err)
	}
	if r.renewed != nil {
		r.d.discard()
		x.renewed(r.d.resp)
		dec := x.decide(r.renewed.status, r.renewed.header, r.began, r.arrived)
		if !dec.storable {
			_ = x.t.guard.Delete(ctx, slot.key)
		} else if !alwaysValidated(dec.page.freshness) {
			x.t.lift(slot.key) // from now on it is worth waiting for
		}
		dec.page.body, dec.page.trailer = found.page.body, found.page.trailer
		renewed := &trFound{page: dec.page, age: dec.page.freshness.InitialAge, source: guard.Fetched}
		return x.answer(renewed.page, renewed.age, x.forwarded(renewed)), nil
	}
	if status := r.d.resp.StatusCode; isFailure(status) && mayServeInstead(found.page, found.age, x.control, &trRejection{status: status}) {
		r.d.discard()
		return x.failed(slot, found, &trRejection{status: status})
	}
	x.replace(slot, r)
	select {
	case op := <-x.opened:
		return x.stream(op), nil
	default:
		return nil, guard.ErrClosed // can't be: replace offers one
	}
}

// replace gives the client a response that was called for to validate a page, and
// stores it in the page's place if it has to be validated as well. If not, a call
// under a lease is to bring what will be used without asking.
func (x *trExchange) replace(slot trSlot, r *trReply) {
	resp := r.d.resp
	dec := x.decide(resp.StatusCode, resp.Header, r.began, r.arrived)
	x.compareHead(resp)
	fits := x.fits(slot, resp, dec)
	op := &trOpening{d: r.d, detail: dec.detail, fwd: x.whyForwarded(), began: r.began, arrived: r.arrived}
	op.stored = fits && alwaysValidated(dec.page.freshness)
	x.offer(op)
	switch {
	case op.stored:
		x.adoptDownload(slot, op, dec)
		return
	case fits:
		x.t.lift(slot.key)
	}
	r.d.hand()
}
