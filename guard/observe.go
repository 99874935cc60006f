package guard

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// A hitObserver is a cache.Observer that is also told of each call that is served from the
// store, fresh or stale, with the call's context. Of GetMany and LoadMany it is told the
// keys that are served stale. It is not told of near hits: to look for a span in a context
// takes half as long as a near hit (docs/decisions.md).
type hitObserver interface {
	cache.Observer
	ObserveHit(ctx context.Context, source Source, age time.Duration)
}

// A reporter counts the events of a guard and tells its observers.
type reporter struct {
	guard    string
	hideKeys bool
	to       []cache.Observer
	tracer   cache.Tracer // nil: none
	hits     hitObserver  // nil: none
	counters
}

func (r *reporter) init(name string, p *Policy) {
	r.guard, r.hideKeys, r.to = name, p.HideKeys, telemetry.Each(p.Observer)
	for _, o := range r.to {
		if t, ok := o.(cache.Tracer); ok && r.tracer == nil {
			r.tracer = t
		}
		if h, ok := o.(hitObserver); ok && r.hits == nil {
			r.hits = h
		}
	}
}

// report counts an event and tells the observers.
func (r *reporter) report(ctx context.Context, kind cache.EventKind, ev cache.Event) {
	r.event(kind)
	if len(r.to) == 0 {
		return
	}
	r.complete(kind, &ev)
	for _, o := range r.to {
		if c, ok := o.(cache.ContextObserver); ok {
			c.ObserveContext(ctx, ev)
		} else {
			o.Observe(ev)
		}
	}
}

// complete takes a pointer, as report is called by each waiter that is woken: a copy more, and
// its stack has to grow at that moment.
func (r *reporter) complete(kind cache.EventKind, ev *cache.Event) {
	ev.Kind, ev.Guard = kind, r.guard
	if r.hideKeys {
		ev.Key = ""
	}
}

// startFetch reports the start of a fetch. It returns the context that the fetch runs
// with, and the function that ends its trace; nil: there is none.
func (e *engine) startFetch(ctx context.Context, fills []*fill) (_ context.Context, ended func(cache.Event)) {
	if t := e.events.tracer; t != nil {
		ev := fills[0].event()
		e.events.complete(cache.FetchStarted, &ev)
		ev.Count = len(fills)
		var trace cache.TraceContext
		if ctx, trace, ended = t.StartFetch(ctx, ev); !trace.IsZero() {
			for _, r := range fills {
				if r.flight != nil {
					r.flight.trace.Store(&trace)
				}
			}
		}
	}
	for _, r := range fills {
		e.events.report(ctx, cache.FetchStarted, r.event())
	}
	e.events.fetching.Add(1)
	return ctx, ended
}

// endFetch reports the end of a fetch that startFetch has begun: with the fills that the
// fetch has answered, or the ones that replace them.
func (e *engine) endFetch(ctx context.Context, fills []*fill, took time.Duration, ended func(cache.Event)) {
	e.events.fetching.Add(-1)
	for i, r := range fills {
		r.took = took
		ev := r.event()
		ev.Duration, ev.Err, ev.Outcome = took, r.err, r.outcome()
		kind := endOfFetch(r.err)
		e.events.report(ctx, kind, ev)
		if i == 0 && ended != nil {
			e.events.complete(kind, &ev)
			ended(ev)
		}
	}
}

// event is one about the fetch of the fill's key.
func (r *fill) event() cache.Event {
	ev := cache.Event{Key: r.key, Attempt: r.attempt, Trigger: r.trigger}
	if r.lease != nil {
		ev.TakenOver = r.lease.TakenOver
		ev.Token = cache.Token(r.token)
	}
	return ev
}

// outcome is how the fetch of the fill's key ended, for events.
func (r *fill) outcome() string {
	switch endOfFetch(r.err) {
	case cache.FetchNotFound:
		return telemetry.OutcomeNotFound
	case cache.FetchNotModified:
		return telemetry.OutcomeNotModified
	case cache.FetchFailed:
		return telemetry.OutcomeError
	}
	if r.private {
		return telemetry.OutcomePrivate
	}
	return telemetry.OutcomeValue
}

// triggerFor is why a flight of that kind fetches. rd is the entry that is to be
// refreshed.
func triggerFor(kind flightKind, rd *read) string {
	switch {
	case kind == forced:
		return telemetry.TriggerRefresh
	case kind != background:
		return telemetry.TriggerMiss
	case rd.found() != nil && rd.reading.Fresh():
		return telemetry.TriggerEarly
	}
	return telemetry.TriggerStale
}

// reportWaits reports the keys of the call for which it waited for another's fetch.
func (c *call) reportWaits(all []*want) {
	if len(c.e.events.to) == 0 {
		return
	}
	took, count := time.Since(c.began), len(all)
	for _, w := range all {
		if w.f == nil || w.out.turn != nil {
			continue
		}
		if outcome := c.waitOutcome(w); outcome != "" {
			c.e.events.report(c.ctx, cache.CallWaited, cache.Event{
				Key: w.key, Duration: took, Outcome: outcome, Err: w.out.err, Trace: w.f.knownTrace(), Count: count,
			})
			count = 0
		}
	}
}

// waitOutcome is how a call's wait for another's fetch ended; empty: it did not wait for
// one, as it made the fetch itself.
func (c *call) waitOutcome(w *want) string {
	switch {
	case w.owned() && w.f.waiting.Load():
		return telemetry.OutcomeTakeover
	case w.owned():
		return ""
	case c.ctx.Err() != nil:
		return telemetry.OutcomeCanceled
	case w.out.late(), c.softOver && w.out.source == Stale:
		return telemetry.OutcomeTimeout
	case w.out.err != nil && !errors.Is(w.out.err, ErrNotFound):
		return telemetry.OutcomeFailure
	}
	return telemetry.OutcomeValue
}

// age is that of the outcome's entry.
func (o *outcome) age() time.Duration {
	if o.entry == nil {
		return 0
	}
	return o.entry.Age
}

// staleReason is why a stale value stands in for an error.
func staleReason(err error) string {
	switch {
	case errors.Is(err, ErrUnavailable):
		return telemetry.ReasonAway
	case errors.Is(err, errSoftTimeout), errors.Is(err, ErrWaitTimeout), errors.Is(err, ErrFetchTimeout):
		return telemetry.ReasonTimeout
	}
	return telemetry.ReasonError
}

// refusalReason is why an entry was not stored.
func refusalReason(err error) string {
	switch {
	case err == nil:
		return telemetry.ReasonLeaseGone
	case errors.Is(err, store.ErrInvalidated):
		return telemetry.ReasonTag
	case errors.Is(err, store.ErrRefused):
		return telemetry.ReasonStore
	}
	return telemetry.ReasonNoAnswer
}

// quote names a key in an error, which may end up in an event.
func (r *reporter) quote(key string) string {
	if r.hideKeys {
		return "a key"
	}
	return strconv.Quote(cutKey(key))
}

func cutKey(key string) string {
	if len(key) > maxKeyText {
		return key[:maxKeyText] + "… (cut)"
	}
	return key
}
