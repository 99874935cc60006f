package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// An engine is a Guard without its type: values are *V in an any.
type engine struct {
	store   store.Store
	name    string
	prefix  string // of the user's keys as the store knows them: no two guards share a key
	policy  Policy
	packer  packer
	tags    tagger
	payer   payer
	events  reporter
	labels  pprof.LabelSet  // of the goroutines of fetches
	labeled context.Context // has them

	coherence *coherence // nil: this process keeps no values
	near      *near      // nil: none
	reserve   *reserve   // nil: none
	standby   standby    // serves the reserve
	backlog   *backlog

	lookups   lookups
	flights   *flights
	sequence  atomic.Uint64 // numbers callers and commands of this process: clocks can tie
	foresight foresight
	slots     *slots    // of fetches without a lease
	timers    sync.Pool // of *time.Timer that are stopped
	dones     sync.Pool // of the channels of fetches; they are empty

	detach  func()          // removes the guard from its observers
	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	closing atomic.Bool
}

func newEngine(s store.Store, name string, p Policy, c coder, codec cache.Codec) *engine {
	e := &engine{
		store: s, name: name, prefix: name + ":", policy: p,
		labels:  pprof.Labels("stampede.guard", name),
		detach:  func() {},
		flights: newFlights(),
	}
	e.labeled = pprof.WithLabels(context.Background(), e.labels)
	e.events.init(name, &e.policy)
	if b, ok := p.Budget.(interface{ Name() string }); ok {
		e.payer.name = b.Name()
	}
	e.lookups = lookups{e: e, of: map[string]*lookup{}}
	e.tags = tagger{prefix: e.prefix, own: p.Tags}
	e.packer = packer{coder: c, codec: codec, policy: &e.policy, events: &e.events}
	e.payer.policy, e.payer.events = &e.policy, &e.events
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	e.standby = standby{policy: &e.policy, packer: &e.packer, events: &e.events, ctx: e.ctx}
	e.slots = &slots{taken: make(chan struct{}, p.MaxUnguarded), ended: e.ctx.Done()}
	e.backlog = newBacklog(e, p.MaxQueued)
	return e
}

// keepValues makes the caches that keep values in this process. raw says that values are
// bytes as they are stored.
func (e *engine) keepValues(raw bool) error {
	p := &e.policy
	reserved := p.Reserve.MaxBytes != Off && !p.FailClosed
	if !reserved && !p.Near.on() {
		return nil
	}
	e.coherence = newCoherence()
	if p.Near.on() {
		var err error
		if e.near, err = newNear(e.coherence, p.Near); err != nil {
			return err
		}
	}
	if reserved {
		e.reserve = newReserve(e.coherence, p.Reserve, raw, p.MaxUnguarded)
		e.standby.reserve = e.reserve
	}
	e.coherence.near, e.coherence.reserve = e.near, e.reserve
	e.coherence.follow(e.store, e.prefix)
	return nil
}

// storeKey is the user's key as the store knows it. A name can't hold a colon.
func (e *engine) storeKey(key string) string { return e.prefix + key }

// get is one call for one key. A call that has to wait or fetch is made by slow.
func (e *engine) get(ctx context.Context, key string, maxAge time.Duration, slow func() *call) *outcome {
	w := want{key: key}
	if w.out = e.endedFor(ctx, nil); w.out != nil {
		e.events.served(w.out, ctx.Err() != nil)
		return w.out
	}
	if e.coherence != nil {
		w.ticket = e.coherence.ticket(key)
	}
	number := uint64(0)
	if maxAge != anyAge {
		number = e.sequence.Add(1) // before the read: an entry that is stored later is new to this call
	}
	if e.look(ctx, maxAge, &w); w.out.then == serve && w.out.refresh == nil {
		if w.lookup != nil {
			e.lookups.leave(w.lookup)
		}
		e.events.served(w.out, ctx.Err() != nil)
		e.keep(key, w.ticket, w.out)
		if e.events.hits != nil && w.out.err == nil {
			e.events.hits.ObserveHit(ctx, w.out.source, w.out.age())
		}
		return w.out
	}
	c := slow()
	c.e, c.ctx, c.maxAge, c.number, c.only = e, ctx, maxAge, number, w // w itself would be allocated for hits, too
	c.list[0] = &c.only
	c.resolve(c.list[:])
	return c.only.out
}

