package guard

import (
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// An outcome is the end of a flight, for each caller with a sequence number below its
// moment (the sharing rule, docs/protocol.md). The other callers retry.
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
	then    action // serve, or the step that a caller takes instead
	refresh *read  // of the entry to be refreshed in the background; nil: none

	turn   *openTurn // instead of a value: the caller is to fetch
	others *outcome  // the same for callers that did not fetch; nil: it is the same
}

// share completes an outcome for the callers that did not run the fetch, with memory for
// theirs.
func (o *outcome) share(others *outcome) *outcome {
	if o.source == Fetched || o.source == UnguardedFetch {
		*others = *o
		others.shared = true
		if o.source == Fetched {
			others.source = Waited
		}
		o.others = others
	}
	return o
}

// forCaller is the outcome for the caller with the given sequence number.
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

// toFetch is the outcome of a read that found nothing to serve. It is only to be read.
var toFetch = &outcome{then: fetch}

// retryOutcome makes every caller read and decide again.
func retryOutcome() *outcome { return &outcome{then: fetch, moment: always} }

// closedOutcome is that of every caller of a closed guard.
func closedOutcome() *outcome { return &outcome{err: ErrClosed, own: true, moment: always} }

func panicOutcome(p any) *outcome {
	return &outcome{err: &PanicError{Value: p, Stack: debug.Stack()}, moment: always}
}

// A read is the answer to a command that reads a key's entry. Callers share it; its value is
// decoded once.
type read struct {
	reading *store.Reading // nil: none, because of err
	err     error
	at      time.Time // before the command was sent

	reserved bool // the reserve's: the store does not answer

	decoding sync.Once
	value    any
	damage   error // the value can't be decoded
}

// found returns the reading of a stored value, or nil.
func (rd *read) found() *store.Reading {
	if rd == nil || rd.reading == nil || !rd.reading.Found || rd.reading.Entry.Kind != store.Value {
		return nil
	}
	return rd.reading
}

// waited is how old the reading is by now.
func (rd *read) waited() time.Duration {
	if rd == nil {
		return 0
	}
	return time.Since(rd.at)
}

// keep makes a read of a reading that was only lent; nil if there is neither that nor an
// error.
func keep(r *store.Reading, err error, at time.Time) *read {
	switch {
	case err != nil:
		return &read{err: err, at: at}
	case r == nil:
		return nil
	}
	return &read{reading: r.Keep(), at: at}
}
