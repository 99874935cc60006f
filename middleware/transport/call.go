package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A call is one call of the upstream, made under a turn for all requests that wait for
// it. Its goroutine owns the turn, and ends when the response is recorded or its client
// has read it. The client waits for a reply and then reads along.
type call struct {
	x    *exchange // that started it
	slot slot
	turn *guard.Turn[*httpcache.Page] // nil: the call is for its client alone
	fwd  rfc9111.Fwd                  // the reason for it

	began time.Time

	replies chan reply // to the client; holds one

	mu      sync.Mutex
	here    bool // the client waits, or reads
	replied bool
	up      func(error) // ends the call of the upstream before its header has come
	d       *download   // nil: the header has not come
}

// A reply is the answer for a call's client: one of opening, found and err.
type reply struct {
	opening *opening
	found   *found
	err     error

	fwd   rfc9111.Fwd
	by304 http.Header // of the 304 that answered the call; nil: another status did
}

// An opening is a response with its header here and its body on its way.
type opening struct {
	d              *download
	body           *body
	stored         bool // it will be, if it is whole
	detail         string
	from           http.Response // the upstream's, at its header
	fwd            rfc9111.Fwd
	began, arrived time.Time
}

// failurePause is the pause after a failure while a stale response can be served.
const failurePause = time.Second

func newCall(x *exchange, at slot, turn *guard.Turn[*httpcache.Page]) *call {
	return &call{x: x, slot: at, turn: turn, fwd: x.fwd, began: time.Now(), replies: make(chan reply, 1)}
}

// wait returns the reply, or the cause of the end of the client's context or of the turn.
func (c *call) wait(ctx context.Context) (reply, error) {
	over := c.turn.Context().Done()
	for {
		select {
		case r := <-c.replies:
			return r, nil
		case <-ctx.Done():
			c.leave()
			return reply{}, context.Cause(ctx)
		case <-over:
			over = nil // the reply is about to come, unless the base does not heed its context
			if err := c.outcome(); err != nil {
				c.leave()
				return reply{}, err
			}
		}
	}
}

// outcome is the reason why the turn ended before its time: FetchTimeout or Close. It is
// nil for a lost lease, which costs the client nothing.
func (c *call) outcome() error {
	err := context.Cause(c.turn.Context())
	if errors.Is(err, guard.ErrFetchTimeout) || errors.Is(err, guard.ErrClosed) {
		return err
	}
	return nil
}

// leave is called when the client does not wait for a reply any more.
func (c *call) leave() {
	c.mu.Lock()
	c.here = false
	up, d := c.up, c.d
	c.mu.Unlock()
	switch {
	case d != nil:
		d.detach()
	case up != nil && c.turn.Context().Err() != nil:
		up(context.Canceled)
	}
}

// clientHere reports whether the client waits for the call.
func (c *call) clientHere() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.here
}

// isRefresh, deadline and whileWanted make the call's requests [waiters].
func (c *call) isRefresh() bool { return c.turn.Background() }

func (c *call) deadline() (time.Time, bool) {
	if !c.clientHere() || c.turn.Wanted() {
		return time.Time{}, false
	}
	return c.x.ctx.Deadline()
}

func (c *call) whileWanted(ctx context.Context) (context.Context, func()) {
	return c.turn.WhileWanted(ctx, c.clientHere)
}

// tell replies to the client, if it waits and has no reply.
func (c *call) tell(r reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.here || c.replied {
		return
	}
	c.replied = true
	r.fwd = c.fwd
	if op := r.opening; op != nil {
		op.fwd, op.from = c.fwd, *op.d.resp // a copy, as the end of the body adds trailers
		op.from.Trailer = op.from.Trailer.Clone()
		op.body = newBody(op.d, c.x.ctx)
	} else if c.d != nil {
		c.d.detach()
	}
	c.replies <- r
}

// offer lets the client read a response along.
func (c *call) offer(op *opening) { c.tell(reply{opening: op}) }

// run makes the call and ends the turn. It returns when the response is recorded, or
// when no client reads it any more.
func (c *call) run() {
	returned := false
	defer func() {
		if returned {
			return
		}
		err := error(guard.ErrGoexit)
		if p := recover(); p != nil {
			err = &guard.PanicError{Value: p, Stack: debug.Stack()}
		}
		c.fail(err)
	}()
	c.make()
	returned = true
}

func (c *call) fail(err error) {
	c.turn.Fail(err)
	c.tell(reply{err: err})
}

