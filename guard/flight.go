package guard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// A flight brings the callers of one key in this process to an outcome: it asks for
// the lease, then fetches under it or waits for its holder. Its leader runs it.
type flight struct {
	e       *engine
	key     string
	kind    flightKind
	by      *leader
	first   uint64 // sequence number of the first caller
	began   time.Time
	trigger string // of its fetch
	// It refreshes a value of the reserve. If the store does not answer, it fetches without a
	// lease.
	reserved bool
	solo     bool // the leader runs it on the flight's own goroutine

	// Ends. The goroutine that runs the flight writes out, then closes settled.
	settled chan struct{} // nil: only that goroutine needs to know
	out     *outcome
	others  outcome           // the memory of out.others
	next    chan store.Answer // the answer that a flight of several goes on from
	run     func() (any, error)
	moved   chan struct{} // closed when the flight is superseded or its goroutine exits
	gone    chan struct{} // moved, for callers that stay with a superseded flight

	preview   *preview      // written before previewed is closed
	previewed chan struct{} // closed by Turn.Preview; nil: the leader gives no turn

	// Callers. flights.mu guards them.
	before, after int    // callers that may have the result even if the lease is lost, and the others
	latest        uint64 // sequence number of the last caller
	fetchStart    uint64 // sequence number; 0: no fetch has started
	firstLeft     bool
	isSuperseded  bool
	exited        bool
	unwanted      func() // called once no caller can use the result

	// Read by callers while the flight runs.
	waiting  atomic.Bool  // for the holder of the lease
	nested   atomic.Bool  // a caller is within a fetch that has a slot
	runner   atomic.Int32 // of its first caller's fetch: noRunner, flightRuns or callerRuns
	fallback atomic.Pointer[fallback]
	fetch    atomic.Pointer[frame]              // the last that it has begun
	trace    atomic.Pointer[cache.TraceContext] // of the last fetch, here or elsewhere; nil: none is known
	holder   atomic.Pointer[store.Token]        // of the lease, elsewhere; nil: none is known
	attempt  atomic.Int32                       // of the lease, here

	// Knowledge of the key. Only the goroutine that runs the flight uses the rest.
	readErr     error    // of the first caller's read
	known       *read    // the last one with an answer; nil: there was none
	knownMoment uint64   // when its command was sent
	none        struct { // the memory of one that found nothing
		read
		fallback
	}

	// The search for the lease.
	request    store.Request
	moment     uint64 // when the last acquire or read was sent
	sent       time.Time
	heldMoment uint64    // when the acquire was sent that was last answered "held"
	heldUntil  time.Time // the lease of that answer lives until then, unless it is renewed or given back; zero: none is known
	unseen     uint64    // when the last command was sent that did not show the stored entry of now
	unwatched  time.Time // when the holder first looked unwatched; zero: it does not
	suspicious bool      // the last answer was "quarantined"

	turn turn // at most one

	// The wait for the holder.
	watch     *store.Watch
	waitSince time.Time
	waiters   int  // processes that wait, as last answered
	looked    bool // at the holder, since the wait began
}

// A fallback is the entry that the flight's acquire returned. Callers that skipped
// their own read may serve it stale if the fetch fails. Callers with a sequence number
// below the moment joined before the acquire was sent.
type fallback struct {
	*read
	moment uint64
}

// A flight fetches with the fetch function of its first caller. That function must not
// run twice at once: either the flight runs it or, under StaleOrFetch, the caller for
// itself.
const (
	noRunner   = iota // neither does yet
	flightRuns        // the flight has its lease, or without the store its slot; it may wait for its budget
	callerRuns        // the caller has stopped waiting
)

// start makes the turn of the flight, which has had none.
func (f *flight) start(lease *store.Lease, source Source) *turn {
	t := &f.turn
	t.f, t.lease, t.source = f, lease, source
	return t
}

// claimFetch makes the flight run the fetch. It returns false if the first caller does:
// the flight must not fetch then, and its callers retry.
func (f *flight) claimFetch() bool {
	return f.runner.CompareAndSwap(noRunner, flightRuns) || f.runner.Load() == flightRuns
}

// fetchTaken reports whether the first caller runs the fetch for itself.
func (f *flight) fetchTaken() bool { return f.runner.Load() == callerRuns }

// abandoned reports whether the flight need not go on: no caller waits for it, or it has
// no fetch any more.
func (f *flight) abandoned() bool { return f.e.flights.deserted(f) || f.fetchTaken() }

