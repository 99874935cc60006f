package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// A fetchFunc runs the user's fetch for some keys and notes the answer in each fill.
type fetchFunc func(ctx context.Context, fills []*fill)

// A part is the turns that one call of the fetch serves.
type part struct {
	l      *leader
	turns  []*turn
	keys   fetchKeys
	ctx    context.Context // of the fetch: ends with errNotWanted if no caller can use any of the results
	cancel context.CancelCauseFunc
	wanted atomic.Int32 // turns that are not dropped

	stamp    store.Stamp // from before the fetch
	stampErr error       // why there is none

	// The memory of one.
	fills [1]*fill
	ends  [1]ending
}

// fetchTurns fetches the keys of the leader's turns and settles them, MaxBatch keys at
// once and one part after the other. While leases wait for their fetch,
// nothing is waited for but the parts before.
func (l *leader) fetchTurns() {
	if len(l.turns) == 0 {
		return
	}
	if leave := l.turns[0].leave; leave != nil {
		defer leave()
		l.ctx = context.WithValue(l.ctx, slotKey{l.e.slots}, true)
	}
	var index map[string]int
	if len(l.turns) > 1 {
		index = make(map[string]int, len(l.turns))
	}
	parts := make([]*part, 0, 1)
	for turns := range slices.Chunk(l.turns, l.e.policy.MaxBatch) {
		p := &part{l: l, turns: turns}
		p.ctx, p.cancel = context.WithCancelCause(l.ctx)
		p.wanted.Store(int32(len(turns)))
		for _, t := range turns {
			t.part = p
			if index != nil {
				index[t.f.key] = len(parts)
			}
		}
		p.keys = fetchKeys{first: l.turns[0].f.key, fetch: index, now: len(parts), turns: l.turns[len(parts)*l.e.policy.MaxBatch:]}
		parts = append(parts, p)
	}
	for _, t := range l.turns {
		if t.lease != nil {
			t.reportGrant()
			t.lease.OnLost(t.lost)
		}
	}
	defer func() { // also if an Observer panics
		for _, p := range parts {
			p.cancel(nil)
		}
	}()
	for _, p := range parts {
		p.fetch()
		p.cancel(nil)
	}
}

// fetch pays for one fetch, makes it, and settles its turns.
func (p *part) fetch() {
	l := p.l
	turns, fills, paid := p.prepare()
	if len(turns) == 0 {
		return
	}
	if l.offer != nil || l.refresh != nil {
		l.hand(p, turns[0], fills[0], paid)
		return
	}
	fills = run{l.e, l.fetch, fills, &p.keys, paid.expense}.do(p.ctx)
	p.conclude(turns, fills)
}

// prepare does all that comes before the fetch. It returns the turns that are still
// wanted and paid for, and settles the others.
func (p *part) prepare() (turns []*turn, fills []*fill, paid payment) {
	l, e := p.l, p.l.e
	if turns = p.stillWanted(p.turns); len(turns) == 0 {
		return nil, nil, paid
	}
	paid, err := p.pay(turns)
	used := false
	defer paid.refundUnless(&used)
	if turns = p.stillWanted(turns); len(turns) == 0 {
		return nil, nil, paid
	}
	if err == nil && e.ctx.Err() != nil {
		err = ErrClosed // in the part before: no caller would wait for this one
	}
	if err != nil {
		p.settleUnpaid(turns, err)
		return nil, nil, paid
	}
	p.takeStamp(turns, paid.waited)
	if l.told {
		p.recheck(turns)
	}
	fills = slices.Grow(p.fills[:0], len(turns))
	for _, t := range turns {
		fills = append(fills, t.newFill(l.told))
		t.start = e.flights.startFetch(t.f)
		if e.reserve != nil {
			t.ticket = e.coherence.ticket(t.f.key)
		}
	}
	fills[0].cost = paid.cost
	used = true
	return turns, fills, paid
}

// conclude settles the turns with the answers of the fetch.
func (p *part) conclude(turns []*turn, fills []*fill) {
	if !p.l.told {
		p.addStale(turns, fills)
	}
	ends := slices.Grow(p.ends[:0], len(turns))
	for i, t := range turns {
		ends = append(ends, t.endSafely(fills[i]))
	}
	p.l.settle(ends)
}

// endSafely is ending, and costs only this key its outcome if StaleOn, say, panics.
func (t *turn) endSafely(r *fill) (end ending) {
	defer func() {
		if p := recover(); p != nil {
			end = ending{t: t, out: panicOutcome(p)}
		}
	}()
	return t.ending(r)
}

