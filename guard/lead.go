package guard

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/callers"
	"github.com/stampedeguard/stampede/internal/store"
)

// A leader takes the flights that one call is the first caller of to their outcomes.
// It asks for their leases at once, fetches the keys whose lease it was granted, and
// gives the leases back at once. A flight that has to wait for another holder goes on
// by itself, with a leader of its own. One goroutine at a time runs a leader.
type leader struct {
	e        *engine
	ctx      context.Context // ends with the guard; has the values of the caller's context
	caller   context.Context // the call's own
	fetch    fetchFunc
	told     bool            // the fetch is told the last value
	offer    *offer          // instead of fetch: the caller that fetches; nil: none
	refresh  func(*openTurn) // instead of fetch: refreshes in the background; nil: none
	flights  []*flight
	turns    []*turn   // granted, in the order of the flights
	stamping *stamping // the clock of tags, read beside the first acquire; nil: not
}

// newLeader returns a leader without flights.
func (c *call) newLeader(kind flightKind) *leader {
	values := c.ctx
	if kind == background {
		// No caller waits for it, and so neither does the fetch that it was started from.
		values = callers.Apart(values)
	}
	return &leader{e: c.e, ctx: &flightContext{c.e.ctx, values}, caller: c.ctx, fetch: c.fetch, told: c.told}
}

// open makes a flight that the leader runs. rd is what its first caller has read.
func (l *leader) open(kind flightKind, key string, number uint64, rd *read) *flight {
	p := &l.e.policy
	f := &flight{
		e: l.e, key: key, kind: kind, by: l, first: number, began: time.Now(), trigger: triggerFor(kind, rd),
		settled: make(chan struct{}), moved: make(chan struct{}), poll: firstPoll,
		// No other caller may have what the first one read; whatever follows is later.
		knownMoment: number + 1, unseen: number + 1,
		request: store.Request{
			Key: l.e.storeKey(key), TTL: p.Lease, RenewFor: p.FetchTimeout + p.MaxBudgetWait,
			MaxAttempts: max(p.MaxAttempts, 0), Window: p.Quarantine,
		},
	}
	if rd != nil {
		f.know(rd)
	}
	l.flights = append(l.flights, f)
	return f
}

// know takes in what was read of the flight's key.
func (f *flight) know(rd *read) {
	if f.readErr = rd.err; rd.err == nil {
		f.known, f.request.Seen = rd, rd.reading.Seen
	}
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
		l.e.store.Return(context.WithoutCancel(l.ctx), back)
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
	own := *l
	own.flights, own.turns, own.stamping = []*flight{f}, nil, nil
	f.by = &own
}