func (c *call) make() {
	var stale, indexed *httpcache.Page
	if s := c.turn.Fill.Stale; s != nil && (*s).Index != nil {
		indexed = *s
	} else if s != nil {
		stale = *s
	}
	var rest *part
	if c.turn.Fill.Stale == nil {
		rest = c.x.completable()
	}
	r, err := c.ask(c.turn.Context(), stale, rest)
	switch {
	case errors.Is(err, errDeserted):
		c.turn.Release()
	case err != nil && c.outcome() != nil:
		c.fail(c.outcome())
	case err != nil:
		c.fail(c.pauseAfter(err, stale))
	case r.renewed != nil:
		c.renew(r, stale)
	default:
		c.receive(r, stale, indexed)
	}
}

// pauseAfter adds a pause to an error if a stale response can be served meanwhile.
func (c *call) pauseAfter(err error, stale *httpcache.Page) error {
	var exhausted *guard.ExhaustedError
	switch {
	case stale == nil:
	case errors.As(err, &exhausted):
		if !stale.Freshness.NeverStale {
			return guard.RetryAfter(err, min(exhausted.RetryAfter, c.x.t.opts.MaxPause))
		}
	case stale.UsableOnError():
		return guard.RetryAfter(err, failurePause)
	}
	return err
}

// A response is the upstream's answer: its header, and its body on its way.
type response struct {
	d              *download
	began, arrived time.Time
	renewed        *httpcache.Page // the page that a 304 renews; nil: the status is another
}

// ask makes the call for all requests that share it, about a stored page if there is one, or
// for the rest of a part. The client's own conditions and ranges are left out.
func (c *call) ask(ctx context.Context, stale *httpcache.Page, have *part) (*response, error) {
	x := c.x
	req := x.own().Clone(ctx)
	if req.Header == nil {
		req.Header = http.Header{}
	}
	rfc9111.RemoveConditions(req.Header)
	asked := stale != nil && rfc9111.SetConditions(req.Header, stale.Header)
	missed := c.fwd
	switch {
	case missed != rfc9111.FwdURIMiss && missed != rfc9111.FwdVaryMiss:
	case asked:
		c.fwd = rfc9111.FwdStale
	case have != nil:
		c.fwd = rfc9111.FwdPartial
	}
	if have != nil {
		rest, _ := have.is.Rest()
		rfc9111.AskForRest(req.Header, rest, have.page.Header)
	}
	req.Cancel = nil //nolint:staticcheck // it is in the client's context
	// The response's age begins when the last attempt was sent, not with the wait for a
	// budget or the attempts before.
	began := time.Now()
	// A stale response can be served instead of waiting for a budget.
	now := stale != nil && !stale.Freshness.NeverStale && !x.control.NoCache
	d, err := c.open(ctx, attempt{p: x.p, now: now, sent: &began}, req, have)
	if errors.Is(err, errNotTheRest) {
		x.forgetPart()
		c.fwd = missed
		return c.ask(ctx, stale, nil)
	}
	if err != nil {
		return nil, err
	}
	if have != nil && d.resp.StatusCode == http.StatusOK && !rfc9111.Combines(d.resp.Header, have.page.Header) {
		x.forgetPart() // it is outdated
	}
	r := &response{d: d, began: began, arrived: time.Now()}
	if !asked || d.resp.StatusCode != http.StatusNotModified {
		return r, nil
	}
	if len(rfc9111.Selected(d.resp.Header, stale.Header)) == 0 {
		d.discard() // it is about another response
		return c.ask(ctx, nil, nil)
	}
	r.renewed = &httpcache.Page{Status: stale.Status, Header: rfc9111.Freshen(stale.Header, d.resp.Header, x.rules)}
	return r, nil
}

// open makes the call and returns its response when the header has come. The call ends
// with ctx; but if ctx is a turn's, and ended because the lease is lost, not before the
// client leaves. The response to a request for the rest of a part is completed.
func (c *call) open(ctx context.Context, a attempt, req *http.Request, have *part) (*download, error) {
	up, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	pays := up
	if c.turn != nil {
		a.waiters = c
	} else {
		pays = ctx // its deadline bounds the wait for a budget
	}
	c.mu.Lock()
	c.up = cancel
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		if c.turn == nil || c.outcome() != nil || !c.clientHere() {
			cancel(context.Cause(ctx))
		}
	})
	resp, err := c.x.t.send(pays, a, req.WithContext(up)) //nolint:bodyclose // the download closes it
	stop()
	if err == nil && have != nil {
		if resp, err = have.complete(resp, c.x.forgetPart); err != nil {
			discard(resp)
		}
	}
	if err != nil {
		cancel(err)
		return nil, err
	}
	c.mu.Lock()
	c.d = newDownload(resp, req.Method, c.x.p.MaxBody, cancel, c.here)
	c.mu.Unlock()
	c.d.tie(ctx)
	return c.d, nil
}

