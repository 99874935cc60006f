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

// A Tracer is an [Observer] that makes spans of fetches. Of several observers, a guard asks
// the first Tracer.
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
// detach, when it is closed. The name of a store is empty. An Attacher asserts the methods
// that it needs:
//
//   - a guard has Counters() guard.Stats and InFlight(max int) ([]guard.Flight, int);
//   - a store has Nodes() []cache.NodeStatus;
//   - a budget has Known() guard.BudgetState and Limit() budget.Limit;
//   - a lock.Locker, also that of a lock.Worker, has Held() int.
type Attacher interface {
	Observer
	Attach(name string, component any) (detach func())
}

// A TraceContext names a span of another trace, as W3C Trace Context does: its bytes are 16
// of trace ID, 8 of span ID, and the flags. The zero TraceContext means none.
type TraceContext [25]byte

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
