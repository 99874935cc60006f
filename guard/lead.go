package guard

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A leader brings flights to their outcomes: those that one call is the first caller of.
// It asks for all of their leases together, fetches the keys of the granted leases, and
// gives these leases back together. A flight that has to wait for another holder goes on
// by itself, with a leader of its own. One goroutine at a time runs a leader.
type leader struct {
	e        *engine
	ctx      context.Context // ends with the guard; has the values of the caller's context
	endless  context.Context // has these values and does not end
	caller   context.Context // the call's own
	fetch    fetchFunc
	told     bool            // the fetch is told the last value
	paid     bool            // no budget pays for the fetch
	offer    *offer          // instead of fetch: the caller that fetches; nil: none
	refresh  func(*openTurn) // instead of fetch: refreshes in the background; nil: none
	flights  []*flight
	requests []store.Request
	turns    []*turn   // granted, in the order of the flights
	slot     func()    // gives back the slot of a leader that refreshes values of the reserve; nil: it has none
	stamping *stamping // the clock of tags, read beside the first acquire; nil: not

	// The memory of these, if there is one flight.
	flight  [1]*flight
	request [1]store.Request
	turn    [1]*turn
	back    [1]store.Return
}

// open makes a flight that the leader runs, with others unless it is solo. rd is the read of
// its first caller.
func (l *leader) open(kind flightKind, key string, number uint64, rd *read, solo bool) *flight {
	p := &l.e.policy
	f := &flight{
		e: l.e, key: key, kind: kind, by: l, first: number, began: time.Now(), trigger: triggerFor(kind, rd),
		solo: solo, moved: make(chan struct{}),
		// The first caller shares its read with no other caller; later reads are shared.
		knownMoment: number + 1, unseen: number + 1,
		request: store.Request{
			Key: l.e.storeKey(key), TTL: p.Lease, RenewFor: p.FetchTimeout + p.MaxBudgetWait,
			MaxAttempts: max(p.MaxAttempts, 0), Window: p.Quarantine,
		},
	}
	if !solo {
		f.next = make(chan store.Answer, 1)
	}
	if !solo || l.offer != nil || kind == background {
		f.settled = make(chan struct{})
	}
	if l.offer != nil {
		f.previewed = make(chan struct{})
	}
	f.run = func() (any, error) { return f.e.flights.run(f) }
	if rd != nil {
		f.reserved = rd.reserved
		f.know(rd)
	}
	l.flights = append(l.flights, f)
	return f
}

// start runs a leader of several flights on a goroutine of its own, which ends when
// the last of its fetches is settled.
func (l *leader) start() {
	if len(l.flights) > 0 {
		l.e.flights.wg.Go(func() { l.protect(l.run) }) // no flight has ended yet
	}
}

// protect runs do. If it panics or exits its goroutine, as an Observer or a method of
// the fetch's error may, the leases are released and the flights end.
func (l *leader) protect(do func()) {
	returned := false
	defer func() {
		if returned {
			return
		}
		o := &outcome{err: ErrGoexit, moment: always}
		if p := recover(); p != nil {
			o = panicOutcome(p)
		}
		back := make([]store.Return, 0, len(l.turns))
		for _, t := range l.turns {
			back = t.giveBack(back)
		}
		l.e.store.Return(l.endless, back)
		for _, f := range l.flights {
			if f.by == l {
				f.settle(o)
			}
		}
	}()
	do()
	returned = true
}

// part makes a flight go on by itself.
func (l *leader) part(f *flight) {
	own := l.another([]*flight{f})
	if l.slot != nil {
		own.ctx = context.WithValue(l.ctx, slotKey{l.e.slots}, nil)
	}
	f.by = own
}

// another is a leader of other flights, with no slot.
func (l *leader) another(fs []*flight) *leader {
	other := *l
	other.flights, other.turns, other.requests, other.stamping, other.slot = fs, nil, nil, nil, nil
	return &other
}

// run takes several flights as far as they go together.
func (l *leader) run() {
	if l.flights[0].kind == local {
		for _, f := range l.flights {
			l.turns = append(l.turns, f.start(nil, Fetched))
		}
		l.fetchTurns()
		return
	}
	if slices.ContainsFunc(l.flights, func(f *flight) bool { return f.reserved }) {
		if !l.takeSlot() {
			for _, f := range l.flights {
				f.settle(l.e.noSlot())
			}
			return
		}
		defer l.leaveSlot()
	}
	l.readForced()
	var asked, away []*flight
	for _, f := range l.flights {
		if f.readErr != nil {
			away = append(away, f)
		} else {
			asked = append(asked, f)
		}
	}
	for i, a := range l.acquire(asked) {
		f := asked[i]
		switch ended := l.e.endedFor(l.ctx, a.Err); {
		case ended != nil, a.Err == nil && a.Verdict != store.Granted:
			l.part(f)
			f.next <- a
		case a.Err != nil:
			f.readErr = a.Err
			away = append(away, f)
		default:
			l.grant(f, a.Lease)
		}
	}
	l.releaseTaken()
	l.goWithoutStore(away)
	l.fetchTurns()
}