// stillWanted settles the turns that are of no use any more, and returns the others.
func (p *part) stillWanted(turns []*turn) []*turn {
	var ends []ending
	for _, t := range turns {
		switch {
		case t.lease == nil && p.l.e.ctx.Err() != nil, t.lease == nil && p.l.e.flights.deserted(t.f) && p.deserted():
			ends = append(ends, ending{t: t, out: p.l.e.noSlot()})
		case t.lease != nil && t.lease.IsLost():
			t.drop()
			ends = append(ends, ending{t: t, out: retryOutcome()}) // its callers ask again
		}
	}
	if len(ends) == 0 {
		return turns
	}
	p.l.settle(ends)
	return slices.DeleteFunc(slices.Clone(turns), func(t *turn) bool { return t.settled.Load() })
}

// lone reports whether the first callers wait and no others do.
func (p *part) lone() bool {
	return !slices.ContainsFunc(p.turns, func(t *turn) bool { return !t.settled.Load() && !p.l.e.flights.lone(t.f) })
}

// deserted reports whether no caller waits.
func (p *part) deserted() bool {
	return !slices.ContainsFunc(p.turns, func(t *turn) bool { return !t.settled.Load() && !p.l.e.flights.deserted(t.f) })
}

// newFill presets the terms of a fetch.
func (t *turn) newFill(told bool) *fill {
	f, e := t.f, t.f.e
	r := &t.fill
	*r = e.newFill(f.key)
	r.trigger, r.flight = f.trigger, f
	if t.lease != nil {
		r.attempt, r.token, r.lease = t.lease.Attempt, t.lease.Token, t.lease
	} else {
		r.token = randomToken()
	}
	if told {
		f.giveStale(r)
	}
	return r
}

func (e *engine) newFill(key string) fill {
	return fill{
		key: key, attempt: 1, trigger: telemetry.TriggerMiss,
		ttl: e.policy.TTL, staleFor: e.policy.Stale, tags: e.tags.own,
	}
}

// addStale adds the last value where the fetch has said that it is still good.
func (p *part) addStale(turns []*turn, fills []*fill) {
	var good []*turn
	for i, t := range turns {
		if errors.Is(fills[i].err, ErrNotModified) && t.lease != nil {
			good = append(good, t)
		}
	}
	p.recheck(good)
	for i, t := range turns {
		if errors.Is(fills[i].err, ErrNotModified) {
			t.f.giveStale(fills[i]) // without a lease as it was read: the store may be away
		}
	}
}

// recheck reads the last values anew. A value may have been deleted since it was read,
// which the lease does not tell: it was granted later. A later deletion, by key or by
// tag, is found by the fill, as the lease and the value's stamp are older than it.
func (p *part) recheck(turns []*turn) {
	var known []*flight
	var keys []string
	for _, t := range turns {
		if t.lease != nil && t.f.known.found() != nil {
			known, keys = append(known, t.f), append(keys, t.f.key)
		}
	}
	if len(keys) == 0 {
		return
	}
	at, moment := time.Now(), p.l.e.sequence.Add(1)
	p.l.e.readMany(p.l.ctx, keys, func(i int, r *store.Reading, err error) {
		known[i].known, known[i].knownMoment = nil, moment
		if err == nil {
			known[i].known = keep(r, nil, at)
		}
	})
}

// takeStamp reads the clock of tags for a fetch with values that may carry tags. The stamp
// from the first acquire is used if that acquire was granted. After a wait that stamp is
// too old: a tag deleted meanwhile would spoil the values.
func (p *part) takeStamp(turns []*turn, waited bool) {
	l := p.l
	if !slices.ContainsFunc(turns, func(t *turn) bool { return l.mayCarryTags(t.f) }) {
		return
	}
	if s := l.stamping; s != nil && !waited && p.keys.now == 0 && turns[0].f.watch == nil {
		<-s.done // bounded by the store
		p.stamp, p.stampErr = s.stamp, s.err
		return
	}
	p.stamp, p.stampErr = l.e.store.Stamp(l.ctx)
}

// A run is one call of the fetch, by a leader or by a caller for itself.
type run struct {
	e     *engine
	fetch fetchFunc
	fills []*fill
	keys  *fetchKeys
	x     Expense // nil: there is no budget
}

// do calls the fetch on a goroutine of its own, so that a fetch that hangs,
// panics or exits its goroutine does not take the flights along. It returns at
// FetchTimeout or when ctx ends, whether the fetch heeds its context or not. The expense
// is settled when the fetch ends, which may be long after it was given up.
func (u run) do(ctx context.Context) []*fill {
	e, fills := u.e, u.fills
	timeout := &timedOut{e, fills[0].key, len(fills)}
	ctx, cancel := context.WithTimeoutCause(ctx, e.policy.FetchTimeout, timeout)
	defer cancel()
	called := false
	defer func() { refundUnless(&called, u.x) }()
	ctx, trace := e.events.startFetch(ctx, fills)
	start := time.Now()
	called = true
	done, ok := e.dones.Get().(chan struct{})
	if !ok {
		done = make(chan struct{}, 1)
	}
	go u.call(ctx, done)
	select {
	case <-done:
		e.dones.Put(done)
	case <-ctx.Done():
		fills = e.givenUp(fills, context.Cause(ctx))
	}
	if errors.Is(context.Cause(ctx), errNotWanted) {
		fills = e.givenUp(fills, errNotWanted) // the fetch was ended: its answer does not count
	}
	for _, r := range fills {
		if errors.Is(r.err, context.DeadlineExceeded) && context.Cause(ctx) == error(timeout) {
			r.err = timeout // the fetch heeded its context
		}
	}
	e.events.endFetch(ctx, fills, time.Since(start), trace)
	return fills
}