// fly runs the flight to its outcome: alone, or in step with the other flights of its
// leader until they part.
func (f *flight) fly() {
	if f.solo {
		f.by.protect(func() { f.by.runAlone(f) })
	} else {
		select {
		case <-f.settled:
		case a := <-f.next:
			f.by.protect(func() { f.by.pursue(f, a) })
		}
	}
	defer func() {
		if p := recover(); p != nil { // of an Observer
			f.out = panicOutcome(p)
		}
	}()
	f.finish()
}

// finish tidies up after the outcome.
func (f *flight) finish() {
	o := f.out
	if f.kind == forced && f.e.coherence != nil && o.stored {
		f.e.coherence.forget(f.key) // the replaced value may be fresh, and the callers may have left
	}
	if f.kind == background && o.err != nil && !errors.Is(o.err, ErrNotFound) && (f.e.flights.fetching(f) || errors.Is(o.err, ErrUnavailable)) {
		// A flight that learned of a pause, or of another's failure, tells nothing new.
		f.e.events.report(f.by.ctx, cache.RefreshFailed, cache.Event{Key: f.key, Err: o.err})
	}
	if f.watch != nil {
		f.watch.Close()
		f.watch = nil
		f.e.events.report(f.by.ctx, cache.WaitEnded, cache.Event{Key: f.key, Token: cache.Token(f.request.LastHeld), Duration: time.Since(f.waitSince), Err: o.err, Trace: f.knownTrace()})
	}
	if f.kind == background && (o.err != nil || o.then == fetch) {
		_ = sleep(f.by.ctx, holdOff)
	}
}

// settle sets the outcome. The first call counts.
func (f *flight) settle(o *outcome) {
	if f.out != nil {
		return
	}
	f.out = o.share(&f.others)
	if f.settled != nil {
		close(f.settled)
	}
}

// lend offers the last read to callers that have read nothing.
func (f *flight) lend(rd *read) { f.fallback.Store(&fallback{rd, f.moment}) }

// lendNone is lend for an answer that there is no entry.
func (f *flight) lendNone() {
	n := &f.none
	n.reading, n.at = noEntry, f.sent
	n.fallback = fallback{&n.read, f.moment}
	f.fallback.Store(&n.fallback)
}

// noEntry is only to be read.
var noEntry = &store.Reading{}

// borrow takes the flight's fallback for a caller that has read nothing.
func (f *flight) borrow(number uint64, rd *read) *read {
	if l := f.fallback.Load(); rd == nil && l != nil && number < l.moment {
		return l.read
	}
	return rd
}

// A flightContext ends with the engine and has the values of the first caller's
// context. That caller's cancellation does not concern the others.
type flightContext struct {
	context.Context // the engine's
	values          context.Context
}

// Value implements [context.Context]. The engine's own context has no values but the
// one by which package context finds its parent.
func (c *flightContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
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

// giveStale tells a fetch the last value.
func (f *flight) giveStale(r *fill) {
	known := f.known.found()
	if known == nil {
		return
	}
	if _, lacks := f.e.tags.lacks(&known.Entry, f.e.tags.own); lacks {
		return // a renewal would keep it without the tag
	}
	if value, err := f.e.packer.unpack(f.by.ctx, f.key, f.known); err == nil {
		r.stale, r.staleRead = value, f.known
	}
}

// know takes in a read of the key.
func (f *flight) know(rd *read) {
	if f.readErr = rd.err; rd.err == nil {
		f.known, f.request.Seen = rd, rd.reading.Seen
	}
}

// refusesUnguarded reports whether the flight may not fetch without a lease.
func (f *flight) refusesUnguarded() bool {
	return f.kind == background && !f.reserved || f.e.policy.FailClosed
}

// livesOnStale reports whether the flight's callers have a stale value to live on if
// the budget is exhausted.
func (f *flight) livesOnStale() bool {
	return f.kind != forced && f.e.policy.StaleIfError > 0 &&
		servableIfError(f.known.found(), f.known.waited()) && (&outcome{err: &ExhaustedError{}}).maskable(&f.e.policy)
}

// nothingToRenew is the error of a fetch that answered ErrNotModified, which is why, and
// was given no stale value.
func (f *flight) nothingToRenew(why error) error {
	if r := f.known.found(); r != nil {
		if tag, lacks := f.e.tags.lacks(&r.Entry, f.e.tags.own); lacks {
			return fmt.Errorf("guard: the stored value of %s lacks the tag %q of Policy.Tags, and so the fetch was given no stale value: return the value: %w",
				f.e.events.quote(f.key), tag, why)
		}
	}
	return fmt.Errorf("guard: the fetch answered ErrNotModified and was given no stale value: %w", why)
}

// knownTrace is the trace context of the last fetch that is known.
func (f *flight) knownTrace() (trace cache.TraceContext) {
	if t := f.trace.Load(); t != nil {
		trace = *t
	}
	return trace
}