// renew stores a page again that a 304 has validated. A page that may not be shared in
// its slot any more is for this client alone.
func (c *call) renew(r *response, stale *httpcache.Page) {
	x := c.x
	r.d.discard()
	dec := x.decide(r.renewed.Status, r.renewed.Header, r.began, r.arrived)
	page := dec.page
	page.Body, page.Trailer = stale.Body, stale.Trailer
	if dec.storable && c.slot.ix.Covers(page.Vary) {
		x.t.terms.Set(c.turn.Fill, page)
	} else {
		c.turn.Fill.Private = true
	}
	stored := c.turn.Store(page)
	c.tell(reply{found: &found{page, page.Freshness.InitialAge, guard.Fetched, stored}, by304: r.d.resp.Header})
}

// receive decides at the header about a response that others wait for.
func (c *call) receive(r *response, stale, indexed *httpcache.Page) {
	x, resp := c.x, r.d.resp
	dec := x.decide(resp.StatusCode, resp.Header, r.began, r.arrived)
	x.compareHead(resp)
	pause := pauseFor(resp, r.arrived, x.t.opts.MaxPause)
	if (isFailure(resp.StatusCode) && (!dec.storable || stale != nil)) || pause > 0 {
		c.reject(dec, r, stale, pause)
		return
	}
	op := &opening{d: r.d, stored: dec.storable, detail: dec.detail, began: r.began, arrived: r.arrived}
	if dec.storable && x.tooLong(resp) {
		dec.storable, op.stored, op.detail = false, false, "too-large"
	}
	switch {
	case !dec.storable:
		c.offer(op)
		c.yield(op, stale)
	case c.slot.ix.Covers(dec.page.Vary):
		c.offer(op)
		c.record(c.turn, op, dec)
	default:
		c.branch(op, dec, indexed)
	}
}

// yield ends the turn of a response that is for the call's client alone. It may be about the
// client's request more than about the page, and then takes no stored page from other
// requests, nor their sharing of calls.
func (c *call) yield(op *opening, stale *httpcache.Page) {
	x, status := c.x, op.d.resp.StatusCode
	about := status >= 200 && status < 300 || status == http.StatusNotFound || status == http.StatusGone
	usable := stale != nil && stale.UsableAt(stale.Freshness.InitialAge+c.turn.StaleAge())
	spared := usable && !about
	if !spared && (usable || x.t.notes.Get(c.slot.key).Trusted) {
		before := x.t.notes.Strike(c.slot.key)
		spared = before.Strikes == 0 // the next one tells
	}
	if !spared {
		c.giveAway(c.turn, op.d)
		return
	}
	pause := time.Duration(0)
	if c.turn.Background() {
		pause = failurePause
	}
	c.turn.Fail(guard.RetryAfter(httpcache.ErrUnshared, pause))
	op.d.pump()
}

// giveAway ends the turn of a response for the call's client alone. The client reads it at
// its own pace.
func (c *call) giveAway(turn *guard.Turn[*httpcache.Page], d *download) {
	turn.Fill.Private = true
	turn.Store(nil)
	d.pump()
}

// record stores a response under a turn when its body is whole.
func (c *call) record(turn *guard.Turn[*httpcache.Page], op *opening, dec decision) {
	var over atomic.Bool
	inTime := httpcache.AfterFunc(time.Until(c.began.Add(c.x.t.fetchTimeout)), turn, func(turn *guard.Turn[*httpcache.Page]) {
		// The next herd would wait in vain for such a body as well.
		if over.CompareAndSwap(false, true) {
			turn.Fill.Private = true
			turn.Store(nil)
		}
	})
	defer inTime()
	body, err := op.d.record()
	switch {
	case !over.CompareAndSwap(false, true):
		if errors.Is(err, httpcache.ErrTooLong) {
			op.d.pump()
		}
	case errors.Is(err, httpcache.ErrTooLong):
		c.giveAway(turn, op.d)
	case err != nil:
		turn.Fail(fmt.Errorf("%w: %w", httpcache.ErrNotWhole, err))
	default:
		c.x.t.notes.Trust(c.slot.key)
		page := dec.page
		page.Freshness.InitialAge += time.Since(op.arrived)
		page.Body, page.Trailer = body, op.d.trailer()
		c.x.t.terms.Set(turn.Fill, page)
		turn.Store(page)
	}
}

