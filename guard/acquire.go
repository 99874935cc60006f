package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// beginStamp reads the clock beside the first acquire. Later ones are of flights that
// wait, most of which will never fetch.
func (l *leader) beginStamp(fs []*flight) {
	if l.stamping != nil || fs[0].heldMoment != 0 || !slices.ContainsFunc(fs, l.mayCarryTags) {
		return
	}
	s := &stamping{done: make(chan struct{})}
	l.stamping = s
	ctx := l.ctx // which the leader may replace
	l.e.flights.wg.Go(func() {
		defer close(s.done)
		s.stamp, s.err = l.e.store.Stamp(ctx)
	})
}

// mayCarryTags reports whether a fetched value of the flight may carry tags. One that
// is sure not to needs no stamp.
func (l *leader) mayCarryTags(f *flight) bool {
	return len(l.e.tags.own) > 0 || l.e.tags.of != nil || l.told || f.known.found() != nil && len(f.known.reading.Entry.Tags) > 0
}

// A stamping is a reading of the clock of tags, under way or done.
type stamping struct {
	done  chan struct{}
	stamp store.Stamp
	err   error
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
	l.requests = slices.Grow(l.requests[:0], len(fs))[:len(fs)]
	moment, sent := l.e.sequence.Add(1), time.Now()
	for i, f := range fs {
		f.moment, f.sent = moment, sent
		f.request.Suspect = f.suspect()
		r := &l.requests[i]
		*r = f.request
		r.Brief = !f.looked // it asks again when it is subscribed to the wake-ups, and looks later
		r.RenewFor = min(r.RenewFor, store.MaxTTL/parts) * parts
		r.Window += r.RenewFor - f.request.RenewFor
	}
	return l.e.store.Acquire(l.ctx, l.requests)
}

// acquireUnread is acquire for a key that has not been read, as it was expected to be
// absent. Where no answer comes a read may still help: some servers carry out no
// scripts for a while and serve stored entries.
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
		f.lendNone()
	}
	return a
}

// readForced reads the keys of forced flights that are still unread: their callers were to
// join a flight that has ended since. An acquire that has seen no entry would return the
// entry that is to be replaced.
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

// take acts on an answer. It returns an outcome, or adds a turn to the leader's; if it
// does neither, it is time to ask again.
func (l *leader) take(f *flight, a store.Answer) *outcome {
	if o := l.e.endedFor(l.ctx, a.Err); o != nil {
		if a.Verdict == store.Granted {
			l.e.store.Return(l.endless, []store.Return{{Lease: a.Lease}})
		}
		return closedOutcome()
	}
	switch {
	case f.outwaits(a.Err):
		return f.wait(l.ctx, time.Until(f.heldUntil))
	case a.Err != nil:
		return l.withoutStore(f, a.Err)
	case a.Verdict == store.HasEntry && a.Reading.Found && l.e.backlog.covers(f.key, &a.Reading.Entry, f.sent):
		return l.withoutStore(f, errQueuedChange)
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
	l.turns = append(l.turns, f.start(lease, Fetched))
}

// releaseTaken drops the turn of a flight if its first caller runs the fetch itself. The
// other callers retry.
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
	if o := l.fetchedMeanwhile(f, why); o != nil {
		return o
	}
	leave, o := l.awaitSlot()
	if leave == nil {
		return o
	}
	goes := false
	defer func() {
		if !goes { // an Observer may have panicked
			leave()
		}
	}()
	if goes = l.goUnguarded(f, leave, why); !goes {
		return l.e.noSlot()
	}
	return nil
}

// fetchedMeanwhile is the outcome for a flight that is to fetch without a lease, if the
// reserve has a value by now, or when the refresh that is under way has brought one.
func (l *leader) fetchedMeanwhile(f *flight, why error) *outcome {
	if l.e.reserve == nil || f.kind != foreground {
		return nil
	}
	if refresh := l.e.flights.refreshOf(f.key); refresh != nil && refresh.reserved {
		select {
		case <-refresh.settled:
		case <-l.ctx.Done():
			return closedOutcome()
		}
	}
	o := l.e.standby.outcome(f.key, anyAge, why)
	if o != nil {
		o.moment = l.e.sequence.Add(1)
	}
	return o
}

// goWithoutStore starts another leader for the flights that got no answer from the
// store: they may have to wait for a slot, while leases are held here.
func (l *leader) goWithoutStore(away []*flight) {
	if len(away) == 0 {
		return
	}
	other := l.another(nil)
	other.slot = l.slot
	for _, f := range away {
		f.by = other
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
	l.slot = nil // the other leader gives it back
	l.e.flights.wg.Go(func() {
		defer other.leaveSlot()
		other.protect(func() {
			other.flights = slices.DeleteFunc(other.flights, func(f *flight) bool {
				o := l.fetchedMeanwhile(f, f.readErr)
				if o != nil {
					f.settle(o)
				}
				return o != nil
			})
			if len(other.flights) == 0 {
				return
			}
			leave, o := other.awaitSlot()
			if leave != nil {
				defer leave()
			}
			for _, f := range other.flights {
				switch {
				case leave == nil:
					f.settle(o)
				case !other.goUnguarded(f, leave, f.readErr):
					f.settle(l.e.noSlot())
				}
			}
			other.fetchTurns()
		})
	})
}

// awaitSlot waits for a slot. It returns the function that gives the slot back, or the
// outcome without one. A caller that is within a fetch with a slot ends the wait: that fetch
// would keep its slot until then.
func (l *leader) awaitSlot() (leave func(), o *outcome) {
	p := &l.e.policy
	ctx, cancel := context.WithTimeoutCause(l.ctx, p.MaxUnguardedWait, ErrWaitTimeout)
	defer cancel()
	nested := func() bool { return slices.ContainsFunc(l.flights, func(f *flight) bool { return f.nested.Load() }) }
	leave = l.e.slots.wait(ctx, func() bool { return l.abandoned() || nested() })
	if leave == nil && l.e.ctx.Err() == nil && nested() {
		return func() {}, nil
	}
	if leave == nil && context.Cause(ctx) == ErrWaitTimeout && l.e.ctx.Err() == nil {
		err := fmt.Errorf("%w: all %d slots for fetches without Redis were taken for %v (Policy.MaxUnguarded, MaxUnguardedWait)",
			ErrWaitTimeout, p.MaxUnguarded, p.MaxUnguardedWait)
		return nil, &outcome{err: err, own: true, moment: always}
	}
	return leave, l.e.noSlot()
}

// goUnguarded adds a turn without a lease; leave gives its slot back. It returns false
// if the first caller runs the fetch for itself.
func (l *leader) goUnguarded(f *flight, leave func(), why error) bool {
	if !f.claimFetch() {
		return false
	}
	t := f.start(nil, UnguardedFetch)
	t.leave = leave
	l.turns = append(l.turns, t)
	l.e.events.report(l.ctx, cache.Unguarded, cache.Event{Key: f.key, Err: why})
	return true
}

// abandoned reports whether none of the flights need go on.
func (l *leader) abandoned() bool {
	return !slices.ContainsFunc(l.flights, func(f *flight) bool { return !f.abandoned() })
}

// errNoStamp: the fetched value can't be stored with its tags, as the deletions before it
// are unknown.
var errNoStamp = errors.New("guard: the clock of tags could not be read before the fetch")
