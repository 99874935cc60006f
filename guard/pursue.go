package guard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// suspect is the holder to be taken over, if it looked unwatched long enough ago.
func (f *flight) suspect() store.Token {
	if f.unwatched.IsZero() || time.Since(f.unwatched) < secondLook {
		return store.Token{}
	}
	return f.request.LastHeld
}

// heed returns the outcome that an answer brings. Without one the flight waits if it
// was answered "held", and otherwise asks again.
func (f *flight) heed(a *store.Answer) *outcome {
	f.e.events.leases[a.Verdict].Add(1)
	if a.Verdict != store.Quarantined {
		f.suspicious = false
	}
	if a.Verdict != store.Held {
		f.heldUntil = time.Time{}
	}
	switch a.Verdict {
	case store.HasEntry:
		return f.stored(a.Reading)
	case store.Failed:
		return &outcome{err: decodeFailure(a.Failure, &f.e.policy), moment: f.heldMoment}
	case store.Paused:
		err := decodeFailure(a.Failure, &f.e.policy)
		err.RetryAfter = a.TTL
		f.e.events.report(f.by.ctx, cache.KeyPaused, cache.Event{Key: f.key, Duration: a.TTL, Err: err})
		return &outcome{err: err, moment: f.moment}
	case store.Quarantined:
		return f.quarantined(a.TTL)
	}
	f.held(a)
	return nil
}

// stored judges an entry that was stored meanwhile, or that no caller had read. If it
// can't be served the flight asks again.
func (f *flight) stored(r *store.Reading) *outcome {
	rd := &read{reading: r, at: f.sent}
	f.know(rd)
	f.knownMoment = f.moment
	o := f.e.judge(f.by.ctx, f.key, rd)
	if o.then == fetch {
		f.lend(rd)
		f.unseen = f.moment
		return nil
	}
	o.moment = f.moment
	if f.kind == forced {
		o.moment = f.unseen // a later caller wants a value that was not stored yet when it came
	}
	if f.watch != nil && o.stored && o.source == FromStore {
		o.source = Waited
	}
	return &o
}

// quarantined believes a quarantine when it is answered twice: processes that looked
// dead may have been reconnecting.
func (f *flight) quarantined(left time.Duration) *outcome {
	if !f.suspicious {
		f.suspicious = true
		_ = sleep(f.by.ctx, secondLook)
		return nil
	}
	f.e.events.report(f.by.ctx, cache.KeyQuarantined, cache.Event{Key: f.key, Duration: left})
	return &outcome{
		err: fmt.Errorf("%w: %d processes died fetching %s; lifted in %v, or by Reset or Set",
			ErrQuarantined, f.e.policy.MaxAttempts, f.e.events.quote(f.key), left),
		own:    true,
		moment: f.moment,
	}
}

// held takes note of the holder.
func (f *flight) held(a *store.Answer) {
	if a.TTL == 0 { // the answer was brief: a later one tells
		a.TTL = f.request.TTL
	}
	f.heldMoment, f.unseen = f.moment, f.moment
	f.heldUntil, f.waiters = f.sent.Add(a.TTL), a.Waiting
	if a.Holder != f.request.LastHeld {
		holder := a.Holder
		f.holder.Store(&holder)
		f.unwatched = time.Time{}
		f.e.events.report(f.by.ctx, cache.LeaseHeld, cache.Event{Key: f.key, Token: cache.Token(a.Holder), Duration: a.TTL})
	}
	f.request.LastHeld = a.Holder
	switch {
	case !a.Unwatched:
		f.unwatched = time.Time{}
	case f.unwatched.IsZero():
		f.unwatched = time.Now()
	}
}

// outwaits reports whether a flight that got no answer goes on waiting for the lease that
// was held when it last got one. The holder may well be at work, and its outcome may
// still arrive: silence says nothing of it before the lease's end. A flight that may not
// fetch without a lease has nothing to wait for.
func (f *flight) outwaits(err error) bool {
	return errors.Is(err, store.ErrUnavailable) && !f.refusesUnguarded() && time.Now().Before(f.heldUntil)
}

