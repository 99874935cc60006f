package guard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/callers"
)

// How a waiting flight looks after its holder, besides being woken: every 50 ms
// at first, slowing down to 250 ms; and once more 50 ms after a look that found
// nobody, as a slot that has just moved looks the same once.
const (
	firstPoll  = 50 * time.Millisecond
	lastPoll   = 250 * time.Millisecond
	secondLook = 50 * time.Millisecond

	// holdOff keeps a refresh that came to nothing from being followed at once by
	// the next: many callers are being served stale values meanwhile.
	holdOff = 250 * time.Millisecond
)

// A pursuit is the state of one flight on its way to an outcome: it asks for the
// lease, and fetches if it is granted, or waits for the one who holds it and
// asks again.
type pursuit struct {
	*engine
	ctx        context.Context
	f          *flight
	fs         *flights
	call       call
	background bool
	known      *cache.Reading // the last entry seen; nil: none
	knownAt    time.Time      // when that was

	ask         cache.Ask
	moment      uint64 // when the last acquire, or read, was sent
	sent        time.Time
	knownMoment uint64    // when the command was sent that showed what is known
	heldMoment  uint64    // when the acquire was sent that was last answered "held"
	heldUntil   time.Time // the lease of that answer lives until then, unless it is renewed or given back; zero: none is known
	unseen      uint64    // when the last command was sent that didn't show what is stored now
	unwatched   time.Time
	suspicious  bool // the last answer was "quarantined"
	asked       bool // for the lease, once at least
	stamping    *stamping

	watch     *cache.Watch
	waitSince time.Time
	poll      time.Duration
}

// newPursuit is the pursuit of a flight, on a context of its own.
func (e *engine) newPursuit(fs *flights, f *flight, c call, rd read) *pursuit {
	p := e.pursuitOn(e.flightContext(fs, c.ctx), fs, c, rd)
	p.begun(f)
	return p
}

// begun sets a pursuit on its flight, whose first caller has read what is known.
func (p *pursuit) begun(f *flight) {
	p.f = f
	p.knownMoment, p.unseen = f.first+1, f.first+1 // nobody else may have what was read, and that was later
}

// A flightContext ends with the guard, and has the values of the flight's first
// caller: that one's end is none of its business.
type flightContext struct {
	context.Context // the engine's
	values          context.Context
}

func (e *engine) flightContext(fs *flights, caller context.Context) context.Context {
	if fs == &e.refreshes {
		// Nobody waits for it, the fetch it may have been started from neither.
		caller = callers.Apart(caller)
	}
	return &flightContext{e.ctx, caller}
}

