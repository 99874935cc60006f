package middleware

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/callers"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// failurePause is how long an upstream that fails isn't asked again for what
// can be served stale meanwhile.
const failurePause = time.Second

// fetch is the guard's fetch of a slot by this exchange. It returns when the
// response's body is whole, or at its header if it isn't to be shared.
func (x *trExchange) fetch(slot trSlot) func(context.Context, *guard.Fill[*page]) (*page, error) {
	return func(ctx context.Context, f *guard.Fill[*page]) (*page, error) {
		if f.Private {
			r, err := x.askAlone(ctx)
			if err != nil {
				return nil, err
			}
			x.alone(slot, r)
			return &page{}, nil
		}
		var stale, indexed *page
		if f.Stale != nil && (*f.Stale).ix != nil {
			indexed = *f.Stale
		} else if f.Stale != nil {
			stale = *f.Stale
		}
		c := trCall{callers: callers.Of(ctx)}
		c.deadline, _ = x.ctx.Deadline()
		r, err := x.ask(ctx, stale, c)
		if err != nil {
			return nil, x.pauseAfter(err, stale)
		}
		if r.renewed != nil {
			return x.renew(slot, f, r, stale)
		}
		return x.receive(slot, f, r, stale, indexed)
	}
}

// pauseAfter keeps the fleet from asking again at once while there is something to
// serve instead.
func (x *trExchange) pauseAfter(err error, stale *page) error {
	var exhausted *guard.ExhaustedError
	switch {
	case stale == nil, errors.Is(err, callers.ErrUnwanted):
	case errors.As(err, &exhausted):
		if !stale.freshness.NeverStale {
			return guard.RetryAfter(err, min(exhausted.RetryAfter, x.t.opts.MaxPause))
		}
	case stale.usableOnError():
		return guard.RetryAfter(err, failurePause)
	}
	return err
}

// A trReply is the upstream's answer: its header, and its body on its way.
type trReply struct {
	d              *trDownload
	began, arrived time.Time
	renewed        *page // what the 304 says of the page that was asked about; nil: it is no 304
}

// ask makes the call for all who share it, about a stored page if there is one.
// What only this client wants of it, conditions and ranges, is left out.
func (x *trExchange) ask(ctx context.Context, stale *page, c trCall) (*trReply, error) {
	req := x.own().Clone(ctx)
	if req.Header == nil {
		req.Header = http.Header{}
	}
	rfc9111.RemoveConditions(req.Header)
	asked := stale != nil && rfc9111.SetConditions(req.Header, stale.header)
	if asked {
		x.noteStale()
	}
	c.now = stale != nil && !stale.freshness.NeverStale && !x.control.NoCache // there is something else to serve
	r, err := x.call(ctx, req, c)
	if err != nil || !asked || r.d.resp.StatusCode != http.StatusNotModified {
		return r, err
	}
	if len(rfc9111.Selected(r.d.resp.Header, stale.header)) == 0 {
		r.d.discard() // it speaks of something else
		return x.ask(ctx, nil, c)
	}
	r.renewed = &page{status: stale.status, header: rfc9111.Freshen(stale.header, r.d.resp.Header, x.rules)}
	return r, nil
}

// askAlone makes the call as the client asks for it.
func (x *trExchange) askAlone(ctx context.Context) (*trReply, error) {
	return x.call(ctx, x.own().Clone(ctx), trCall{})
}

// call makes it, with a request of its own.
func (x *trExchange) call(ctx context.Context, req *http.Request, c trCall) (*trReply, error) {
	req.Cancel = nil //nolint:staticcheck // the client's: it is in the context, as far as that is this call's
	// The age of what comes begins when it was asked for. What was waited for before
	// that, for a budget or another attempt, has made nothing older.
	began := time.Now()
	c.p, c.sent = x.p, &began
	d, err := x.t.open(ctx, c, req)
	if err != nil {
		return nil, err
	}
	return &trReply{d: d, began: began, arrived: time.Now()}, nil
}

// noteStale: the call is made as what is stored is stale, unless something better
// is known.
func (x *trExchange) noteStale() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.fwd == rfc9111.FwdURIMiss || x.fwd == rfc9111.FwdVaryMiss {
		x.fwd = rfc9111.FwdStale
	}
}

func (x *trExchange) forwardAs(why rfc9111.Fwd) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fwd = why
}

func (x *trExchange) whyForwarded() rfc9111.Fwd {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.fwd
}

// renew stores a page that a 304 has said is good. A page that may no longer be
// shared in its slot is for this client alone. The mark that says so replaces the
// stored page under the lease, so it leaves a newer one alone.
func (x *trExchange) renew(slot trSlot, f *guard.Fill[*page], r *trReply, stale *page) (*page, error) {
	r.d.discard()
	x.renewed(r.d.resp)
	dec := x.decide(r.renewed.status, r.renewed.header, r.began, r.arrived)
	if dec.storable && slot.ix.covers(dec.page.vary) {
		return x.keep(f, dec.page, stale.body, stale.trailer)
	}
	f.Private = true
	dec.page.body, dec.page.trailer = stale.body, stale.trailer
	return dec.page, nil
}

