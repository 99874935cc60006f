package guard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/stampedeguard/stampede/internal/store"
)

// A call is one call of Get, Load, GetMany or LoadMany: its caller waits in it until
// each key has an outcome. One goroutine uses it.
type call struct {
	e         *engine
	ctx       context.Context
	fetch     fetchFunc
	told      bool            // the fetch is told the last value
	maxAge    time.Duration   // of a stored entry that the caller accepts; anyAge: whatever the policy does
	steps     bool            // instead of fetch: the caller fetches by itself, with a turn
	paid      bool            // the fetch is paid for already
	refreshed func(*openTurn) // instead of fetch: refreshes in the background; nil: there are none

	began    time.Time // when it began to wait
	number   uint64    // sequence number, drawn when it is first needed
	wait     timer     // WaitTimeout
	soft     timer     // SoftTimeout
	waitOver bool
	softOver bool

	// The memory of a call for one key.
	only want
	list [1]*want
}

// A want is one key of a call.
type want struct {
	key    string
	rd     *read   // the last read by this call; nil: none
	lookup *lookup // to be left once the call has joined a flight; nil: none
	ticket ticket  // of the first round: a later one may accept an outcome that rests on a command as old
	out    *outcome

	f       *flight
	result  <-chan singleflight.Result
	first   bool
	offer   *offer // of a turn, to a call that fetches in steps; nil: none
	offered bool   // the stale value was considered at SoftTimeout
}

// resolve takes each key that was looked at and could not be served to its outcome.
func (c *call) resolve(all []*want) {
	c.began = time.Now()
	c.wait = newTimer(c.e, c.e.policy.WaitTimeout)
	defer c.wait.stop()
	if d := c.e.policy.SoftTimeout; d > 0 && c.kind() == foreground {
		c.soft = newTimer(c.e, d)
		defer c.soft.stop()
	}
	leave := func() {
		for _, w := range all {
			c.leaveLookup(w)
		}
	}
	defer leave() // also if an Observer panics
	left := which(all, fetch, fetchLocal, fetchAlone)
	for round := 0; len(left) > 0; round++ {
		if round > 0 {
			c.readAgain(left)
		}
		left = c.round(left)
		if c.waitOver && !slices.ContainsFunc(left, func(w *want) bool { return !w.owned() }) {
			// Only fetches of this call's own have taken so long.
			c.wait = newTimer(c.e, c.e.policy.WaitTimeout)
			c.waitOver = false
		}
	}
	leave()
	c.mask(all)
	c.fetchInstead(all)
	c.finish(all)
}

func (c *call) leaveLookup(w *want) {
	if w.lookup != nil {
		c.e.lookups.leave(w.lookup)
		w.lookup = nil
	}
}

func (c *call) kind() flightKind { return kindFor(c.maxAge) }

// kindFor is the kind of flights that a caller joins.
func kindFor(maxAge time.Duration) flightKind {
	if maxAge != anyAge {
		return forced
	}
	return foreground
}

// readAgain reads and judges the keys that have to retry.
func (c *call) readAgain(ws []*want) {
	c.read(ws)
	for _, w := range ws {
		c.e.judgeFor(c.ctx, c.maxAge, w)
	}
}

// read reads the keys, also those that were read before.
func (c *call) read(ws []*want) {
	switch len(ws) {
	case 0:
	case 1:
		ws[0].rd = c.e.lookups.read(c.ctx, ws[0].key)
	default:
		keys := make([]string, len(ws))
		for i, w := range ws {
			keys[i] = w.key
		}
		at := time.Now()
		c.e.readMany(c.ctx, keys, func(i int, r *store.Reading, err error) { ws[i].rd = keep(r, err, at) })
	}
}

// round brings the keys on by one round and returns those that need another.
func (c *call) round(ws []*want) []*want {
	if ws := c.outside(which(ws, fetch)); len(ws) > 0 {
		if c.number == 0 {
			c.number = c.e.sequence.Add(1)
		}
		c.share(c.kind(), ws, c.number)
	}
	if ws := c.outside(which(ws, fetchLocal)); len(ws) > 0 {
		// A fetch of this process that started after the caller came will do. Nothing is
		// read in between, as the value would not be stored.
		for number := c.e.sequence.Add(1); len(ws) > 0; ws = which(ws, fetch) {
			c.share(local, ws, number)
		}
	}
	c.fetchAlone(c.outside(which(ws, fetchAlone)))
	return which(ws, fetch)
}