// givenUp are the answers of a fetch that goes on with its own fills.
func (e *engine) givenUp(fills []*fill, err error) []*fill {
	all := make([]*fill, len(fills))
	for i, r := range fills {
		again := e.newFill(r.key)
		all[i] = &again
		all[i].attempt, all[i].token, all[i].lease = r.attempt, r.token, r.lease
		all[i].trigger, all[i].flight = r.trigger, r.flight
		all[i].err = err
	}
	return all
}

// call calls the user's fetch and encodes its values. It tells done also after a
// panic or Goexit.
func (u run) call(ctx context.Context, done chan<- struct{}) {
	ctx, frame := enter(ctx, u.e, u.keys)
	returned := false
	defer func() {
		frame.ended.Store(true)
		if !returned {
			err := error(ErrGoexit) // recover tells a panic from a Goexit
			if p := recover(); p != nil {
				err = &PanicError{Value: p, Stack: debug.Stack()}
			}
			for _, r := range u.fills {
				r.value, r.entry, r.err = nil, nil, err
			}
		}
		done <- struct{}{}
		if u.x != nil {
			cost := 0
			for _, r := range u.fills {
				cost += r.cost
			}
			u.x.Settle(cost)
		}
	}()
	pprof.SetGoroutineLabels(ctx)
	u.fetch(ctx, u.fills)
	for _, r := range u.fills {
		u.e.complete(r)
	}
	returned = true
}

// complete checks and encodes the answer for one key. If TagsOf, or a method of the
// error, panics, the other keys live.
func (e *engine) complete(r *fill) {
	defer func() {
		if p := recover(); p != nil {
			r.value, r.entry, r.err = nil, nil, &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if r.err != nil {
		_ = r.err.Error() // a method that panics, of a typed nil for example, does so here
		r.err = e.policy.asNotFound(r.err)
		_ = errors.Is(r.err, ErrNotFound)
		_, _ = PauseOf(r.err)
	} else {
		r.tags = e.tags.ofValue(r.key, r.value, r.tags...)
	}
	switch {
	case errors.Is(r.err, ErrNotModified):
		if r.staleRead == nil {
			break
		}
		if tag, added := e.tags.lacks(&r.staleRead.reading.Entry, r.tags); added {
			// It doesn't wrap ErrNotModified, which is no reason for a warning.
			r.err = fmt.Errorf("guard: the fetch answered ErrNotModified and added the tag %q, which the stored value of %s does not carry: return the value to change its tags",
				tag, e.events.quote(r.key))
		}
	case r.err == nil, errors.Is(r.err, ErrNotFound):
		if err := checkTags(r.tags); err != nil {
			r.err = fmt.Errorf("guard: Fill.Tags and Policy.TagsOf: %w", err)
		}
	}
	if r.err == nil && !r.private {
		if r.err = e.packer.pack(&r.packed, r.value); r.err == nil {
			r.entry = &r.packed
		}
	}
}

// A timedOut error ends a fetch at FetchTimeout. Few fetches are ended so: its text is
// made when it is asked for.
type timedOut struct {
	e   *engine
	key string
	n   int
}

func (t *timedOut) Error() string {
	if t.n == 1 {
		return fmt.Sprintf("%v: %s took longer than %v", ErrFetchTimeout, t.e.events.quote(t.key), t.e.policy.FetchTimeout)
	}
	return fmt.Sprintf("%v: the fetch of %d keys took longer than %v", ErrFetchTimeout, t.n, t.e.policy.FetchTimeout)
}

// Unwrap is for [errors.Is].
func (t *timedOut) Unwrap() error { return ErrFetchTimeout }

// hand gives a turn to the caller that is to fetch and waits for its end.
func (l *leader) hand(p *part, t *turn, r *fill, paid payment) {
	o := startTurn(p.ctx, l.e, p, t, r, &p.keys, paid.expense)
	if l.refresh != nil {
		go l.callRefresh(o)
	} else if !l.offer.give(o) {
		o.release()
	}
	<-t.f.settled
}

// callRefresh calls the user's refresh, on a goroutine of its own: nothing waits for one that
// hangs. A refresh that panics or exits its goroutine ends the turn.
func (l *leader) callRefresh(o *openTurn) {
	returned := false
	defer func() {
		if returned {
			return
		}
		err := error(ErrGoexit)
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
		o.end(func(r *fill) { r.err = err })
	}()
	l.refresh(o)
	returned = true
}