// receive decides at the header what becomes of a response that others wait for.
func (x *trExchange) receive(slot trSlot, f *guard.Fill[*page], r *trReply, stale, indexed *page) (*page, error) {
	resp := r.d.resp
	x.renewed(nil)
	dec := x.decide(resp.StatusCode, resp.Header, r.began, r.arrived)
	x.compareHead(resp)
	pause := x.t.pauseFor(resp, r.arrived)
	if (isFailure(resp.StatusCode) && (!dec.storable || stale != nil)) || pause > 0 {
		return nil, x.reject(dec, r, stale, pause)
	}
	op := &trOpening{d: r.d, stored: dec.storable, detail: dec.detail, fwd: x.whyForwarded(), began: r.began, arrived: r.arrived}
	if dec.storable && x.tooLong(resp) {
		dec.storable, op.stored, op.detail = false, false, "too-large"
	}
	switch {
	case !dec.storable:
		f.Private = true
		x.offer(op)
		r.d.hand()
		return &page{}, nil
	case !slot.ix.covers(dec.page.vary):
		return x.branch(slot, f, op, dec, indexed)
	}
	x.offer(op)
	return x.record(f, op, dec)
}

// record keeps a response that is on its way.
func (x *trExchange) record(f *guard.Fill[*page], op *trOpening, dec trDecision) (*page, error) {
	d := op.d
	whole, err := d.record(x.p.MaxBody)
	if err != nil {
		return nil, err
	}
	if !whole { // too long, or it took too long
		f.Private = true
		d.hand()
		return &page{}, nil
	}
	dec.page.freshness.InitialAge += time.Since(op.arrived)
	return x.keep(f, dec.page, d.buf[:len(d.buf):len(d.buf)], d.trailer())
}

// alone gives the client a response that nobody waits for. If such may be stored
// after all the requests for it come together again with the next. This one may not:
// its call was made without a lease, so nobody knows what was deleted since.
func (x *trExchange) alone(slot trSlot, r *trReply) {
	resp := r.d.resp
	dec := x.decide(resp.StatusCode, resp.Header, r.began, r.arrived)
	x.compareHead(resp)
	// Under a lease a URL's own slot gets an index if the response varies.
	lift := x.keepable(resp, dec) && (slot.ix == nil || slot.ix.covers(dec.page.vary))
	x.offer(&trOpening{d: r.d, detail: dec.detail, fwd: x.whyForwarded(), began: r.began, arrived: r.arrived})
	r.d.hand()
	if lift && time.Since(x.came) < x.t.opts.WaitTimeout { // else it is alone as it has waited too long
		x.t.lift(slot.key)
	}
}

// lift makes a key's next call one that is made under a lease: it ends a mark, and
// keeps a page for that call to validate. Once in a second does, as it also ends
// such a call.
func (t *Transport) lift(key string) {
	t.mu.Lock()
	now := time.Now()
	if now.Sub(t.lifted[key]) < time.Second {
		t.mu.Unlock()
		return
	}
	if len(t.lifted) >= 1024 {
		clear(t.lifted)
	}
	t.lifted[key] = now
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = t.guard.Expire(ctx, key)
}

// reject turns an answer into an error for those who wait.
func (x *trExchange) reject(dec trDecision, r *trReply, stale *page, pause time.Duration) error {
	resp := r.d.resp
	rej := &trRejection{
		status: resp.StatusCode, header: dec.page.header,
		private: dec.private || (x.rules.Shared && x.personal),
		names:   dec.page.vary, variant: dec.page.variant,
	}
	err := error(rej)
	op := &trOpening{d: r.d, fwd: x.whyForwarded(), began: r.began, arrived: r.arrived}
	switch {
	case pause > 0:
		err = guard.RetryAfter(err, pause)
	case stale != nil && stale.usableOnError():
		err = guard.RetryAfter(err, failurePause)
	}
	if stale == nil || !mayServeInstead(stale, stale.freshness.Lifetime, rfc9111.RequestControl{}, err) {
		x.offer(op) // otherwise the client may have something better
	}
	whole, broken := r.d.record(x.p.MaxBody)
	if !whole || broken != nil {
		x.offer(op)
		r.d.hand()
		rej.private = true
		return err
	}
	rej.body, rej.trailer = r.d.buf, r.d.trailer()
	return err
}

// compareHead: what a HEAD says may show that what is stored for GET is old (RFC
// 9111, 4.3.5).
func (x *trExchange) compareHead(resp *http.Response) {
	if x.method != http.MethodHead || resp.StatusCode != http.StatusOK {
		return
	}
	ctx := context.WithoutCancel(x.ctx)
	found, slot, ok := x.peek(x.getSlot())
	if !ok {
		return
	}
	head := resp.Header
	if slices.Contains(found.page.vary, "Accept-Encoding") && len(x.own().Header["Accept-Encoding"]) == 0 {
		// A base may have asked for an encoding by itself, as net/http's does for GET only.
		head = head.Clone()
		delete(head, "Etag")
		delete(head, "Content-Length")
	}
	if !rfc9111.HeadAgrees(found.page.header, head) {
		_ = x.t.guard.Delete(ctx, slot.key)
	}
}
