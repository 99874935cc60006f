package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/callers"
)

// A fetched is what a fetch came to.
type fetched struct {
	value any
	entry *cache.Entry // of the value, packed
	err   error
	took  time.Duration
	fill  fill // with what the fetch said of its value
	stamp cache.Stamp
	// stampErr is why there is no stamp.
	stampErr error
	lost     bool // the lease was lost, and the fetch given up as nobody could use it
}

// runFetch runs the fetch in a goroutine of its own, so that neither a hung
// fetch nor one that panics or exits its goroutine takes the flight along. It
// returns at FetchTimeout, whether the fetch heeds its context or not, when ctx
// ends, or when unwanted is closed. lost is called when the lease is lost, and
// returns a channel that takes the place of unwanted. fl is nil where a caller fetches
// for itself.
func (e *engine) runFetch(ctx context.Context, c call, fl *flight, f *fill, lease *cache.Lease, lost func() <-chan struct{}, unwanted <-chan struct{}) *fetched {
	timeout := &timedOut{e, c.key}
	ctx, cancel := context.WithTimeoutCause(ctx, e.policy.FetchTimeout, timeout)
	defer cancel()
	var leaseLost <-chan struct{}
	ev := Event{Key: c.key, Attempt: f.attempt}
	if lease != nil {
		leaseLost, ev.Token = lease.Lost(), lease.Token
	}
	called := false
	defer func() { refundUnless(&called, f.expense) }()
	e.observeAs(cache.FetchStarted, ev)
	start := time.Now()
	called = true
	// It ends when the user's fetch does, which may be long after it was given up:
	// so it works on a fill of its own.
	under := &fetching{done: make(chan struct{})}
	under.fill = *f
	go e.callFetch(ctx, c, fl, under)
	var r *fetched
	for r == nil {
		select {
		case <-under.done:
			r = &under.fetched
		case <-ctx.Done():
			r = &fetched{fill: *f, err: context.Cause(ctx)}
		case <-leaseLost:
			e.observeAs(cache.LeaseLost, ev)
			leaseLost, unwanted = nil, lost()
		case <-unwanted:
			r = &fetched{fill: *f, lost: true, err: context.Canceled}
		}
	}
	r.took = time.Since(start)
	if errors.Is(r.err, context.DeadlineExceeded) && context.Cause(ctx) == error(timeout) {
		r.err = timeout // the fetch heeded its context
	}
	ev.Duration, ev.Err = r.took, r.err
	e.observeAs(endOfFetch(r.err), ev)
	return r
}

// timedOut is why a fetch was ended at FetchTimeout. Hardly any is, so that its
// words are not put together before.
type timedOut struct {
	e   *engine
	key string
}

func (t *timedOut) Error() string {
	return fmt.Sprintf("%v: %s took longer than %v", ErrFetchTimeout, t.e.about(t.key), t.e.policy.FetchTimeout)
}

// Unwrap is for [errors.Is].
func (t *timedOut) Unwrap() error { return ErrFetchTimeout }

// A fetching is a fetch that is under way, and what it has come to when done is
// closed.
type fetching struct {
	fetched
	done chan struct{}
}

// callFetch calls the user's fetch and packs its value, and is done with r
// whatever becomes of it.
func (e *engine) callFetch(ctx context.Context, c call, fl *flight, r *fetching) {
	f := &r.fill
	ctx, frame := enter(ctx, e, c.key, fl)
	returned := false
	defer func() {
		frame.ended.Store(true)
		if !returned {
			// A panic or a Goexit: recover tells them apart.
			r.value, r.entry, r.err = nil, nil, ErrGoexit
			if p := recover(); p != nil {
				r.err = &PanicError{Value: p, Stack: debug.Stack()}
			}
		}
		close(r.done)
		if f.expense != nil {
			// Here, as a fetch that was given up goes on calling its upstream; and
			// nobody waits for it.
			f.expense.Settle(f.cost)
		}
	}()
	r.value, r.err = c.fetch(ctx, f)
	if r.err != nil {
		_ = r.err.Error() // one that panics, a typed nil say, does so here
		r.err = e.notFound(r.err)
	}
	if r.err == nil {
		f.tags = slices.Concat(f.tags, e.tagsOfValue(c.key, r.value))
	}
	switch {
	case errors.Is(r.err, ErrNotModified):
		if tag, added := e.addedTag(f); added {
			// It doesn't wrap ErrNotModified, which is no reason for a warning.
			r.err = fmt.Errorf("guard: the fetch answered ErrNotModified and added the tag %q, which the stored value of %s does not carry: return the value to change its tags", tag, e.about(c.key))
		}
	case r.err == nil, errors.Is(r.err, ErrNotFound):
		if err := checkTags(f.tags); err != nil {
			r.err = fmt.Errorf("guard: Fill.Tags: %w", err)
		}
	}
	if r.err == nil && !f.private {
		r.entry, r.err = e.pack(r.value)
	}
	returned = true
}

