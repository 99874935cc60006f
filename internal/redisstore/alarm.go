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
// for each costs more than everything else that a lone read does in this process. An alarm
// that went off is not used again.
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
	why      error // nil until the alarm goes off
}

func newAlarm(q *queue) *alarm {
	return &alarm{q: q, done: make(chan struct{})}
}

// set starts the alarm for a batch. If the store was closed between two batches the alarm
// has gone off already, without one: set then gives up this batch.
func (a *alarm) set(b *batch) {
	if off := a.start(b); off != nil {
		a.goOff(off)
	}
}

func (a *alarm) start(b *batch) (off error) {
	s := a.q.n.s
	a.mu.Lock()
	defer a.mu.Unlock()
	a.b, a.values, a.extended = b, b.rs[0].values, false
	a.timeout = s.timeout(b.weight)
	a.end = time.Now().Add(a.timeout)
	if a.timer != nil {
		a.timer.Reset(a.timeout)
		return a.why
	}
	a.unhook = context.AfterFunc(s.ctx, func() { a.goOff(store.ErrClosed) })
	a.timer = time.AfterFunc(a.timeout, a.ring)
	return nil
}

// reset stops the alarm. It reports false if the alarm may have gone off: its timer may then
// still be about to call ring.
func (a *alarm) reset() bool {
	stopped := a.timer.Stop()
	a.mu.Lock()
	a.b, a.values = nil, nil // a parked sender keeps no results
	usable := stopped && a.why == nil
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

// ring is called when the batch has had its time. If that is noticed late it gets as much
// again, once: this process may be short of CPU, and the reply already buffered.
func (a *alarm) ring() {
	a.mu.Lock()
	end, first := a.end, !a.extended && a.why == nil && a.b != nil
	a.mu.Unlock()
	if first && a.q.n.isLate(end) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.why == nil && a.b != nil {
			a.extended, a.end = true, time.Now().Add(a.timeout)
			a.timer.Reset(a.timeout)
		}
		return
	}
	a.goOff(errTimeout)
}

func (a *alarm) goOff(why error) {
	a.mu.Lock()
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
func (n *node) isLate(end time.Time) bool {
	runtime.Gosched() // runnable goroutines first: one may be the reader of the reply
	late := time.Since(end)
	if late <= lateThreshold {
		return false
	}
	n.s.report(store.Event{Kind: store.ProcessLate, Node: n.addr, Duration: late})
	return true
}