// run takes several flights as far as they go together.
func (l *leader) run() {
	if l.flights[0].kind == local {
		for _, f := range l.flights {
			l.turns = append(l.turns, &turn{f: f, source: Fetched})
		}
		l.fetchTurns()
		return
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

// readForced reads the keys of forced flights whose callers were to join a flight that
// has ended since: an acquire that has seen no entry would return the one that is to be
// replaced.
func (l *leader) readForced() {
	var unread []*flight
	var keys []string
	for _, f := range l.flights {
		if f.kind == forced && f.known == nil && f.readErr == nil {
			unread, keys = append(unread, f), append(keys, f.key)
		}
	}
	if len(keys) == 0 {
		return
	}
	at := time.Now()
	l.e.readMany(l.ctx, keys, func(i int, r *store.Reading, err error) {
		unread[i].know(keep(r, err, at))
	})
}

// runAlone takes the only flight of the leader to its outcome.
func (l *leader) runAlone(f *flight) {
	if f.kind == local {
		l.turns = []*turn{{f: f, source: Fetched}}
		l.fetchTurns()
		return
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

// acquire asks for the flights' leases, and reads the clock of tags beside the first
// time.
func (l *leader) acquire(fs []*flight) []store.Answer {
	if len(fs) == 0 {
		return nil
	}
	l.beginStamp(fs)
	// With several parts, the last fetch starts when those before it have ended.
	parts := time.Duration((len(fs) + l.e.policy.MaxBatch - 1) / l.e.policy.MaxBatch)
	requests := make([]store.Request, len(fs))
	moment, sent := l.e.sequence.Add(1), time.Now()
	for i, f := range fs {
		f.moment, f.sent = moment, sent
		f.request.Suspect = f.suspect()
		r := &requests[i]
		*r = f.request
		r.RenewFor = min(r.RenewFor, store.MaxTTL/parts) * parts
		r.Window += r.RenewFor - f.request.RenewFor
	}
	return l.e.store.Acquire(l.ctx, requests)
}

// acquireUnread is acquire for a key that has not been read, as it was expected to be
// absent. Where no answer comes a read may still help: some servers carry out no
// scripts for a while and serve what is stored.
func (l *leader) acquireUnread(f *flight) store.Answer {
	f.request.Once = true
	a := l.acquire(l.flights)[0]
	f.request.Once = false
	l.e.events.unread.Add(1)
	found := a.Err == nil && a.Verdict == store.HasEntry
	if found {
		l.e.events.misled.Add(1)
	}
	l.e.foresight.met(a.Err != nil || found)
	switch {
	case a.Err != nil && l.e.endedFor(l.ctx, a.Err) == nil:
		f.moment, f.sent = l.e.sequence.Add(1), time.Now()
		rd := l.e.lookups.read(l.ctx, f.key)
		if rd.err != nil {
			return store.Answer{Err: rd.err}
		}
		return store.Answer{Verdict: store.HasEntry, Reading: rd.reading}
	case a.Err == nil && a.Verdict == store.Granted:
		f.lend(&read{reading: &store.Reading{}, at: f.sent})
	}
	return a
}

// take acts on an answer. It returns an outcome, or adds a turn to the leader's; if it
// does neither, it is time to ask again.
func (l *leader) take(f *flight, a store.Answer) *outcome {
	if o := l.e.endedFor(l.ctx, a.Err); o != nil {
		if a.Verdict == store.Granted {
			l.e.store.Return(context.WithoutCancel(l.ctx), []store.Return{{Lease: a.Lease}})
		}
		return closedOutcome()
	}
	switch {
	case f.outwaits(a.Err):
		return f.wait(l.ctx, time.Until(f.heldUntil))
	case a.Err != nil:
		return l.withoutStore(f, a.Err)
	case a.Verdict == store.Granted:
		l.grant(f, a.Lease)
		l.releaseTaken()
		if len(l.turns) == 0 {
			return retryOutcome()
		}
		return nil
	}
	o := f.heed(&a)
	if o == nil && a.Verdict == store.Held {
		o = f.wait(l.ctx, a.TTL)
	}
	return o
}

// grant adds a turn under a lease.
func (l *leader) grant(f *flight, lease *store.Lease) {
	l.e.events.granted(lease.TakenOver)
	f.attempt.Store(int32(lease.Attempt))
	l.turns = append(l.turns, &turn{f: f, lease: lease, source: Fetched})
}

// releaseTaken drops the turns whose fetch the first caller runs for itself. Their other
// callers retry.
func (l *leader) releaseTaken() {
	var ends []ending
	l.turns = slices.DeleteFunc(l.turns, func(t *turn) bool {
		if t.f.claimFetch() {
			return false
		}
		ends = append(ends, ending{t: t, out: retryOutcome()})
		return true
	})
	if len(ends) > 0 {
		l.settle(ends)
	}
}

// withoutStore is take for a flight that got no answer from the store.
func (l *leader) withoutStore(f *flight, why error) *outcome {
	if errors.Is(why, store.ErrClosed) {
		return closedOutcome()
	}
	if f.refusesUnguarded() {
		return &outcome{err: unavailable(why), own: true, moment: always}
	}
	leave := l.e.waitForSlot(l.ctx, f.abandoned)
	if leave == nil {
		return l.e.noSlot()
	}
	if !l.goUnguarded(f, leave, why) {
		leave()
		return l.e.noSlot()
	}
	return nil
}

// refusesUnguarded reports whether the flight may not fetch without a lease.
func (f *flight) refusesUnguarded() bool {
	return f.kind == background || f.e.policy.WhenUnavailable == FailClosed
}

// goWithoutStore starts another leader for the flights that got no answer from the
// store: they may have to wait for a slot, while leases are held here.
func (l *leader) goWithoutStore(away []*flight) {
	if len(away) == 0 {
		return
	}
	other := *l
	other.flights, other.turns, other.stamping = nil, nil, nil
	for _, f := range away {
		f.by = &other
		switch {
		case errors.Is(f.readErr, store.ErrClosed):
			f.settle(closedOutcome())
		case f.refusesUnguarded():
			f.settle(&outcome{err: unavailable(f.readErr), own: true, moment: always})
		default:
			other.flights = append(other.flights, f)
		}
	}
	if len(other.flights) == 0 {
		return
	}
	l.e.flights.wg.Go(func() {
		other.protect(func() {
			leave := l.e.waitForSlot(l.ctx, other.abandoned)
			for _, f := range other.flights {
				if leave == nil || !other.goUnguarded(f, leave, f.readErr) {
					f.settle(l.e.noSlot())
				}
			}
			if leave != nil && len(other.turns) == 0 {
				leave()
			}
			other.fetchTurns()
		})
	})
}

// goUnguarded adds a turn without a lease; leave gives its slot back. It returns false
// if the first caller runs the fetch for itself.
func (l *leader) goUnguarded(f *flight, leave func(), why error) bool {
	if !f.claimFetch() {
		return false
	}
	l.turns = append(l.turns, &turn{f: f, source: UnguardedFetch, leave: leave})
	l.e.events.report(l.ctx, cache.Unguarded, Event{Key: f.key, Err: why})
	return true
}

// abandoned reports whether none of the flights need go on.
func (l *leader) abandoned() bool {
	return !slices.ContainsFunc(l.flights, func(f *flight) bool { return !f.abandoned() })
}