// look sets the outcome that a read alone allows.
func (e *engine) look(ctx context.Context, maxAge time.Duration, w *want) {
	kind := kindFor(maxAge)
	if kind != foreground || !e.expectsMiss(ctx, w.key) {
		w.lookup = e.lookups.join(ctx, w.key, kind)
	}
	looked := false
	defer func() {
		if !looked && w.lookup != nil { // an Observer has panicked
			e.lookups.leave(w.lookup)
		}
	}()
	if w.lookup != nil {
		w.rd, w.out = w.lookup.waitHedged(ctx, func(why error) *outcome { return e.standby.outcome(w.key, maxAge, why) })
	}
	switch {
	case w.out != nil:
	case w.rd == nil:
		w.out = toFetch
	default:
		if w.rd.err != nil || w.rd.reading.Seen != "" {
			e.foresight.met(true) // a flight reports an absent key, once for all its callers
		}
		e.judgeFor(ctx, maxAge, w)
	}
	looked = true
}

// judgeFor sets the outcome that a want's read allows for a caller with that maxAge.
func (e *engine) judgeFor(ctx context.Context, maxAge time.Duration, w *want) {
	if w.out = e.endedFor(ctx, w.rd.err); w.out != nil {
		return
	}
	if w.rd.err == nil {
		e.standby.answered()
		w.rd = e.unlessQueued(w.key, w.rd)
	}
	if w.rd.err != nil {
		if w.out = e.standby.outcome(w.key, maxAge, w.rd.err); w.out != nil {
			return
		}
	}
	w.out = e.judgeOnce(ctx, w)
	if w.out.then != serve && w.rd.reading != nil {
		e.standby.outdate(w.key, w.rd.reading)
		if maxAge == anyAge {
			if o := e.standby.recovering(w.key, w.rd.reading); o != nil {
				w.out = o
				return
			}
		}
	}
	if o := w.out; o.then == serve && maxAge != anyAge && (maxAge == 0 || o.entry.Age > maxAge) {
		w.out = toFetch
	}
}

// readMany reads keys. It lends each reading.
func (e *engine) readMany(ctx context.Context, keys []string, each func(i int, r *store.Reading, err error)) {
	e.store.ReadMany(ctx, e.prefix, keys, each)
}

// expectsMiss reports whether a call had better ask for the lease at once. Within a
// fetch of its own key, or without a budget for a fetch, only a stored entry can help.
func (e *engine) expectsMiss(ctx context.Context, key string) bool {
	return e.foresight.miss() && !within(ctx, e, key) && (e.reserve == nil || e.reserve.get(key) == nil) &&
		(e.policy.Budget == nil || !e.policy.Budget.Exhausted(e.policy.Priority))
}

// endedFor is the outcome for a caller after the end of its context, its guard or its
// store; nil if it may go on.
func (e *engine) endedFor(ctx context.Context, err error) *outcome {
	if ctx.Err() != nil {
		return &outcome{err: context.Cause(ctx)}
	}
	if e.ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
		return closedOutcome()
	}
	return nil
}

// judgeOnce is judge, once for all callers of a lookup.
func (e *engine) judgeOnce(ctx context.Context, w *want) *outcome {
	lk := w.lookup
	if lk == nil || w.rd != &lk.read {
		o := e.judge(ctx, w.key, w.rd)
		return &o
	}
	lk.judging.Do(func() {
		lk.verdict.then = fetch // should an Observer panic
		lk.verdict = e.judge(ctx, lk.key, &lk.read)
	})
	return &lk.verdict
}