// lead fetches under a lease that was granted, and gives it back with the
// outcome.
func (p *pursuit) lead(lease *cache.Lease) (o *outcome) {
	if !p.f.claimFetch() {
		_ = p.store.Release(context.WithoutCancel(p.ctx), lease)
		return goRound()
	}
	defer func() {
		if o == nil { // something panicked: an Observer, or a method of the fetch's error
			_ = p.store.Release(context.WithoutCancel(p.ctx), lease)
		}
	}()
	ev := Event{Kind: cache.LeaseGranted, Key: p.call.key, Token: lease.Token, Attempt: lease.Attempt}
	if lease.TakenOver {
		ev.Kind = cache.LeaseTakenOver
	}
	p.observe(ev)
	var paid fill
	if err := p.afford(&paid, lease); err != nil {
		return p.unaffordable(lease, err)
	}
	fetching := false
	defer refundUnless(&fetching, paid.expense)
	if paid.waited {
		p.stamping = nil // what was deleted meanwhile would spoil the fetch
	}
	stamp, stampErr := p.stamp()
	if p.call.telling {
		p.recheck()
	}
	f := p.newFill()
	f.attempt, f.token = lease.Attempt, lease.Token
	f.cost, f.expense = paid.cost, paid.expense
	start := p.fs.fetching(p.f, p.tick)
	fetching = true
	lost := func() <-chan struct{} { return p.fs.supersede(p.call.key, p.f) }
	r := p.runFetch(callers.With(p.ctx, p), p.call, p.f, f, lease, lost, nil)
	r.stamp, r.stampErr = stamp, stampErr
	if !p.call.telling {
		p.withStale(r)
	}
	return p.giveBack(p.ending(lease, start, r))
}

// An ending is how a lease is to be given back after its fetch, and what the
// flight comes to if that is carried out. If it isn't, the outcome is only for
// those who came before the fetch started.
type ending struct {
	back  cache.Return
	o     *outcome
	start uint64 // of the fetch
	// tagged: what was fetched carries tags, whatever becomes of it.
	tagged bool
}

// ending decides. The outcome's moment is now: the lease is given back next.
func (p *pursuit) ending(lease *cache.Lease, start uint64, r *fetched) ending {
	released := func(o *outcome) ending { return ending{back: cache.Return{Lease: lease}, o: o, start: start} }
	switch {
	case r.err != nil && p.engine.ctx.Err() != nil:
		p.observe(Event{Kind: cache.LeaseReleased, Key: p.call.key, Token: lease.Token})
		return released(guardClosed())
	case r.lost, errors.Is(r.err, errNotWanted):
		// The fetch was ended by the loss of its lease: a loss, not a failure. To
		// release the lease strikes its attempt from the record, and frees the key
		// if the loss was believed too early.
		return released(goRound())
	case errors.Is(r.err, ErrNotFound) && r.fill.private:
		return p.fill(lease, start, p.entryOf(r), r, &outcome{err: r.err, private: true})
	case errors.Is(r.err, ErrNotFound) && p.policy.Negative != Off:
		pause, _ := PauseOf(r.err)
		d := min(max(p.policy.Negative, pause), cache.MaxTTL)
		entry := &cache.Entry{Kind: cache.Negative, TTL: d, FreshFor: d, Tags: p.storeTags(r.fill.tags), Stamp: r.stamp}
		return p.fill(lease, start, entry, r, &outcome{err: r.err})
	case errors.Is(r.err, ErrNotModified):
		return p.renew(lease, start, r)
	case r.err != nil:
		return p.fail(lease, start, r.err)
	}
	return p.fill(lease, start, p.entryOf(r), r, &outcome{value: r.value, source: Fetched, private: r.fill.private})
}

