package guard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// An engine is a Guard without its type: values are *V in an any.
type engine struct {
	store  cache.Store
	name   string
	policy Policy
	packer packer
	tagsOf func(key string, value any) []string // nil: none
	events reporter
	near   *near // nil: none

	flights   *flights
	sequence  atomic.Uint64 // numbers callers and commands of this process: clocks can tie
	foresight foresight
	slots     chan struct{} // of fetches without a lease
	doomed    atomic.Int64  // flights that ask for a lease though their budget is known to be exhausted

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

func newEngine(store cache.Store, name string, p Policy, c coder, codec cache.Codec) *engine {
	e := &engine{
		store: store, name: name, policy: p,
		events:  reporter{guard: name, observer: p.Observer, hideKeys: p.HideKeys},
		flights: newFlights(), slots: make(chan struct{}, p.MaxUnguarded),
	}
	e.packer = packer{coder: c, codec: codec, policy: &e.policy, events: &e.events}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// storeKey is the user's key as the store knows it. A name can't hold a colon, so no
// two guards share a key.
func (e *engine) storeKey(key string) string { return e.storePrefix() + key }

// storePrefix stands in front of all of them.
func (e *engine) storePrefix() string { return e.name + ":" }

// get is one call for one key. A call that has to wait or fetch is made by slow.
func (e *engine) get(ctx context.Context, key string, maxAge time.Duration, slow func() *call) *outcome {
	w := want{key: key}
	if w.out = e.endedFor(ctx, nil); w.out != nil {
		e.events.served(w.out, ctx.Err() != nil)
		return w.out
	}
	if e.near != nil {
		w.ticket = e.near.ticket(key)
	}
	number := uint64(0)
	if maxAge != anyAge {
		number = e.sequence.Add(1) // before the read: an entry that is stored later is new to this call
	}
	if e.look(ctx, maxAge, &w); w.out.then == serve && w.out.refresh == nil {
		e.events.served(w.out, ctx.Err() != nil)
		e.keepNear(key, w.ticket, w.out)
		return w.out
	}
	c, slowly := slow(), w // w itself would be allocated for hits, too
	c.e, c.ctx, c.maxAge, c.number = e, ctx, maxAge, number
	c.resolve([]*want{&slowly})
	return slowly.out
}

// look sets the outcome that a read alone allows.
func (e *engine) look(ctx context.Context, maxAge time.Duration, w *want) {
	kind := kindFor(maxAge)
	// While the key has a flight a new caller joins it unread: the sharing rule decides
	// whether its outcome will do, and commands do not grow with callers. Nor is a key
	// read that is expected to be absent.
	if e.flights.has(kind, w.key) || kind == foreground && e.expectsMiss(ctx, w.key) {
		w.out = &outcome{then: fetch}
		return
	}
	w.rd = e.read(ctx, w.key)
	e.judgeFor(ctx, maxAge, w)
}

// judgeFor sets the outcome that a want's read allows for a caller with that maxAge.
func (e *engine) judgeFor(ctx context.Context, maxAge time.Duration, w *want) {
	if w.out = e.endedFor(ctx, w.rd.err); w.out != nil {
		return
	}
	w.out = e.judge(w.key, w.rd)
	if o := w.out; o.then == serve && maxAge != anyAge && (maxAge == 0 || o.entry.Age > maxAge) {
		w.out = &outcome{then: fetch}
	}
}

func (e *engine) read(ctx context.Context, key string) read {
	at := time.Now()
	r, err := e.store.Read(ctx, e.storeKey(key))
	if err != nil {
		r = nil
	}
	if err != nil || r.Seen != "" {
		e.foresight.met(true) // a flight reports an absent key, once for all its callers
	}
	return read{r, err, at}
}

func (e *engine) readMany(ctx context.Context, keys []string, each func(i int, r *cache.Reading, err error)) {
	if len(keys) == 1 {
		r, err := e.store.Read(ctx, e.storeKey(keys[0]))
		each(0, r, err)
		return
	}
	e.store.ReadMany(ctx, e.storePrefix(), keys, each)
}

// expectsMiss reports whether a call had better ask for the lease at once. Within a
// fetch of its own key, or without a budget for a fetch, only a stored entry can help.
func (e *engine) expectsMiss(ctx context.Context, key string) bool {
	return e.foresight.miss() && !within(ctx, e, key) &&
		(e.policy.Budget == nil || !e.policy.Budget.Exhausted(e.policy.Priority))
}

// endedFor is the outcome for a caller whose context ended, or whose store was closed;
// nil if it may go on.
func (e *engine) endedFor(ctx context.Context, err error) *outcome {
	if ctx.Err() != nil {
		return &outcome{err: context.Cause(ctx)}
	}
	if e.ctx.Err() != nil || errors.Is(err, cache.ErrClosed) {
		return closedOutcome()
	}
	return nil
}

// judge is the outcome that a read alone allows.
func (e *engine) judge(key string, rd read) *outcome {
	r := rd.reading
	if r == nil {
		return &outcome{then: fetch}
	}
	if r.Damage != nil {
		e.packer.damaged(key, r, r.Damage)
	}
	act := decide(r, &e.policy)
	switch act {
	case notFound:
		return &outcome{err: ErrNotFound, entry: r}
	case fetch, fetchAlone, fetchLocal:
		return &outcome{then: act, entry: r}
	}
	value, err := e.packer.unpack(key, r)
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

// mask returns an outcome with the entry that this call has read in place of an error,
// if the policy allows it. A call that has read nothing does now. Either read was sent
// after the caller came, so no sharing rule is needed.
func (e *engine) mask(c *call, key string, o *outcome, rd *read) *outcome {
	if o.err == nil || e.policy.StaleIfError == 0 || c.ctx.Err() != nil || !e.maskable(o) {
		return o
	}
	if rd.none() {
		*rd = e.read(c.ctx, key)
	}
	r, waited := rd.reading, time.Since(rd.at)
	if !servableIfError(r, waited) {
		return o
	}
	value, err := e.packer.unpack(key, r)
	if err != nil {
		return o
	}
	older := &cache.Reading{Entry: r.Entry, Found: true, Age: r.Age + waited, Left: r.Left - waited}
	e.events.report(cache.StaleServed, Event{Key: key, Token: r.Entry.Version, Duration: older.Age, Err: o.err})
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

// reportStale reports a stale value that is served while it is refreshed.
func (e *engine) reportStale(key string, o *outcome) {
	if o.source == Stale {
		e.events.report(cache.StaleServed, Event{Key: key, Token: o.entry.Entry.Version, Duration: o.entry.Age})
	}
}

// keepNear puts a value into the near cache, if there is one.
func (e *engine) keepNear(key string, t ticket, o *outcome) {
	if e.near != nil && o.err == nil && o.stored && o.source != Stale {
		e.near.put(key, t, o.value, o.entry, dueAt(&o.entry.Entry, e.policy.Beta), o.at)
	}
}

// close ends all flights. Those that hold a lease release it.
func (e *engine) close() {
	e.flights.close()
	e.cancel()
	e.flights.wg.Wait()
	if e.near != nil {
		e.near.close()
	}
}

// unavailable wraps a store's error for callers.
func unavailable(err error) error {
	if errors.Is(err, cache.ErrClosed) {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
