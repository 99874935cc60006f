package guard

import (
	"context"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A Turn is the right to fetch one key, for a caller that fetches in steps of its own
// instead of in a function: one that streams a response, for example. [Guard.Begin] returns
// it. It ends with the first call of Store, Fail or Release, at [Policy.FetchTimeout],
// or with [Guard.Close]; until then the other callers of the key wait, in the whole
// fleet. It is safe for concurrent use.
type Turn[V any] struct {
	// Fill tells the caller about the key, and takes the terms of its value until Store. It
	// belongs to the caller.
	Fill *Fill[V]

	t *openTurn
}

// Context has the values of the context given to Begin and not its cancellation, unless the
// turn is for its caller alone. It ends with the turn, or when no caller can use the result
// any more.
func (t *Turn[V]) Context() context.Context { return t.t.ctx }

// Alone reports whether the value is for this caller only: the key's values are
// private, and its other callers have turns of their own.
func (t *Turn[V]) Alone() bool { return t.t.turn == nil }

// Background reports whether the turn refreshes a value that is served meanwhile.
func (t *Turn[V]) Background() bool { return t.t.turn != nil && t.t.turn.f.kind == background }

// Wanted reports whether a caller waits for the turn.
func (t *Turn[V]) Wanted() bool { return t.t.turn != nil && !t.t.part.deserted() }

// WhileWanted returns a context for a wait before the fetch, for a budget say. It ends
// with ctx, and when here returns false while no caller waits for the turn. Call stop.
func (t *Turn[V]) WhileWanted(ctx context.Context, here func() bool) (wanted context.Context, stop func()) {
	return whileWanted(ctx, nil, func() bool { return !here() && !t.Wanted() })
}

// StaleAge is the present age of the value that the turn's Fill had as Stale.
func (t *Turn[V]) StaleAge() time.Duration {
	rd := t.t.fill.staleRead
	if rd == nil {
		return 0
	}
	return rd.reading.Age + rd.waited()
}

// Also returns the turn of another key, for a fetch that also produces an entry for that
// key. No budget pays for it. It waits for up to 100 ms, for the store or for another caller
// that has the turn of that key, and then returns nil.
func (t *Turn[V]) Also(key string, opts ...CallOption) *Turn[V] {
	ctx, cancel := context.WithTimeout(t.Context(), alsoWithin)
	defer cancel()
	o := t.t.e.get(ctx, key, maxAgeOf(opts), func() *call { return &call{told: true, steps: true, paid: true} })
	if o.turn == nil {
		return nil
	}
	also := turnOf[V](o.turn)
	if also.Alone() {
		also.Release()
		return nil
	}
	return also
}

// alsoWithin bounds the wait for the turn of another key.
const alsoWithin = 100 * time.Millisecond

// Store ends the turn with a value, on the terms that the turn's Fill states. It reports
// whether the value was stored: not if the lease is gone, if the value is private, or if
// there is no store.
func (t *Turn[V]) Store(value V) bool { return t.end(&value, nil) }

// Fail ends the turn as a fetch does that returns err, which is not nil: ErrNotFound,
// ErrNotModified and RetryAfter mean the same.
func (t *Turn[V]) Fail(err error) { t.end(nil, err) }

// Release ends the turn without an outcome. Another caller fetches, if one waits.
func (t *Turn[V]) Release() { t.t.release() }

func (t *Turn[V]) end(value *V, err error) bool {
	return t.t.end(func(r *fill) {
		t.Fill.into(r)
		if r.err = err; err == nil {
			r.value = value
			t.t.e.complete(r)
		}
	})
}

func turnOf[V any](t *openTurn) *Turn[V] { return &Turn[V]{fillOf[V](t.fill), t} }

// An openTurn is a Turn without its type.
type openTurn struct {
	e      *engine
	part   *part // nil: it is for one caller alone
	turn   *turn // nil: as part
	fill   *fill
	ctx    context.Context
	began  time.Time
	frame  *frame
	traced func(cache.Event) // ends the trace; nil: there is none
	x      Expense           // nil: there is no budget

	mu     sync.Mutex
	cancel context.CancelCauseFunc
	ended  bool
}

// startTurn starts a turn that its caller ends.
func startTurn(ctx context.Context, e *engine, p *part, t *turn, r *fill, keys *fetchKeys, x Expense) *openTurn {
	started := false
	defer func() { refundUnless(&started, x) }()
	o := &openTurn{e: e, part: p, turn: t, fill: r, began: time.Now(), x: x}
	ctx, o.traced = e.events.startFetch(ctx, []*fill{r})
	timeout := &timedOut{e, r.key, 1}
	ctx, stop := context.WithTimeoutCause(ctx, e.policy.FetchTimeout, timeout)
	ctx, o.frame = enter(ctx, e, keys)
	o.ctx, o.cancel = context.WithCancelCause(ctx)
	closed := context.AfterFunc(e.ctx, func() { o.cancel(context.Cause(e.ctx)) }) // a lone turn's ctx is its caller's
	context.AfterFunc(o.ctx, func() {
		stop()
		closed()
		defer func() { _ = recover() }() // of an Observer, at the end of a turn for one caller alone
		o.end(func(r *fill) { r.err = context.Cause(o.ctx) })
	})
	started = true
	return o
}

// end lets answer fill in the result and ends the turn. The first call counts. It reports
// whether the value was stored.
func (o *openTurn) end(answer func(*fill)) bool {
	o.mu.Lock()
	ended := o.ended
	o.ended = true
	if !ended && o.turn != nil && o.turn.f.preview != nil {
		o.turn.f.preview.end()
	}
	o.mu.Unlock()
	if ended {
		return false
	}
	defer o.cancel(nil)
	o.frame.ended.Store(true)
	if o.turn == nil {
		o.account(answer)
		return false
	}
	o.part.l.protect(func() {
		o.account(answer)
		o.part.conclude([]*turn{o.turn}, []*fill{o.fill})
	})
	return o.turn.f.out.stored
}

// account takes in the answer, settles its payment and reports it.
func (o *openTurn) account(answer func(*fill)) {
	answer(o.fill)
	if o.x != nil {
		o.x.Settle(o.fill.cost)
	}
	o.e.events.endFetch(o.ctx, []*fill{o.fill}, time.Since(o.began), o.traced)
}

// release ends the turn without an outcome.
func (o *openTurn) release() { o.end(func(r *fill) { r.err = errNotWanted }) }

// An offer hands a turn to the caller that is to fetch, unless it has left.
type offer struct {
	mu   sync.Mutex
	left bool
	turn chan *openTurn // holds one
}

func newOffer() *offer { return &offer{turn: make(chan *openTurn, 1)} }

// give reports whether the caller takes the turn.
func (o *offer) give(t *openTurn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.left {
		o.turn <- t
	}
	return !o.left
}

// leave is called by a caller that stops waiting. It returns a turn that was given
// meanwhile.
func (o *offer) leave() *openTurn {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = true
	select {
	case t := <-o.turn:
		return t
	default:
		return nil
	}
}