// giveBack gives the lease back, whatever became of the flight.
func (p *pursuit) giveBack(e ending) *outcome {
	ctx := context.WithoutCancel(p.ctx)
	var done cache.Returned
	switch {
	case e.back.Entry != nil:
		done.OK, done.Err = p.store.Fill(ctx, e.back.Lease, e.back.Entry)
	case e.back.Declined:
		done.OK, done.Err = p.store.Decline(ctx, e.back.Lease, e.back.Failure, e.back.Pause)
	case e.back.Failed:
		done.OK, done.Err = p.store.Fail(ctx, e.back.Lease, e.back.Failure, e.back.Pause)
	default:
		_ = p.store.Release(ctx, e.back.Lease)
		return e.o
	}
	if errors.Is(done.Err, cache.ErrRefused) {
		// Redis is full, say: it will take the lease back all the same.
		_ = p.store.Release(ctx, e.back.Lease)
	}
	return p.given(e, done)
}

// given completes the outcome by what became of the lease.
func (p *pursuit) given(e ending, done cache.Returned) *outcome {
	o, entry := e.o, e.back.Entry
	if !done.OK && (entry != nil || e.back.Failed) {
		o.moment = e.start
	}
	if entry == nil {
		return o
	}
	ev := Event{Key: p.call.key, Token: e.back.Lease.Token, Size: len(entry.Payload), Err: done.Err}
	if !done.OK {
		p.observeAs(cache.FillRefused, ev)
		if errors.Is(done.Err, cache.ErrInvalidated) {
			p.counters.invalidated.Add(1)
		}
		return o
	}
	p.observeAs(cache.FillStored, ev)
	o.stored = entry.Kind != cache.Bypass
	if !o.stored && e.tagged || entry.Flags&cache.FlagExpired != 0 {
		// Nobody has looked whether a tag was deleted since the fetch began; or one
		// was expired since.
		o.moment = e.start
	}
	if entry.Kind == cache.Value {
		o.entry = &cache.Reading{Entry: *entry, Found: true, Left: entry.TTL}
	}
	return o
}

// newFill presets what a fetch may change. The last value is for validation only if
// it carries the policy's tags: a renewal would keep it without them.
func (p *pursuit) newFill() *fill {
	f := &fill{attempt: 1, ttl: p.policy.TTL, staleFor: p.policy.Stale, tags: p.policy.Tags}
	r := p.known
	if r == nil || !r.Found || r.Entry.Kind != cache.Value {
		return f
	}
	if _, lacks := p.lackedTag(&r.Entry, p.policy.Tags); lacks {
		return f
	}
	if value, err := p.unpack(p.call.key, r); err == nil {
		f.stale, f.staleReading = value, r
	}
	return f
}

// entryOf is what is stored of a fetched value: the value, or a marker where it
// may not be.
func (p *pursuit) entryOf(r *fetched) *cache.Entry {
	if r.fill.private {
		return &cache.Entry{Kind: cache.Bypass, TTL: p.policy.Bypass, FreshFor: p.policy.Bypass}
	}
	// MaxBytes bounds what is encoded; what is packed may be smaller or equal.
	if size := len(r.entry.Payload); size > p.policy.MaxBytes {
		p.observe(Event{Kind: cache.FillTooLarge, Key: p.call.key, Size: size})
		return &cache.Entry{Kind: cache.Bypass, Flags: cache.FlagTooLarge, TTL: p.policy.Bypass, FreshFor: p.policy.Bypass}
	}
	r.entry.FreshFor, r.entry.TTL = lifetime(&r.fill, &p.policy)
	r.entry.Flags |= r.fill.staleUse.flags()
	r.entry.Tags, r.entry.Stamp = p.storeTags(r.fill.tags), r.stamp
	return r.entry
}

