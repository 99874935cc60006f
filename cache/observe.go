package cache

import (
	"context"
	"encoding/binary"
	"encoding/hex"
)

// A ContextObserver is an [Observer] that is also given a context. Its values are those
// of the call that the event is about; for work that callers share, of the caller that
// started it. The context of a fetch's events is the one that the fetch runs with. A
// guard calls ObserveContext in place of Observe. Stores and budgets have no context and
// call Observe.
type ContextObserver interface {
	Observer
	ObserveContext(ctx context.Context, ev Event)
}

// A Tracer is an [Observer] that makes spans of fetches.
type Tracer interface {
	Observer
	// StartFetch is called before each call of a fetch, once for all of its keys. The event
	// is FetchStarted of the first key; its Count is the number of keys. The fetch runs with
	// the returned context. The returned TraceContext reaches the callers that wait for the
	// fetch, in this process and in others: see [Event].Trace. end is called once, with the
	// event that ends the fetch of the first key.
	StartFetch(ctx context.Context, ev Event) (fetch context.Context, trace TraceContext, end func(Event))
}

// An Attacher is an [Observer] that is told of each component that reports to it, so that
// it can read the component's numbers. Attach is called once for each, when it is made;
// detach, when it is closed.
type Attacher interface {
	Observer
	Attach(c Component) (detach func())
}

// A Component is a guard, a store, a budget or a lock.
type Component struct {
	Kind ComponentKind
	Name string // empty for a store
	// Self is the component. An Attacher asserts the interface that it needs.
	Self any
}

// A ComponentKind is the type of a [Component].
type ComponentKind string

// The kinds of components, and the methods that their Self has.
const (
	GuardComponent  ComponentKind = "guard"  // Counters() guard.Stats, InFlight(max int) ([]guard.Flight, int)
	StoreComponent  ComponentKind = "store"  // Nodes() []cache.NodeStatus
	BudgetComponent ComponentKind = "budget" // Known() guard.BudgetState, Limit() budget.Limit
	LockComponent   ComponentKind = "lock"   // Held() int: the locks of a lock.Locker, or a lock.Worker
)

// Attach tells those of the observers in o about a component that are an [Attacher], and
// returns the function that ends that. It is for the packages of this module.
func Attach(o Observer, c Component) (detach func()) {
	var all []func()
	for _, each := range EachObserver(o) {
		if a, ok := each.(Attacher); ok {
			all = append(all, a.Attach(c))
		}
	}
	return func() {
		for _, detach := range all {
			detach()
		}
	}
}

// EachObserver returns the observers that o tells, as [Observers] has joined them: o
// itself if it is a single one, none if it is nil.
func EachObserver(o Observer) []Observer {
	switch o := o.(type) {
	case nil:
		return nil
	case observers:
		var each []Observer
		for _, one := range o {
			each = append(each, EachObserver(one)...)
		}
		return each
	}
	return []Observer{o}
}

// A TraceContext names a span of another trace, as W3C Trace Context does: 16 bytes of
// trace ID, 8 of span ID, and the flags. The zero TraceContext means none.
type TraceContext [25]byte

// NewTraceContext returns the trace context of a span.
func NewTraceContext(traceID [16]byte, spanID [8]byte, flags byte) (t TraceContext) {
	copy(t[:16], traceID[:])
	copy(t[16:24], spanID[:])
	t[24] = flags
	return t
}

// IsZero reports whether t is none.
func (t TraceContext) IsZero() bool {
	return binary.LittleEndian.Uint64(t[16:24]) == 0
}

// TraceID is the trace's.
func (t TraceContext) TraceID() [16]byte { return [16]byte(t[:16]) }

// SpanID is the span's.
func (t TraceContext) SpanID() [8]byte { return [8]byte(t[16:24]) }

// Flags are those of the W3C's traceparent.
func (t TraceContext) Flags() byte { return t[24] }

// String is the traceparent of the span.
func (t TraceContext) String() string {
	return "00-" + hex.EncodeToString(t[:16]) + "-" + hex.EncodeToString(t[16:24]) + "-" + hex.EncodeToString(t[24:])
}
