package guard

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// A turn is the right to fetch one key: under a lease, or without one, and then the
// result is not stored.
type turn struct {
	f       *flight
	lease   *store.Lease // nil: none
	source  Source       // of the value, for the caller that fetches
	leave   func()       // gives back the slot of an unguarded fetch; nil: there is none
	part    *part
	ticket  ticket // from before the fetch; of a guard with a reserve
	start   uint64 // sequence number of the fetch's start
	dropped atomic.Bool
	settled atomic.Bool // Turn.Wanted reads it at any time

	fill fill    // the memory of the fetch's
	out  outcome // and of that of its value
}

// drop is called when no caller can use the turn's result any more. A fetch is cancelled
// when all of its turns are dropped.
func (t *turn) drop() {
	if t.dropped.CompareAndSwap(false, true) && t.part.wanted.Add(-1) == 0 {
		t.part.cancel(errNotWanted)
	}
}

// lost is called, on a goroutine of its own, when the lease is gone while it should
// still be held.
func (t *turn) lost() {
	e := t.f.e
	e.flights.supersede(t.f, t.drop)
	defer func() { _ = recover() }() // of an Observer: it costs the flight nothing
	e.events.report(t.f.by.ctx, cache.LeaseLost, cache.Event{Key: t.f.key, Token: cache.Token(t.lease.Token), Attempt: t.lease.Attempt})
}

func (t *turn) reportGrant() {
	kind := cache.LeaseGranted
	if t.lease.TakenOver {
		kind = cache.LeaseTakenOver
	}
	t.f.e.events.report(t.f.by.ctx, kind, cache.Event{Trigger: t.f.trigger, Key: t.f.key, Token: cache.Token(t.lease.Token), Attempt: t.lease.Attempt})
}

// giveBack adds the release of a turn that is not settled.
func (t *turn) giveBack(back []store.Return) []store.Return {
	if t.lease == nil || t.settled.Swap(true) {
		return back
	}
	return append(back, store.Return{Lease: t.lease})
}

// An ending is the end of a turn: the return of its lease, and the outcome of its flight if
// that is carried out. If it is not, only callers that joined before the
// fetch started get the outcome.
type ending struct {
	t      *turn
	back   store.Return // a Return without entry and failure releases the lease
	out    *outcome
	start  uint64 // callers from this sequence number on can't use a result that was not stored
	tagged bool   // the value carries tags, stored or not
}

// returned completes the outcome with the answer to giving the lease back.
func (end *ending) returned(done store.Returned) {
	o, entry, f := end.out, end.back.Entry, end.t.f
	if !done.OK && (entry != nil || end.back.Failed) {
		o.moment = end.start
	}
	if entry == nil {
		return
	}
	ev := cache.Event{Key: f.key, Token: cache.Token(end.t.lease.Token), Size: len(entry.Payload), Err: done.Err}
	if !done.OK {
		ev.Reason = refusalReason(done.Err)
		f.e.events.report(f.by.ctx, cache.FillRefused, ev)
		if errors.Is(done.Err, store.ErrInvalidated) {
			f.e.events.invalidated.Add(1)
		}
		return
	}
	f.e.events.report(f.by.ctx, cache.FillStored, ev)
	o.stored = entry.Kind != store.Bypass
	if !o.stored && end.tagged || entry.Flags&store.FlagExpired != 0 {
		// It was not checked whether a tag was deleted since the fetch began; or one was
		// expired since.
		o.moment = end.start
	}
	if entry.Kind == store.Value {
		o.entry = &store.Reading{Entry: *entry, Found: true, Left: entry.TTL}
		f.e.standby.keep(f.key, end.t.ticket, o) // also of a refresh, or a Turn, that no caller waits for
	}
}

// ending decides how a turn ends after its fetch. The outcome's moment is now: the lease
// is given back next.
func (t *turn) ending(r *fill) ending {
	f, e := t.f, t.f.e
	end := ending{t: t, start: t.start, tagged: len(r.tags) > 0}
	switch {
	case r.err != nil && e.ctx.Err() != nil:
		if t.lease != nil {
			e.events.report(f.by.ctx, cache.LeaseReleased, cache.Event{Key: f.key, Token: cache.Token(t.lease.Token)})
		}
		end.out = closedOutcome()
		return end
	case errors.Is(r.err, errNotWanted):
		// The fetch was ended by the loss of its lease: a loss, not a failure. To release
		// the lease strikes its attempt from the record, and frees the key if the loss was
		// believed too early.
		end.out = retryOutcome()
		return end
	case errors.Is(r.err, ErrNotModified) && r.staleRead != nil:
		end.renew(r)
	case errors.Is(r.err, ErrNotModified):
		end.fail(f.nothingToRenew(r.err))
	case errors.Is(r.err, ErrNotFound) && r.private:
		end.store(nil, r, &outcome{err: r.err, private: true})
	case errors.Is(r.err, ErrNotFound) && e.policy.Negative != Off:
		pause, _ := PauseOf(r.err)
		d := min(max(e.policy.Negative, pause), store.MaxTTL)
		entry := &store.Entry{Kind: store.Negative, TTL: d, FreshFor: d, Tags: e.tags.stored(r.tags), Stamp: t.part.stamp}
		end.store(entry, r, &outcome{err: r.err})
	case r.err != nil:
		end.fail(r.err)
	default:
		t.out.value, t.out.private = r.value, r.private
		end.store(nil, r, &t.out)
	}
	return end
}