// judge is the outcome that a read alone allows.
func (e *engine) judge(ctx context.Context, key string, rd *read) outcome {
	r := rd.reading
	if r == nil {
		return outcome{then: fetch}
	}
	if r.Damage != nil {
		e.packer.damaged(ctx, key, r, r.Damage)
	}
	act := decide(r, &e.policy)
	switch act {
	case notFound:
		return outcome{err: ErrNotFound, entry: r}
	case fetch, fetchAlone, fetchLocal:
		return outcome{then: act, entry: r}
	}
	value, err := e.packer.unpack(ctx, key, rd)
	if err != nil {
		return outcome{then: fetch}
	}
	o := outcome{value: value, source: FromStore, stored: true, entry: r, at: rd.at}
	switch {
	case act == serveStale:
		o.source, o.refresh = Stale, rd
	case r.Age >= dueAt(&r.Entry, e.policy.Beta):
		o.refresh = rd
	}
	return o
}

// reportStale reports a stale value that is served while it is refreshed.
func (e *engine) reportStale(ctx context.Context, key string, o *outcome) {
	if o.source == Stale {
		e.events.report(ctx, cache.StaleServed, cache.Event{Reason: telemetry.ReasonRefreshing, Key: key, Token: cache.Token(o.entry.Entry.Version), Duration: o.entry.Age})
	}
}

// keep puts a value into the near cache and the reserve, if there are such.
func (e *engine) keep(key string, t ticket, o *outcome) {
	e.standby.keep(key, t, o)
	if e.near != nil && o.err == nil && o.stored && o.source != Stale {
		e.near.put(key, t, o.value, o.entry, dueAt(&o.entry.Entry, e.policy.Beta), o.at)
	}
}

// close ends all flights. Those that hold a lease release it.
func (e *engine) close() error {
	if e.closing.Swap(true) {
		return nil
	}
	e.detach()
	err := e.backlog.close()
	e.flights.close()
	e.cancel(e.errClosed())
	e.lookups.close()
	e.backlog.wg.Wait()
	e.flights.wg.Wait()
	if e.coherence != nil {
		e.coherence.feed.Close()
	}
	if e.near != nil {
		e.near.close()
	}
	return err
}

// unlessQueued is the read, or one without an answer if the entry is not to be served, as
// its invalidation is queued.
func (e *engine) unlessQueued(key string, rd *read) *read {
	if rd.reading.Found && e.backlog.covers(key, &rd.reading.Entry, rd.at) {
		return &read{err: errQueuedChange, at: rd.at}
	}
	return rd
}

// misused is the error of a call with a nil context, or else with a nil fetch.
func (e *engine) misused(ctx context.Context) error {
	e.events.errOther.Add(1)
	if ctx == nil {
		return errNilContext
	}
	return errNilFetch
}

// errorFor is the outcome's error as callers get it.
func (e *engine) errorFor(o *outcome) error {
	if o.own && errors.Is(o.err, ErrClosed) {
		return e.errClosed()
	}
	return o.err
}

// errClosed names the guard. If only its store was closed, it wraps that error too.
func (e *engine) errClosed() error {
	if e.closing.Load() {
		return fmt.Errorf("%w: guard %q", ErrClosed, e.name)
	}
	return fmt.Errorf("%w: guard %q: %w", ErrClosed, e.name, store.ErrClosed)
}

// An unavailableError is [ErrUnavailable] with its cause, of a store that isn't closed. Its
// text is made when it is asked for: the store may know by then why Redis is away.
type unavailableError struct{ cause error }

func unavailable(cause error) error { return &unavailableError{cause} }

func (e *unavailableError) Error() string { return fmt.Sprintf("%v: %v", ErrUnavailable, e.cause) }

// Unwrap is for errors.Is and errors.As.
func (e *unavailableError) Unwrap() []error { return []error{ErrUnavailable, e.cause} }

// changeError is a store's error for the caller of a change.
func (e *engine) changeError(ctx context.Context, err error) error {
	switch {
	case err == nil, ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return err
	case errors.Is(err, store.ErrClosed):
		return e.errClosed()
	}
	return unavailable(err)
}

// noSlot is the outcome of a flight that is not to fetch any more: a caller that joined
// at this very moment retries.
func (e *engine) noSlot() *outcome {
	if e.ctx.Err() != nil {
		return closedOutcome()
	}
	return retryOutcome()
}