// branch stores a response that varies on names that its slot does not cover. The page's
// own key gets an index, and the variant's key the response.
//
// Only a turn of the page's own key changes an index, and the calls for the variants of a
// new one began under that turn: a Delete of the index keeps them out of reach.
func (c *call) branch(op *opening, dec decision, indexed *httpcache.Page) {
	x := c.x
	ix := &httpcache.Index{Gen: c.turn.Fill.IdempotencyKey, Names: dec.page.Vary}
	known := c.slot.ix
	if indexed != nil {
		known = indexed.Index
	}
	if known.Covers(dec.page.Vary) {
		ix = known // its variants stay reachable
	} else if known != nil {
		ix.Names = known.With(dec.page.Vary)
	}
	var under *guard.Turn[*httpcache.Page] // of the variant
	if c.slot.ix != nil {
		// The turn is that of an old variant, and so only the client gets the response.
		if page := c.turn.Also(x.key, guard.MaxAge(0)); page != nil {
			storeIndex(page, ix)
		}
	} else {
		under = c.turn.Also(x.t.keys.variant(x.key, ix, x.varying()), guard.MaxAge(0))
	}
	if under == nil {
		op.stored, op.detail = false, "vary"
	} else {
		op.d.tie(under.Context())
	}
	c.offer(op)
	switch {
	case c.slot.ix != nil:
		c.giveAway(c.turn, op.d)
	case under == nil:
		op.d.untieNow()
		storeIndex(c.turn, ix)
		op.d.pump()
	default:
		storeIndex(c.turn, ix)
		c.record(under, op, dec)
	}
}

func storeIndex(turn *guard.Turn[*httpcache.Page], ix *httpcache.Index) {
	f := turn.Fill
	f.TTL, f.StaleFor, f.StaleUse = indexTTL, indexTTL, guard.OnlyValidate
	turn.Store(&httpcache.Page{Index: ix})
}

// reject ends the turn with an error for an answer that is a failure.
func (c *call) reject(dec decision, r *response, stale *httpcache.Page, pause time.Duration) {
	x := c.x
	rej := &rejection{
		status: r.d.resp.StatusCode, header: dec.page.Header,
		private: dec.private || (x.rules.Shared && x.personal),
		names:   dec.page.Vary, variant: dec.page.Variant,
	}
	err := error(rej)
	switch {
	case pause > 0 && x.pauseApart(rej.status, pause):
		err = guard.RetryAfter(httpcache.ErrUnshared, 0)
	case pause > 0:
		err = guard.RetryAfter(err, pause)
	case stale != nil && stale.UsableOnError():
		err = guard.RetryAfter(err, failurePause)
	}
	op := &opening{d: r.d, began: r.began, arrived: r.arrived}
	instead := stale != nil && mayServeInstead(stale, stale.Freshness.Lifetime, rfc9111.RequestControl{}, err)
	if instead { // the stale page may answer the client, and does not wait for a slow body
		defer time.AfterFunc(drainWithin, func() { r.d.drop(context.Canceled) }).Stop()
	} else {
		c.offer(op)
	}
	body, broken := r.d.record()
	switch {
	case broken == nil:
		rej.body, rej.trailer = body, r.d.trailer()
		c.fail(err)
		return
	case instead:
		rej.private = true
		c.fail(err)
	default:
		rej.private = true
		c.turn.Fail(err)
	}
	r.d.pump()
}

// replace gives the client the response to a validation of its own. A response that is never
// used without a validation takes the place of the page. Its call had no lease, and a Delete may
// have come since, but the upstream confirms each use. Any other response is to be fetched for
// all by a call under a lease.
func (c *call) replace(r *response) *opening {
	x, resp := c.x, r.d.resp
	dec := x.decide(resp.StatusCode, resp.Header, r.began, r.arrived)
	x.compareHead(resp)
	op := &opening{d: r.d, detail: dec.detail, began: r.began, arrived: r.arrived}
	fits := x.keepable(resp, dec) && c.slot.ix.Covers(dec.page.Vary)
	var turn *guard.Turn[*httpcache.Page]
	switch {
	case fits && dec.page.Freshness.NeverStale && httpcache.AlwaysValidated(dec.page.Freshness):
		ctx, cancel := context.WithTimeout(x.ctx, adoptWithin)
		_, turn, _ = x.t.guard.Begin(ctx, c.slot.key, nil, guard.MaxAge(0))
		cancel()
	case fits:
		x.t.lift(c.slot.key)
	}
	if turn != nil && turn.Alone() {
		turn.Store(nil)
		turn = nil
	}
	op.stored = turn != nil
	c.offer(op)
	op.d.untieNow()
	if turn == nil {
		go op.d.pump()
		return op
	}
	op.d.tie(turn.Context())
	go c.record(turn, op, dec)
	return op
}

// adoptWithin bounds the wait for the turn of a response that has come without one.
const adoptWithin = 100 * time.Millisecond
