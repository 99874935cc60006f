package guard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// engine is a Guard without its type: values are *V in an any.
type engine struct {
	store  cache.Store
	name   string
	policy Policy
	coder  coder
	codec  cache.Codec
	tagsOf func(key string, value any) []string // nil: none

	// numbers orders callers and commands of this process: clocks can tie.
	numbers atomic.Uint64

	counters  counters
	near      *near   // nil: none
	flights   flights // callers wait for these
	refreshes flights // nobody waits for these
	locals    flights // callers of keys whose values are too large to store
	forced    flights // callers of Refresh
	foresight foresight
	unguarded chan struct{}
	doomed    atomic.Int64 // flights that ask for a lease though their budget is known to be exhausted

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	closing atomic.Bool
}

func newEngine(store cache.Store, name string, p Policy, c coder, codec cache.Codec) *engine {
	e := &engine{
		store: store, name: name, policy: p, coder: c, codec: codec,
		unguarded: make(chan struct{}, p.MaxUnguarded),
	}
	for _, fs := range e.allFlights() {
		fs.init()
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// storeKey is the user's key as the store knows it. A name can't hold a colon,
// so no two guards share a key.
func (e *engine) storeKey(key string) string { return e.storePrefix() + key }

// storePrefix stands in front of all of them.
func (e *engine) storePrefix() string { return e.name + ":" }

// tick draws a number: greater than all drawn before it, in any goroutine.
func (e *engine) tick() uint64 { return e.numbers.Add(1) }

func (e *engine) allFlights() []*flights {
	return []*flights{&e.flights, &e.refreshes, &e.locals, &e.forced}
}

// misused is the error of a call with a nil context, or else with a nil fetch.
func (e *engine) misused(ctx context.Context) error {
	e.counters.errOther.Add(1)
	if ctx == nil {
		return errNilContext
	}
	return errNilFetch
}

// load is one call of Get, Load or Refresh.
func (e *engine) load(c call) *outcome {
	o := e.pursue(c)
	if o.late() && e.policy.OnWaitTimeout == StaleOrFetch {
		o = e.insteadOfWaiting(c, o)
	}
	e.counters.served(o, c.ctx.Err() != nil)
	return o
}

// pursue goes round until there is an outcome for this caller.
func (e *engine) pursue(c call) *outcome {
	if o := e.endedFor(c.ctx, nil); o != nil {
		return o
	}
	var (
		num    uint64 // this caller's, drawn when it first needs one
		fs     = e.flightsOf(c)
		began  = time.Now()
		waited = patience{end: began.Add(e.policy.WaitTimeout)}
		soft   = patience{end: began.Add(e.policy.SoftTimeout), off: e.policy.SoftTimeout == 0 || c.force}
	)
	defer waited.stop()
	defer soft.stop()
	if c.force {
		num = e.tick() // before it reads: what is stored later is new to it
	}
	var t ticket // of the first round: what is accepted in a later one may rest on a command as old
	if e.near != nil {
		t = e.near.ticket(c.key)
	}
	for round := 0; ; round++ {
		// While the key has a flight a newcomer joins it unread: the sharing rule
		// says whether its outcome will do, and commands don't grow with callers. Nor
		// is a key read that isn't there anyway, as far as can be foreseen.
		var rd read
		var o *outcome // nil: to be fetched
		if round > 0 || !fs.has(c.key) && !e.foreseesMiss(c) {
			rd = e.read(c)
			if o := e.endedFor(c.ctx, rd.err); o != nil {
				return o
			}
			if !c.force {
				o = e.judge(rd, c)
			}
		}
		if o == nil || o.then == fetch {
			if within(c.ctx, e, c.key) {
				return e.reentrant(c.key)
			}
			if num == 0 {
				num = e.tick()
			}
			known := rd // rd itself would be allocated for each hit, too
			o = e.share(sharing{call: c, num: num, fs: fs}, &waited, &soft, &rd,
				func(f *flight) *outcome {
					o := e.fly(fs, f, c, known)
					if c.force && e.near != nil && o.stored {
						// What it replaces may be fresh, and its callers may have left.
						e.near.forget(c.key)
					}
					return o
				})
		}
		if o.then == fetchLocal {
			o = e.shareLocally(c, &waited)
		}
		switch o.then {
		case fetchAlone:
			return e.alone(c, o.entry)
		case fetch:
			waited.again(e.policy.WaitTimeout)
			continue
		}
		if o.refresh != nil {
			e.tellStale(c.key, o)
			e.refresh(c, read{reading: o.refresh, at: o.at})
		}
		if e.near != nil && o.err == nil && o.stored && o.source != Stale {
			e.near.put(c.key, t, o.value, o.entry, dueAt(&o.entry.Entry, e.policy.Beta), o.at)
		}
		if c.force {
			return o
		}
		return e.mask(c, o, rd)
	}
}

// flightsOf are the flights that a call may share.
func (e *engine) flightsOf(c call) *flights {
	if c.force {
		return &e.forced
	}
	return &e.flights
}

// A read is what a caller has read, and when. The zero read is none.
type read struct {
	reading *cache.Reading // nil: none, or an error
	err     error
	at      time.Time // before it was sent
}

func (rd *read) none() bool { return rd.reading == nil && rd.err == nil }

func (e *engine) read(c call) read {
	at := time.Now()
	r, err := e.store.Read(c.ctx, e.storeKey(c.key))
	if err != nil {
		r = nil
	}
	if err != nil || r.Seen != "" {
		e.foresight.met(true) // of what isn't there a flight tells, once for all its callers
	}
	return read{r, err, at}
}

// foreseesMiss reports whether a call had better ask for the lease at once. One
// that is to replace what is stored has to know it; and within a fetch of its own
// key, or without a budget for one, only what is stored can help.
func (e *engine) foreseesMiss(c call) bool {
	return !c.force && e.foresight.miss() && !within(c.ctx, e, c.key) &&
		(e.policy.Budget == nil || !e.policy.Budget.Exhausted(e.policy.Priority))
}

// endedFor is the outcome for a caller whose context ended, or whose store was
// closed; nil if it may go on.
func (e *engine) endedFor(ctx context.Context, err error) *outcome {
	if ctx.Err() != nil {
		return &outcome{err: context.Cause(ctx)}
	}
	if e.ctx.Err() != nil || errors.Is(err, cache.ErrClosed) {
		return guardClosed()
	}
	return nil
}

// judge is the outcome that a reading alone allows.
func (e *engine) judge(rd read, c call) *outcome {
	r := rd.reading
	if r == nil {
		return &outcome{then: fetch}
	}
	if r.Damage != nil {
		e.damaged(c.key, r, r.Damage)
	}
	act := decide(r, &e.policy)
	switch act {
	case notFound:
		return &outcome{err: ErrNotFound, entry: r}
	case fetch, fetchAlone, fetchLocal:
		return &outcome{then: act, entry: r}
	}
	value, err := e.unpack(c.key, r)
	if err != nil {
		return &outcome{then: fetch}
	}
	o := &outcome{value: value, source: FromRedis, stored: true, entry: r, at: rd.at}
	switch {
	case act == serveStale:
		o.source, o.refresh = Stale, r
	case r.Age >= dueAt(&r.Entry, e.policy.Beta):
		o.refresh = r
	}
	return o
}

// tellStale tells of a stale value, if it is one, that is served while it is to be
// refreshed.
func (e *engine) tellStale(key string, o *outcome) {
	if o.source == Stale {
		e.observe(Event{Kind: cache.StaleServed, Key: key, Token: o.entry.Entry.Version, Duration: o.entry.Age})
	}
}

// A sharing is one caller's wait for a flight.
type sharing struct {
	call
	num uint64 // the caller's
	fs  *flights
}

// share waits for the key's flight among s.fs until there is an outcome that the
// caller may have. The first caller of a flight brings the function that it runs. rd is
// the caller's own read, for a wait that takes long; without one the flight's takes its
// place. A call from within a fetch that the flight waits for returns at once.
//
// The pointers are not kept: what they point to needn't be allocated.
func (e *engine) share(s sharing, waited, soft *patience, rd *read, run func(*flight) *outcome) *outcome {
	f, result, first := s.fs.join(s.key, s.num, run)
	if f == nil {
		return guardClosed()
	}
	defer s.fs.leave(f, s.num)
	if inner := frameOf(s.ctx); inner != nil {
		w := wait{e, s.key, f}
		if !inner.await(w) {
			return e.deadlocked(s.key)
		}
		defer inner.done(w)
	}
	var superseded <-chan struct{} = f.superseded
	for {
		select {
		case res := <-result:
			f.borrow(s.num, rd)
			return res.Val.(*outcome).forCaller(s.num, first)
		case <-superseded:
			var o *outcome
			if o, superseded = s.fs.sentOff(f, s.num); o != nil {
				return o
			}
		case <-s.ctx.Done():
			return &outcome{err: context.Cause(s.ctx)}
		case <-soft.over():
			soft.stop()
			f.borrow(s.num, rd)
			if o := e.mask(s.call, &outcome{err: errSoftTimeout}, *rd); o.err == nil {
				return o
			}
		case <-waited.over():
			if first && !e.mayLeave(s.fs, f) {
				waited.stop()
				continue
			}
			return e.waitedTooLong(s.key)
		}
	}
}

// waitedTooLong is the outcome for a caller who has waited for WaitTimeout.
func (e *engine) waitedTooLong(key string) *outcome {
	return &outcome{err: fmt.Errorf("%w (%v) for %s", ErrWaitTimeout, e.policy.WaitTimeout, e.about(key)), own: true}
}

// shareLocally waits for a fetch by a caller of this process that started after
// this one came. Nothing is read in between: it would not be stored.
func (e *engine) shareLocally(c call, waited *patience) *outcome {
	if within(c.ctx, e, c.key) {
		return e.reentrant(c.key)
	}
	num := e.tick()
	for {
		o := e.share(sharing{call: c, num: num, fs: &e.locals}, waited, &patience{off: true}, &read{},
			func(f *flight) *outcome { return e.local(f, c) })
		if o.then != fetch {
			return o
		}
		waited.again(e.policy.WaitTimeout)
	}
}

// mask serves what this caller read instead of an error, if the policy says so;
// if it has read nothing yet, it does now. Either was sent for after it came, so
// this needs no sharing rule.
func (e *engine) mask(c call, o *outcome, rd read) *outcome {
	if o.err == nil || e.policy.StaleIfError == 0 || c.ctx.Err() != nil || !e.maskable(o) {
		return o
	}
	if rd.none() {
		rd = e.read(c)
	}
	r, waited := rd.reading, time.Since(rd.at)
	if !servableIfError(r, waited) {
		return o
	}
	value, err := e.unpack(c.key, r)
	if err != nil {
		return o
	}
	older := &cache.Reading{Entry: r.Entry, Found: true, Age: r.Age + waited, Left: r.Left - waited}
	e.observe(Event{Kind: cache.StaleServed, Key: c.key, Token: r.Entry.Version, Duration: older.Age, Err: o.err})
	return &outcome{value: value, source: Stale, stored: true, entry: older}
}

// maskable reports whether a stale value may stand in for the outcome's error.
func (e *engine) maskable(o *outcome) bool {
	switch {
	case errors.Is(o.err, ErrNotFound), o.own && errors.Is(o.err, ErrClosed):
		return false
	case o.late():
		return e.policy.OnWaitTimeout != ErrorAlways
	case errors.Is(o.err, errSoftTimeout), e.policy.StaleOn == nil:
		return true
	}
	return e.policy.StaleOn(o.err)
}

// errSoftTimeout is never returned: it is masked, or the wait goes on.
var errSoftTimeout = errors.New("guard: the fetch takes longer than Policy.SoftTimeout")

// refresh starts the background flight of a key unless there is one.
func (e *engine) refresh(c call, rd read) {
	if e.policy.Budget != nil && e.policy.Budget.Exhausted(Background) {
		return // or each stale hit would ask for a lease to be told so
	}
	if e.refreshes.has(c.key) {
		return // singleflight would keep a channel for each call until it ends
	}
	f, _, first := e.refreshes.join(c.key, 0, func(f *flight) *outcome {
		o := e.fly(&e.refreshes, f, c, rd)
		e.tellRefreshed(f, c.key, o)
		return o
	})
	if first {
		e.counters.refreshes.Add(1)
	}
	if f != nil {
		e.refreshes.leave(f, 0)
	}
}

// tellRefreshed tells of a refresh that has failed. One that learned of a pause, or
// of what somebody else's fetch came to, has not: that was told by itself, and while
// a pause lasts each stale hit may be followed by a flight that learns of it.
func (e *engine) tellRefreshed(f *flight, key string, o *outcome) {
	if o.err == nil || errors.Is(o.err, ErrNotFound) {
		return
	}
	if e.refreshes.leading(f) || errors.Is(o.err, ErrUnavailable) {
		e.observe(Event{Kind: cache.RefreshFailed, Key: key, Err: o.err})
	}
}

// errorFor is the outcome's error as callers get it.
func (e *engine) errorFor(o *outcome) error {
	if o.own && errors.Is(o.err, ErrClosed) {
		return e.errClosed()
	}
	return o.err
}

// errClosed names the guard that was closed, or whose store was.
func (e *engine) errClosed() error {
	if e.closing.Load() {
		return fmt.Errorf("%w: guard %q", ErrClosed, e.name)
	}
	return fmt.Errorf("%w: guard %q: %w", ErrClosed, e.name, cache.ErrClosed)
}

// close ends all flights; those that hold a lease release it.
func (e *engine) close() {
	e.closing.Store(true)
	for _, fs := range e.allFlights() {
		fs.close()
	}
	e.cancel()
	for _, fs := range e.allFlights() {
		fs.wg.Wait()
	}
	if e.near != nil {
		e.near.close()
	}
}

// unavailable wraps an error for callers, of a store that isn't closed.
func unavailable(err error) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// A patience is a timer that is made when it is first needed.
type patience struct {
	end   time.Time
	timer *time.Timer
	off   bool
}

func newPatience(d time.Duration) *patience { return &patience{end: time.Now().Add(d)} }

func (p *patience) over() <-chan time.Time {
	if p.off {
		return nil
	}
	if p.timer == nil {
		p.timer = time.NewTimer(time.Until(p.end))
	}
	return p.timer.C
}

func (p *patience) stop() {
	p.off = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// again starts one anew that was stopped: for the fetch of another, after one's own.
func (p *patience) again(d time.Duration) {
	if p.off {
		*p = *newPatience(d)
	}
}