// filter returns the keys for which keep is true. They are only to be read: they may be ws
// itself.
func filter(ws []*want, keep func(*want) bool) []*want {
	first := slices.IndexFunc(ws, func(w *want) bool { return !keep(w) })
	if first < 0 {
		return ws
	}
	some := slices.Clone(ws[:first])
	for _, w := range ws[first+1:] {
		if keep(w) {
			some = append(some, w)
		}
	}
	return some
}

// which are the keys with one of the actions next.
func which(ws []*want, next ...action) []*want {
	return filter(ws, func(w *want) bool { return slices.Contains(next, w.out.then) })
}

// outside returns the keys that can be waited for. A fetch that asks for its own key
// is told so instead.
func (c *call) outside(ws []*want) []*want {
	return filter(ws, func(w *want) bool {
		if !within(c.ctx, c.e, w.key) {
			return true
		}
		w.out = reentrant(c.e, w.key)
		return false
	})
}

// share waits for the flights of the keys, as the first caller of those that have
// none.
func (c *call) share(kind flightKind, ws []*want, number uint64) {
	l := c.newLeader(kind)
	solo, nested := len(ws) == 1, c.e.slots.within(c.ctx)
	if c.steps {
		ws[0].offer = newOffer()
		l.offer = ws[0].offer
	}
	for _, w := range ws {
		w.f, w.result, w.first = c.e.flights.join(kind, w.key, number, func() *flight {
			return l.open(kind, w.key, number, w.rd, solo)
		})
		if nested && w.f != nil {
			w.f.nested.Store(true)
		}
		c.leaveLookup(w)
	}
	inner := frameOf(c.ctx)
	joined := c.enterWaits(inner, ws, number)
	defer leaveWaits(inner, joined)
	c.e.events.waiting.Add(int64(len(joined)))
	defer c.e.events.waiting.Add(-int64(len(joined)))
	if !solo {
		l.start()
	}
	rest := joined
	defer func() { // also if an Observer or a function of the policy has panicked
		for _, w := range rest {
			c.e.flights.leave(w.f, number)
		}
		for _, w := range ws {
			if w.offer == nil || w.out.turn != nil {
				continue
			}
			if t := w.offer.leave(); t != nil { // given at this very moment
				t.release()
			}
		}
	}()
	for ; len(rest) > 0; rest = rest[1:] {
		rest[0].out = c.await(kind, rest[0], rest, number)
		c.e.flights.leave(rest[0].f, number)
	}
}

// enterWaits returns the keys with flights that can be waited for. inner is the fetch that
// the call is made from; nil: there is none. To wait for a flight that waits for that fetch
// would have no end.
func (c *call) enterWaits(inner *frame, ws []*want, number uint64) []*want {
	return filter(ws, func(w *want) bool {
		switch {
		case w.f == nil:
			w.out = closedOutcome()
		case inner != nil && !inner.await(w.f):
			w.out = deadlocked(c.e, w.key)
			c.e.flights.leave(w.f, number)
		default:
			return true
		}
		return false
	})
}

// leaveWaits ends the waits of the fetch that the call is made from; nil: there is none.
func leaveWaits(inner *frame, joined []*want) {
	if inner == nil {
		return
	}
	for _, w := range joined {
		inner.done(w.f)
	}
}