// wait returns when there is reason to ask again, the end of the lease at the latest, of
// which so much is left; or with the outcome that a wake-up brought.
func (f *flight) wait(ctx context.Context, left time.Duration) *outcome {
	if f.watch == nil {
		f.waitSince = time.Now()
		f.waiting.Store(true)
		f.e.events.report(f.by.ctx, cache.WaitBegan, cache.Event{Key: f.key, Token: cache.Token(f.request.LastHeld)})
		f.watch = f.e.store.Watch(f.e.storeKey(f.key))
	}
	due := time.Now().Add(f.untilLook(left))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(min(time.Until(due), lateLook))
		select {
		case m := <-f.watch.C:
			if !f.noteTrace(m) {
				return f.woken(m)
			}
		case <-timer.C:
			if f.abandoned() {
				return retryOutcome() // for callers that have joined, or join at this very moment
			}
			late := !f.looked && f.e.flights.joinedSince(f, f.heldMoment)
			if late || !time.Now().Before(due) {
				f.looked = true
				return nil
			}
		case <-ctx.Done():
			return closedOutcome()
		}
	}
}

// untilLook is how long the flight waits before it looks at its holder. left is left of the
// lease, as far as is known.
func (f *flight) untilLook(left time.Duration) time.Duration {
	if !f.unwatched.IsZero() {
		return secondLook
	}
	d, end := lookAfter(f.waiters, !f.looked, left, rand.Float64()), left+time.Millisecond
	if f.moment != f.heldMoment {
		return min(d, end) // the store is silent: see outwaits
	}
	if d > end {
		// Until then the lease may be renewed, and live for as long again.
		f.heldUntil = time.Now().Add(d + f.request.TTL)
	}
	return d
}

// woken takes in a wake-up and those queued behind it. Only a message about the token
// last answered "held" decides: any other may be about a lease that was over before
// this flight's callers came. All others are reasons to ask again.
func (f *flight) woken(m store.Message) *outcome {
	for {
		if !f.noteTrace(m) && m.Token == f.request.LastHeld {
			f.heldUntil = time.Time{} // the lease was given back
			if o := f.told(m); o != nil {
				return o
			}
		}
		select {
		case m = <-f.watch.C:
		default:
			return nil
		}
	}
}

// told is the outcome that a message about the holder brings.
func (f *flight) told(m store.Message) *outcome {
	switch m.Signal {
	case store.FailedSignal:
		return &outcome{err: decodeFailure(m.Body, &f.e.policy), moment: f.heldMoment}
	case store.Filled:
		r := m.Reading()
		if !r.Found {
			return nil // too large to ride in the message: asking again returns it
		}
		if f.e.backlog.covers(f.key, &r.Entry, f.sent) {
			return nil // asking again tells
		}
		if len(r.Entry.Tags) > 0 {
			return nil // one may have been deleted before the entry was stored: asking again tells
		}
		switch {
		case r.Entry.Kind == store.Negative:
			return &outcome{err: ErrNotFound, entry: r, moment: f.heldMoment}
		case r.Entry.Kind == store.Bypass && r.Entry.Flags&store.FlagTooLarge != 0:
			return &outcome{then: fetchLocal, moment: f.heldMoment}
		case r.Entry.Kind == store.Bypass:
			return &outcome{then: fetchAlone, moment: f.heldMoment}
		}
		if value, err := f.e.packer.decode(r, f.e.packer.coder.decode); err == nil {
			return &outcome{value: value, source: Waited, stored: true, entry: r, at: time.Now(), moment: f.heldMoment}
		}
	}
	return nil
}

// noteTrace takes in the trace context of the fetch that the flight waits for. It reports
// false for a message that is not about one.
func (f *flight) noteTrace(m store.Message) bool {
	if m.Signal != store.Traced {
		return false
	}
	if len(m.Body) == len(cache.TraceContext{}) && m.Token == f.request.LastHeld {
		trace := cache.TraceContext(m.Body)
		f.trace.Store(&trace)
	}
	return true
}