// store is the end of a turn that brought a value, or knows that there is none. All
// callers that joined before now share the outcome if the entry is stored; nil stands
// for that of the fetched value.
func (end *ending) store(entry *store.Entry, r *fill, o *outcome) {
	t, e := end.t, end.t.f.e
	end.out = o
	if o.err == nil {
		o.source = t.source
	}
	if t.lease == nil {
		o.moment = end.start
		t.keepFetched(entry, r)
		return
	}
	o.moment, o.at = e.sequence.Add(1), time.Now()
	if entry == nil {
		entry = t.entryOf(r)
	}
	entry.Took = r.took
	end.back.Entry = entry
	if len(entry.Tags) == 0 {
		return
	}
	p := t.part
	if p.stampErr != nil || p.stamp == (store.Stamp{}) {
		e.events.report(t.f.by.ctx, cache.FillRefused, cache.Event{
			Reason: telemetry.ReasonTag,
			Key:    t.f.key, Token: cache.Token(t.lease.Token), Size: len(entry.Payload), Err: errors.Join(errNoStamp, p.stampErr),
		})
		o.moment = end.start
		end.back.Entry = nil
	}
}

// keepFetched puts the outcome of a fetch that was made without a lease into the reserve, as
// the entry; nil stands for that of the fetched value.
func (t *turn) keepFetched(entry *store.Entry, r *fill) {
	s := t.f.e.reserve
	if s == nil || t.source != UnguardedFetch || r.private || entry == nil && len(r.entry.Payload) > t.f.e.policy.MaxBytes {
		return
	}
	if entry == nil {
		entry = t.entryOf(r)
	}
	if entry.FreshFor <= 0 {
		return
	}
	kept := *entry
	kept.Took = r.took
	kept.Version = randomToken()
	s.keep(t.f.key, t.ticket, &store.Reading{Entry: kept, Found: true, Left: kept.TTL}, time.Now(), true)
}

// renew stores the stale value for another TTL, with the tags that it has, as the
// upstream said that it is good. A value that is private from now on is not stored.
func (end *ending) renew(r *fill) {
	f, e := end.t.f, end.t.f.e
	end.start = min(end.start, f.knownMoment) // a later caller may have come after a Delete of it
	o := &outcome{value: r.stale, private: r.private}
	old := &r.staleRead.reading.Entry
	end.tagged = end.tagged || len(old.Tags) > 0
	if r.private {
		end.store(nil, r, o)
		return
	}
	stamp := end.t.part.stamp
	entry := &store.Entry{
		Kind: store.Value, Codec: old.Codec, Flags: old.Flags&store.FlagCompressed | r.staleUse.flags(), Payload: old.Payload,
		Tags: old.Tags, Stamp: stamp,
	}
	if len(old.Tags) > 0 {
		// The deletion of a tag may have drawn its number before this fetch's stamp was
		// read, and be recorded after the value was read. The value's own stamp finds it.
		entry.Stamp.Epoch, entry.Stamp.N, entry.Renewed = old.Stamp.Epoch, old.Stamp.N, stamp.N
	}
	entry.FreshFor, entry.TTL = lifetime(r, &e.policy)
	end.store(entry, r, o)
}

// fail is the end of a turn after a failed fetch. The key is paused if the fetch asked
// for that, or if callers have an entry to live on: a stale one, or one that was to be
// refreshed early.
func (end *ending) fail(cause error) {
	t, f, e := end.t, end.t.f, end.t.f.e
	end.out = &outcome{err: cause}
	if t.lease == nil {
		end.out.moment = end.start
		// Each of the callers that share it would repeat a failure.
		return
	}
	pause, _ := PauseOf(cause)
	var answer *retryAfterError
	asked := pause > 0 || errors.As(cause, &answer) // for none, if its pause is zero
	exhausted := isExhausted(cause)
	if exhausted {
		asked = true // for none, unless it did: the budget is exhausted and not the key
	}
	if r, waited := f.known.found(), f.known.waited(); r != nil && !asked && e.policy.ErrorPause != Off &&
		(servableIfError(r, waited) || f.kind == background && r.Fresh()) {
		// It ends with the entry that callers live on meanwhile.
		pause = min(errorPause(&e.policy, t.lease.Failures), livedOn(r, waited, end.out.maskable(&e.policy), &e.policy))
	}
	pause = min(pause, store.MaxTTL)
	end.back = store.Return{
		Failed: true, Failure: encodeFailure(cause, pause, &e.policy), Pause: pause,
		Declined: exhausted, // no fetch was made: it forgives no deaths
	}
	end.out.moment = e.sequence.Add(1)
}

// entryOf is the entry of a fetched value, or a marker where it can't be stored.
func (t *turn) entryOf(r *fill) *store.Entry {
	f, p := t.f, &t.f.e.policy
	if r.private {
		return &store.Entry{Kind: store.Bypass, TTL: p.Bypass, FreshFor: p.Bypass}
	}
	// MaxBytes bounds the encoded value; a compressed one may be smaller or equal.
	if size := len(r.entry.Payload); size > p.MaxBytes {
		f.e.events.report(f.by.ctx, cache.FillTooLarge, cache.Event{Key: f.key, Size: size})
		return &store.Entry{Kind: store.Bypass, Flags: store.FlagTooLarge, TTL: p.Bypass, FreshFor: p.Bypass}
	}
	r.entry.FreshFor, r.entry.TTL = lifetime(r, p)
	r.entry.Flags |= r.staleUse.flags()
	r.entry.Tags, r.entry.Stamp = f.e.tags.stored(r.tags), t.part.stamp
	return r.entry
}