// Value implements [context.Context]. The engine's own context has no values but
// the one by which package context knows whose end it is.
func (c *flightContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

func (e *engine) pursuitOn(ctx context.Context, fs *flights, c call, rd read) *pursuit {
	p := &pursuit{
		engine: e, ctx: ctx, fs: fs, call: c, known: rd.reading, knownAt: rd.at, poll: firstPoll,
		background: fs == &e.refreshes,
		ask: cache.Ask{
			TTL: e.policy.Lease, RenewFor: e.policy.FetchTimeout + e.policy.MaxBudgetWait,
			MaxAttempts: max(e.policy.MaxAttempts, 0), Window: e.policy.Quarantine,
		},
	}
	if rd.reading != nil {
		p.ask.Seen = rd.reading.Seen
	}
	return p
}

// fly is the body of a flight whose first caller has read what it has: an
// unservable entry, nothing yet, or an error; or hasn't read.
func (e *engine) fly(fs *flights, f *flight, c call, rd read) *outcome {
	if c.force && rd.none() {
		// Its caller was to join a flight that has ended since. An acquire that has seen
		// nothing would bring what is to be replaced.
		rd = e.read(call{ctx: e.flightContext(fs, c.ctx), key: c.key})
	}
	p := e.newPursuit(fs, f, c, rd)
	if rd.err != nil {
		return p.take(&cache.Answer{}, rd.err)
	}
	if rd.none() {
		return p.ended(p.unread())
	}
	if rd.reading.Seen == "" {
		e.foresight.met(false)
	}
	o, done := p.spared()
	defer done()
	if o == nil {
		o = p.run()
	}
	return p.ended(o)
}

// ended tidies up after a pursuit that has come to its outcome.
func (p *pursuit) ended(o *outcome) *outcome {
	if p.watch != nil {
		p.watch.Close()
		p.observe(Event{Kind: cache.WaitEnded, Key: p.call.key, Token: p.ask.LastHeld, Duration: time.Since(p.waitSince), Err: o.err})
	}
	if p.background && (o.err != nil || o.then == fetch) {
		_ = sleep(p.ctx, holdOff)
	}
	return o
}

// local is the body of a flight for a key whose values are too large to store:
// callers of the process share a fetch, without a lease.
func (e *engine) local(f *flight, c call) *outcome {
	return e.newPursuit(&e.locals, f, c, read{}).fetchHere(Fetched)
}

// run asks until there is an outcome.
func (p *pursuit) run() *outcome {
	for {
		if o := p.take(p.acquire()); o != nil {
			return o
		}
	}
}

// unread is run for what nobody has read: the first answer tells whether that was
// a good guess. If there is none, reading may still help.
func (p *pursuit) unread() *outcome {
	p.ask.Once = true
	answer, err := p.acquire()
	p.ask.Once = false
	p.counters.unread.Add(1)
	if answer.Verdict == cache.HasEntry {
		p.counters.misled.Add(1)
	}
	p.foresight.met(err != nil || answer.Verdict == cache.HasEntry)
	var o *outcome
	if err != nil && p.endedFor(p.ctx, err) == nil {
		o = p.readInstead()
	} else {
		if err == nil && answer.Verdict == cache.Granted {
			p.lend(&cache.Reading{})
		}
		o = p.take(answer, err)
	}
	if o == nil {
		o = p.run()
	}
	return o
}

// readInstead reads where an acquire failed: there are Redises that carry out no
// scripts for a while and still have what is stored. It returns nil if that can't
// be served.
func (p *pursuit) readInstead() *outcome {
	p.begin()
	r, err := p.store.Read(p.ctx, p.storeKey(p.call.key))
	if err != nil {
		return p.take(&cache.Answer{}, err)
	}
	return p.stored(r)
}

// begin notes that a command is about to be sent.
func (p *pursuit) begin() { p.moment, p.sent = p.tick(), time.Now() }

// lend gives what was read to callers who haven't.
func (p *pursuit) lend(r *cache.Reading) {
	p.f.lent.Store(&lentRead{read{reading: r, at: p.sent}, p.moment})
}

func (p *pursuit) acquire() (*cache.Answer, error) {
	p.ask.Suspect = p.suspect()
	p.beginStamp()
	p.begin()
	answer, err := p.store.Acquire(p.ctx, p.storeKey(p.call.key), p.ask)
	return &answer, err
}

// take is the outcome that one ask comes to; nil: ask again.
func (p *pursuit) take(answer *cache.Answer, err error) *outcome {
	if o := p.endedFor(p.ctx, err); o != nil {
		if answer.Verdict == cache.Granted {
			_ = p.store.Release(context.WithoutCancel(p.ctx), answer.Lease)
		}
		return guardClosed()
	}
	if err != nil {
		if p.outwaits(err) {
			return p.wait(time.Until(p.heldUntil))
		}
		return p.withoutStore(err)
	}
	if answer.Verdict != cache.Held {
		p.heldUntil = time.Time{}
	}
	o := p.answered(answer)
	if o == nil && answer.Verdict == cache.Held {
		o = p.wait(answer.TTL)
	}
	return o
}

// outwaits reports whether a flight that has not been answered goes on waiting for the
// lease that was held when it last was. The holder may well be at work, and its outcome
// may still arrive: silence says nothing of it before the lease's end. A flight that
// may not fetch without a lease anyway has nothing to wait for.
func (p *pursuit) outwaits(err error) bool {
	return errors.Is(err, cache.ErrUnavailable) && !p.refusesWithout() && time.Now().Before(p.heldUntil)
}

// suspect is the holder to be taken over, if it looked unwatched long enough ago.
func (p *pursuit) suspect() cache.Token {
	if p.unwatched.IsZero() || time.Since(p.unwatched) < secondLook {
		return cache.Token{}
	}
	return p.ask.LastHeld
}

// answered is the outcome that an answer brings; nil: wait if it was "held",
// else ask again.
func (p *pursuit) answered(a *cache.Answer) *outcome {
	if a.Verdict != cache.Quarantined {
		p.suspicious = false
	}
	switch a.Verdict {
	case cache.Granted:
		return p.lead(a.Lease)
	case cache.HasEntry:
		return p.stored(a.Reading)
	case cache.Failed:
		return &outcome{err: decodeFailure(a.Failure, &p.policy), moment: p.heldMoment}
	case cache.Paused:
		err := decodeFailure(a.Failure, &p.policy)
		err.RetryAfter = a.TTL
		p.observe(Event{Kind: cache.KeyPaused, Key: p.call.key, Duration: a.TTL, Err: err})
		return &outcome{err: err, moment: p.moment}
	case cache.Quarantined:
		return p.quarantined(a.TTL)
	}
	p.held(a)
	return nil
}

// stored judges an entry that came up meanwhile, or that nobody had read. One that
// can't be served is asked over.
func (p *pursuit) stored(r *cache.Reading) *outcome {
	p.known, p.knownAt, p.knownMoment = r, p.sent, p.moment
	p.ask.Seen = r.Seen
	o := p.judge(read{reading: r, at: p.sent}, p.call)
	if o.then == fetch {
		p.lend(r)
		p.unseen = p.moment
		return nil
	}
	o.moment = p.moment
	if p.call.force {
		o.moment = p.unseen // who came later wants what wasn't stored yet when they came
	}
	if p.watch != nil && o.stored && o.source == FromRedis {
		o.source = Waited
	}
	return o
}

// quarantined counts only when it is answered twice: what looked like dead
// processes may have been reconnecting.
func (p *pursuit) quarantined(left time.Duration) *outcome {
	if !p.suspicious {
		p.suspicious = true
		_ = sleep(p.ctx, secondLook)
		return nil
	}
	p.observe(Event{Kind: cache.KeyQuarantined, Key: p.call.key, Duration: left})
	return &outcome{
		err:    fmt.Errorf("%w: %d processes died fetching %s; lifted in %v, or by Reset or Set", ErrQuarantined, p.policy.MaxAttempts, p.about(p.call.key), left),
		own:    true,
		moment: p.moment,
	}
}

// held takes in that another token holds the lease.
func (p *pursuit) held(a *cache.Answer) {
	p.heldMoment, p.unseen = p.moment, p.moment
	p.heldUntil = p.sent.Add(a.TTL)
	if a.Holder != p.ask.LastHeld {
		p.unwatched = time.Time{}
		p.observe(Event{Kind: cache.LeaseHeld, Key: p.call.key, Token: a.Holder, Duration: a.TTL})
	}
	p.ask.LastHeld = a.Holder
	switch {
	case !a.Unwatched:
		p.unwatched = time.Time{}
	case p.unwatched.IsZero():
		p.unwatched = time.Now()
	}
}

// wait returns nil when there is reason to ask again, or an outcome that a wake-up
// brought. It waits for what is left of the lease at most.
func (p *pursuit) wait(left time.Duration) *outcome {
	if p.watch == nil {
		p.waitSince = time.Now()
		p.f.waiting.Store(true)
		p.observe(Event{Kind: cache.WaitBegan, Key: p.call.key, Token: p.ask.LastHeld})
		p.watch = p.store.Watch(p.storeKey(p.call.key))
	}
	// A quarter of jitter: the waiters of a fleet don't look in step.
	d := p.poll - time.Duration(rand.Int64N(int64(p.poll/4)))
	if !p.unwatched.IsZero() {
		d = min(d, secondLook)
	}
	timer := time.NewTimer(min(d, left+time.Millisecond))
	defer timer.Stop()
	select {
	case m := <-p.watch.C:
		return p.woken(m)
	case <-timer.C:
		p.poll = min(p.poll*3/2, lastPoll)
	case <-p.ctx.Done():
		return guardClosed()
	}
	if !p.background && (p.fs.deserted(p.f) || p.f.fetchTaken()) {
		return goRound() // for callers that have joined, or join at this very moment
	}
	return nil
}

// woken takes in a wake-up and those queued behind it. Only a message about the token
// last answered "held" decides: any other may be about a lease that was over before
// this flight's callers came. Every other message is a reason to ask again.
func (p *pursuit) woken(m cache.Message) *outcome {
	for {
		if m.Token == p.ask.LastHeld {
			p.heldUntil = time.Time{} // the lease was given back
			if o := p.told(m); o != nil {
				return o
			}
		}
		select {
		case m = <-p.watch.C:
		default:
			return nil
		}
	}
}

// told is the outcome a message about the holder brings.
func (p *pursuit) told(m cache.Message) *outcome {
	switch m.Signal {
	case cache.FailedSignal:
		return &outcome{err: decodeFailure(m.Body, &p.policy), moment: p.heldMoment}
	case cache.Filled:
		r := m.Reading()
		if !r.Found {
			return nil // too large to ride: asking again brings it
		}
		if len(r.Entry.Tags) > 0 {
			return nil // one may have been deleted before it was stored: asking again tells
		}
		switch {
		case r.Entry.Kind == cache.Negative:
			return &outcome{err: ErrNotFound, entry: r, moment: p.heldMoment}
		case r.Entry.Kind == cache.Bypass && r.Entry.Flags&cache.FlagTooLarge != 0:
			return &outcome{then: fetchLocal, moment: p.heldMoment}
		case r.Entry.Kind == cache.Bypass:
			return &outcome{then: fetchAlone, moment: p.heldMoment}
		}
		if value, err := p.decode(r, p.coder.decode); err == nil {
			return &outcome{value: value, source: Waited, stored: true, entry: r, at: time.Now(), moment: p.heldMoment}
		}
	}
	return nil
}

// withoutStore is what a flight comes to when Redis can't be reached, or won't
// grant leases.
func (p *pursuit) withoutStore(why error) *outcome {
	if errors.Is(why, cache.ErrClosed) {
		return guardClosed()
	}
	if p.refusesWithout() {
		return &outcome{err: unavailable(why), own: true, moment: always}
	}
	return p.unguardedFetch(why)
}

// refusesWithout reports whether the flight may not fetch without a lease.
func (p *pursuit) refusesWithout() bool {
	return p.background || p.policy.WhenUnavailable == FailClosed
}

// sleep waits for d or for the end of ctx, and returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