// runAlone takes the only flight of the leader to its outcome.
func (l *leader) runAlone(f *flight) {
	if f.kind == local {
		l.turns = append(l.turns, f.start(nil, Fetched))
		l.fetchTurns()
		return
	}
	if f.reserved {
		if !l.takeSlot() {
			f.settle(l.e.noSlot())
			return
		}
		defer l.leaveSlot()
	}
	l.readForced()
	var a store.Answer
	switch {
	case f.readErr != nil:
		a.Err = f.readErr
	case f.known == nil:
		a = l.acquireUnread(f)
	default:
		if f.request.Seen == "" {
			l.e.foresight.met(false)
		}
		o, done := l.spare(f)
		defer done()
		if o != nil {
			f.settle(o)
			return
		}
		a = l.acquire(l.flights)[0]
	}
	l.pursue(f, a)
}

// takeSlot takes a slot for a leader that refreshes values of the reserve. It returns false
// if there is none: the values are served meanwhile.
func (l *leader) takeSlot() bool {
	if l.slot = l.e.reserve.takeSlot(l.e.slots); l.slot == nil {
		return false
	}
	l.ctx = context.WithValue(l.ctx, slotKey{l.e.slots}, true)
	return true
}

func (l *leader) leaveSlot() {
	if l.slot != nil {
		l.slot()
	}
}

// pursue takes a flight from the answer to its acquire to its outcome.
func (l *leader) pursue(f *flight, a store.Answer) {
	for {
		o := l.take(f, a)
		switch {
		case o != nil:
			f.settle(o)
			return
		case len(l.turns) > 0:
			l.fetchTurns()
			return
		}
		a = l.acquire(l.flights)[0]
	}
}

// settle gives the leases back and ends the flights.
func (l *leader) settle(ends []ending) {
	back := slices.Grow(l.back[:0], len(ends))
	for i := range ends {
		t := ends[i].t
		t.settled.Store(true)
		if ends[i].back.Lease = t.lease; t.lease != nil {
			if trace := t.f.trace.Load(); trace != nil && !trace.IsZero() && !ends[i].back.Releases() {
				ends[i].back.Trace = trace[:]
			}
			back = append(back, ends[i].back)
		}
	}
	var done []store.Returned
	if len(back) > 0 {
		done = l.e.store.Return(l.endless, back)
	}
	var refused []store.Return
	for i, d := range done {
		if errors.Is(d.Err, store.ErrRefused) && (back[i].Entry != nil || back[i].Failed) {
			// The server is full, say: it takes the lease back all the same.
			refused = append(refused, store.Return{Lease: back[i].Lease})
		}
	}
	if len(refused) > 0 {
		l.e.store.Return(l.endless, refused)
	}
	for i := range ends {
		if ends[i].t.lease != nil {
			ends[i].returned(done[0])
			done = done[1:]
		}
		ends[i].t.f.settle(ends[i].out)
	}
}

// spare returns the outcome of a flight that need not ask for a lease to learn that
// its budget is exhausted; nil: it is to ask. Call done at its end.
func (l *leader) spare(f *flight) (o *outcome, done func()) {
	e := l.e
	b := e.policy.Budget
	if b == nil || l.paid || f.kind == background || e.policy.MaxBudgetWait > 0 || !b.Exhausted(e.policy.Priority) {
		return nil, func() {}
	}
	done = func() { e.payer.doomed.Add(-1) }
	if e.payer.doomed.Add(1) <= maxDoomed {
		return nil, done
	}
	defer done() // also if an Observer panics
	done = func() {}
	paid, err := e.payer.spend(l.ctx, f.key, Spending{Cost: e.policy.Cost, Priority: e.policy.Priority})
	if err == nil { // there is something again
		paid.expense.Settle(0)
		return nil, done
	}
	if e.ctx.Err() != nil {
		return closedOutcome(), done
	}
	return &outcome{err: err, moment: e.sequence.Add(1)}, done
}

// maxDoomed is how many flights may ask for a lease though their guard's budget is
// known to be exhausted: they find out whether another process fetches the key. In a
// storm of more, futile acquires would be most of the load.
const maxDoomed = 8
