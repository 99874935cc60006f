package redisstore

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// An alarm gives up a batch that takes too long. It is the context that the batch is sent
// on. A sender uses one alarm for many batches, one after another: a context with a timeout
// for each costs more than everything else that a lone read does in this process. Its timer
// runs on between two batches: a timer that is set and stopped for each wakes a thread each
// time. An alarm that went off is not used again.
type alarm struct {
	q      *queue
	timer  *time.Timer
	unhook func() bool // from the store's end
	done   chan struct{}

	mu       sync.Mutex      // guards memory only
	b        *batch          // nil between two batches
	values   context.Context // of the first request's caller
	end      time.Time
	timeout  time.Duration
	extended bool
	rings    time.Time // of the timer; zero: it is not set
	why      error     // nil until the alarm goes off
}

func newAlarm(q *queue) *alarm {
	return &alarm{q: q, done: make(chan struct{})}
}

// set starts the alarm for a batch. If the store was closed between two batches the alarm
// has gone off already, without one: set then gives up this batch.
func (a *alarm) set(b *batch) {
	if off := a.start(b); off != nil {
		a.goOff(off, nil)
	}
}

func (a *alarm) start(b *batch) (off error) {
	s := a.q.n.s
	a.mu.Lock()
	defer a.mu.Unlock()
	a.b, a.values, a.extended = b, b.rs[0].values, false
	a.timeout = s.timeout(b.weight)
	a.end = time.Now().Add(a.timeout)
	if a.timer == nil {
		a.unhook = context.AfterFunc(s.ctx, func() { a.goOff(store.ErrClosed, nil) })
		a.timer = time.AfterFunc(a.timeout, a.ring)
		a.rings = a.end
	} else if a.rings.IsZero() || a.rings.After(a.end) {
		a.startLocked()
	}
	return a.why
}

// startLocked has the timer ring at the end.
func (a *alarm) startLocked() {
	a.rings = a.end
	a.timer.Reset(time.Until(a.end))
}

// reset ends the batch. It reports false if the alarm has gone off.
func (a *alarm) reset() bool {
	a.mu.Lock()
	a.b, a.values = nil, nil // a parked sender keeps no results
	usable := a.why == nil
	a.mu.Unlock()
	if !usable {
		a.discard()
	}
	return usable
}

func (a *alarm) discard() {
	a.timer.Stop()
	a.unhook()
}

// ring is called by the timer, which may have been set for an earlier batch. If the end of
// this one is noticed late it gets as much time again, once: this process may be short of
// CPU, and the reply already buffered.
func (a *alarm) ring() {
	a.mu.Lock()
	a.rings = time.Time{}
	b, end, first := a.b, a.end, !a.extended
	early := b != nil && time.Now().Before(end)
	if early {
		a.startLocked()
	}
	a.mu.Unlock()
	if b == nil || early {
		return
	}
	if first && a.isLate(end) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.why == nil && a.b == b {
			a.extended, a.end = true, time.Now().Add(a.timeout)
			a.startLocked()
		}
		return
	}
	a.goOff(errTimeout, b)
}

// goOff gives up the batch under way: only that one, unless only is nil.
func (a *alarm) goOff(why error, only *batch) {
	a.mu.Lock()
	if only != nil && a.b != only {
		a.mu.Unlock()
		return
	}
	if a.why == nil {
		a.why = why
		close(a.done)
	}
	b := a.b
	a.mu.Unlock()
	if b != nil {
		a.q.giveUp(b, why)
	}
}

// Deadline implements [context.Context].
func (a *alarm) Deadline() (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end, true
}

// Done implements [context.Context].
func (a *alarm) Done() <-chan struct{} { return a.done }

// Err implements [context.Context].
func (a *alarm) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.why == nil {
		return nil
	}
	return context.DeadlineExceeded
}

// Value implements [context.Context].
func (a *alarm) Value(key any) any {
	a.mu.Lock()
	values := a.values
	a.mu.Unlock()
	if values == nil {
		return nil
	}
	return values.Value(key)
}

// lateThreshold: if a timeout fires more than this late, the process was starved of CPU
// and the reply may already be buffered.
const lateThreshold = 20 * time.Millisecond

// isLate reports whether the end of a timeout is noticed late.
func (a *alarm) isLate(end time.Time) bool {
	runtime.Gosched() // runnable goroutines first: one may be the reader of the reply
	late := time.Since(end)
	if late <= lateThreshold {
		return false
	}
	a.q.n.s.report(store.Event{Kind: store.ProcessLate, Node: a.q.n.addr, Duration: late})
	return true
}