// renew stores the stale value for another TTL, with the tags that it has, as the
// upstream said that it is still good. A value that is private from now on is not
// stored.
func (p *pursuit) renew(lease *cache.Lease, start uint64, r *fetched) ending {
	f := &r.fill
	start = min(start, p.knownMoment) // a later caller may have come after a Delete of the known value
	if f.staleReading == nil {
		return p.fail(lease, start, p.nothingToRenew(r.err))
	}
	old := f.staleReading.Entry
	if f.private {
		e := p.fill(lease, start, p.entryOf(r), r, &outcome{value: f.stale, source: Fetched, private: true})
		e.tagged = e.tagged || len(old.Tags) > 0
		return e
	}
	entry := &cache.Entry{
		Kind: cache.Value, Codec: old.Codec, Flags: old.Flags&cache.FlagCompressed | f.staleUse.flags(), Payload: old.Payload,
		Tags: old.Tags, Stamp: r.stamp,
	}
	if len(old.Tags) > 0 {
		// The deletion of a tag may have drawn its number before this fetch's stamp was
		// read, and be recorded after the value was read. The value's own stamp finds it.
		entry.Stamp.Epoch, entry.Stamp.N, entry.Renewed = old.Stamp.Epoch, old.Stamp.N, r.stamp.N
	}
	entry.FreshFor, entry.TTL = lifetime(f, &p.policy)
	return p.fill(lease, start, entry, r, &outcome{value: f.stale, source: Fetched})
}

// nothingToRenew is the error of a fetch that answered ErrNotModified, which is why,
// and was given no stale value.
func (p *pursuit) nothingToRenew(why error) error {
	if r := p.known; r != nil && r.Found && r.Entry.Kind == cache.Value {
		if tag, lacks := p.lackedTag(&r.Entry, p.policy.Tags); lacks {
			return fmt.Errorf("guard: the stored value of %s lacks the tag %q of Policy.Tags, and so the fetch was given no stale value: return the value: %w", p.about(p.call.key), tag, why)
		}
	}
	return fmt.Errorf("guard: the fetch answered ErrNotModified and was given no stale value: %w", why)
}

// fill stores the entry, whose tags and stamp are set. The outcome is shared with all
// callers who came before that if the entry is accepted.
func (p *pursuit) fill(lease *cache.Lease, start uint64, entry *cache.Entry, r *fetched, o *outcome) ending {
	entry.Took = r.took
	o.moment, o.at = p.tick(), time.Now()
	e := ending{back: cache.Return{Lease: lease, Entry: entry}, o: o, start: start, tagged: len(r.fill.tags) > 0}
	if len(entry.Tags) > 0 {
		if r.stampErr != nil || r.stamp == (cache.Stamp{}) {
			p.observeAs(cache.FillRefused, Event{
				Key: p.call.key, Token: lease.Token, Size: len(entry.Payload), Err: errors.Join(errNoStamp, r.stampErr),
			})
			o.moment = start
			e.back.Entry = nil
		}
	}
	return e
}

// fail gives the lease back with an error, and a pause if the fetch asked for
// one or there is a value to live on: a stale one, or one that is refreshed early.
// What an exhausted budget could not pay for was not made: it forgives no deaths.
func (p *pursuit) fail(lease *cache.Lease, start uint64, cause error) ending {
	pause, asked := PauseOf(cause)
	exhausted := isExhausted(cause)
	if exhausted {
		asked = true // for none, unless it did: not the key is exhausted, and the budget remembers it better
	}
	o := &outcome{err: cause}
	waited := time.Since(p.knownAt)
	livesOn := servableIfError(p.known, waited) || p.background && p.known != nil && p.known.Fresh()
	if livesOn && !asked && p.policy.ErrorPause != Off {
		// It ends with the value that callers live on meanwhile.
		pause = min(errorPause(&p.policy, lease.Failures), livedOn(p.known, waited, p.maskable(o), &p.policy))
	}
	pause = min(pause, cache.MaxTTL)
	back := cache.Return{Lease: lease, Failed: true, Declined: exhausted, Failure: encodeFailure(cause, pause, &p.policy), Pause: pause}
	o.moment = p.tick()
	return ending{back: back, o: o, start: start}
}