// await waits for one flight until there is an outcome that the caller may have. rest
// are the keys that are still waited for: all are needed in the end, so the time spent
// here counts for each.
func (c *call) await(kind flightKind, w *want, rest []*want, number uint64) *outcome {
	e := c.e
	var moved <-chan struct{} = w.f.moved
	var turn <-chan *openTurn
	var previewed <-chan struct{}
	if w.offer != nil {
		turn, previewed = w.offer.turn, w.f.previewed
	}
	for {
		select {
		case res := <-w.result:
			return w.take(res, number)
		default:
		}
		if c.softOver && kind == foreground && !w.offered {
			w.offered = true
			w.rd = w.f.borrow(number, w.rd)
			if o := c.maskOne(w, &outcome{err: errSoftTimeout}); o.err == nil {
				return o
			}
		}
		if c.waitOver && w.mayLeave() {
			return c.waitedTooLong(w.key)
		}
		select {
		case res := <-w.result:
			return w.take(res, number)
		case <-moved:
			var o *outcome
			if o, moved = e.flights.afterMove(w.f, number); o != nil {
				return o
			}
		case t := <-turn:
			return &outcome{turn: t, source: Fetched}
		case <-previewed:
			var o *outcome
			if o, previewed = w.f.preview.outcome(c.ctx, number); o != nil {
				return o
			}
		case <-c.ctx.Done():
			return &outcome{err: context.Cause(c.ctx)}
		case <-c.soft.over():
			c.soft.stop()
			c.softOver = true
			if len(rest) > 1 {
				c.read(unread(rest))
			}
		case <-c.wait.over():
			c.wait.stop()
			c.waitOver = true
		}
	}
}

// take is the outcome that a flight's result holds for this caller.
func (w *want) take(res singleflight.Result, number uint64) *outcome {
	w.rd = w.f.borrow(number, w.rd)
	return res.Val.(*outcome).forCaller(number, w.first)
}

// owned reports whether the call waits for its own fetch, which has a bound of its own,
// or is about to make it.
func (w *want) owned() bool {
	return w.first && w.f != nil && (w.f.kind == local || w.f.runner.Load() == flightRuns)
}

// mayLeave reports whether the call may stop waiting after WaitTimeout: not for its own
// fetch. Under StaleOrFetch it takes its fetch along.
func (w *want) mayLeave() bool {
	if !w.first || w.f.kind == local || w.f.e.policy.OnWaitTimeout != StaleOrFetch {
		return !w.owned()
	}
	return w.f.runner.CompareAndSwap(noRunner, callerRuns)
}

func unread(ws []*want) (some []*want) {
	for _, w := range ws {
		if w.rd == nil {
			some = append(some, w)
		}
	}
	return some
}

// waitedTooLong is the outcome for a caller that has waited for WaitTimeout.
func (c *call) waitedTooLong(key string) *outcome {
	return &outcome{err: fmt.Errorf("%w (%v) for %s", ErrWaitTimeout, c.e.policy.WaitTimeout, c.e.events.quote(key)), own: true}
}

// A timer is one that is set when it is first waited for. The zero timer never ends.
type timer struct {
	e     *engine
	end   time.Time
	timer *time.Timer // of e.timers: a new one for each call is three allocations
}

func newTimer(e *engine, d time.Duration) timer { return timer{e: e, end: time.Now().Add(d)} }

func (t *timer) over() <-chan time.Time {
	if t.end.IsZero() {
		return nil
	}
	if t.timer == nil {
		left := time.Until(t.end)
		if t.timer, _ = t.e.timers.Get().(*time.Timer); t.timer == nil {
			t.timer = time.NewTimer(left)
		} else {
			t.timer.Reset(left)
		}
	}
	return t.timer.C
}

func (t *timer) stop() {
	t.end = time.Time{}
	if t.timer != nil && t.timer.Stop() {
		t.e.timers.Put(t.timer)
	}
	t.timer = nil
}

// newLeader returns a leader without flights.
func (c *call) newLeader(kind flightKind) *leader {
	values := c.ctx
	if kind == background {
		// No caller waits for it, and so neither does the fetch that it was started from.
		values = apart(values)
	}
	// They are no part of the leader: a fetch may keep its context for long.
	contexts := [2]flightContext{{c.e.ctx, values}, {context.Background(), values}}
	l := &leader{e: c.e, ctx: &contexts[0], endless: &contexts[1], caller: c.ctx, fetch: c.fetch, told: c.told, paid: c.paid}
	l.flights, l.requests, l.turns = l.flight[:0], l.request[:0], l.turn[:0]
	return l
}
