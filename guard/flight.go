package guard

import (
	"context"
	"errors"
	"runtime/debug"
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
	solo    bool   // the leader runs it on the flight's own goroutine

	// Ends. The goroutine that runs the flight writes out, then closes settled.
	settled chan struct{}
	out     *outcome
	next    chan store.Answer // the answer that a flight of several goes on from
	moved   chan struct{}     // closed when the flight is superseded or its goroutine exits
	gone    chan struct{}     // moved, for callers that stay with a superseded flight

	// Callers. flights.mu guards them.
	before, after int    // callers that may have the result whatever happens, and the others
	fetchStart    uint64 // sequence number; 0: no fetch has started
	firstLeft     bool
	isSuperseded  bool
	exited        bool
	unwanted      func() // called once no caller can use the result

	// What callers read while the flight runs.
	waiting  atomic.Bool  // for the holder of the lease
	runner   atomic.Int32 // of its first caller's fetch: noRunner, flightRuns or callerRuns
	fallback atomic.Pointer[fallback]
	fetch    atomic.Pointer[frame]              // the last that it has begun
	trace    atomic.Pointer[cache.TraceContext] // of the last fetch, here or elsewhere; nil: none is known
	holder   atomic.Pointer[store.Token]        // of the lease, elsewhere; nil: none is known
	attempt  atomic.Int32                       // of the lease, here

	// What is known of the key. Only the goroutine that runs the flight uses the rest.
	readErr     error  // of the first caller's read
	known       *read  // the last one that showed what is stored, or that nothing is; nil: there was none
	knownMoment uint64 // when its command was sent

	// The search for the lease.
	request    store.Request
	moment     uint64 // when the last acquire or read was sent
	sent       time.Time
	heldMoment uint64    // when the acquire was sent that was last answered "held"
	heldUntil  time.Time // the lease of that answer lives until then, unless it is renewed or given back; zero: none is known
	unseen     uint64    // when the last command was sent that did not show what is stored now
	unwatched  time.Time // when the holder first looked unwatched; zero: it does not
	suspicious bool      // the last answer was "quarantined"

	// The wait for the holder.
	watch     *store.Watch
	waitSince time.Time
	poll      time.Duration
}

// A fallback is the entry that a flight's acquire returned. Callers that skipped
// their own read may serve it stale if the fetch fails. The acquire was sent after
// the callers joined whose sequence numbers are below the moment.
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
	if f.kind == forced && f.e.near != nil && o.stored {
		f.e.near.forget(f.key) // the replaced value may be fresh, and the callers may have left
	}
	if f.kind == background && o.err != nil && !errors.Is(o.err, ErrNotFound) && (f.e.flights.fetching(f) || errors.Is(o.err, ErrUnavailable)) {
		// A flight that learned of a pause, or of another's failure, tells nothing new.
		f.e.events.report(f.by.ctx, cache.RefreshFailed, Event{Key: f.key, Err: o.err})
	}
	if f.watch != nil {
		f.watch.Close()
		f.watch = nil
		f.e.events.report(f.by.ctx, cache.WaitEnded, Event{Key: f.key, Token: cache.Token(f.request.LastHeld), Duration: time.Since(f.waitSince), Err: o.err, Trace: f.knownTrace()})
	}
	if f.kind == background && (o.err != nil || o.then == fetch) {
		_ = sleep(f.by.ctx, holdOff)
	}
}

// holdOff keeps a refresh that brought nothing from being followed at once by the
// next: many callers are being served stale values meanwhile.
const holdOff = 250 * time.Millisecond

// settle sets the outcome. The first call counts.
func (f *flight) settle(o *outcome) {
	select {
	case <-f.settled:
	default:
		f.out = o.share()
		close(f.settled)
	}
}

func panicOutcome(p any) *outcome {
	return &outcome{err: &PanicError{Value: p, Stack: debug.Stack()}, moment: always}
}

// lend offers what the flight has read to callers that have read nothing.
func (f *flight) lend(rd *read) { f.fallback.Store(&fallback{rd, f.moment}) }

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

// An outcome is what a flight ends with, for each caller whose sequence number is
// below its moment (the sharing rule, docs/protocol.md). The other callers retry.
type outcome struct {
	value  any // *V
	err    error
	own    bool // err is this guard's; a fetch may return the same error of another guard
	source Source
	stored bool
	shared bool           // another caller of this process fetched it
	entry  *store.Reading // for age and TTL; nil: there is none
	at     time.Time      // the entry was read or stored, not before

	moment  uint64
	private bool   // the value is the first caller's; the others fetch for themselves
	then    action // serve, or what a caller does instead of taking a value
	refresh *read  // of the entry to be refreshed in the background; nil: none

	turn   *openTurn // instead of a value: the caller is to fetch
	others *outcome  // the same for callers that did not fetch; nil: it is the same
}

// share completes an outcome for the callers that did not run the fetch.
func (o *outcome) share() *outcome {
	if o.source == Fetched || o.source == UnguardedFetch {
		others := *o
		others.shared = true
		if o.source == Fetched {
			others.source = Waited
		}
		o.others = &others
	}
	return o
}

// forCaller is what the caller with the given sequence number gets of the outcome.
func (o *outcome) forCaller(number uint64, first bool) *outcome {
	switch {
	case number >= o.moment:
		return retryOutcome()
	case o.private && !first:
		return &outcome{then: fetchAlone}
	case first || o.others == nil:
		return o
	}
	return o.others
}

// late reports whether the caller has waited for WaitTimeout.
func (o *outcome) late() bool { return o.own && errors.Is(o.err, ErrWaitTimeout) }

// always is the moment of outcomes that say nothing of the value.
const always = ^uint64(0)

// retryOutcome makes every caller read and decide again.
func retryOutcome() *outcome { return &outcome{then: fetch, moment: always} }

// closedOutcome is that of every caller of a closed guard.
func closedOutcome() *outcome { return &outcome{err: ErrClosed, own: true, moment: always} }
