package redisstore

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// A sender carries out the batches of a queue, one after another. Some senders stay when
// there is nothing to send, and wait for the next batch.
type sender struct {
	q     *queue
	pipe  redis.Pipeliner
	alarm *alarm // nil: it is made for the next batch
}

func newSender(q *queue) *sender { return &sender{q: q, pipe: q.n.s.client.Pipeline()} }

// run sends batches until the node ends or a batch got no answer in time: this sender is
// then still at work in the client, and another one has taken its place.
func (sn *sender) run() {
	defer sn.discard()
	for b := sn.next(); b != nil; b = sn.next() {
		if !sn.carryOut(b) {
			return
		}
		sn.q.done(b)
	}
}

// next waits for a batch. It returns nil when the sender is not needed any more.
func (sn *sender) next() *batch {
	q := sn.q
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		q.coming--
		if b := q.takeLocked(); b != nil {
			q.startLocked()
			return b
		}
		if !sn.parkLocked() {
			return nil
		}
	}
}

// parkLocked waits until a batch is there to be taken. It reports false if enough senders
// wait, or if the node has ended. mu is not held while it waits.
func (sn *sender) parkLocked() bool {
	q := sn.q
	if q.parked+len(q.wake) >= maxParked || q.n.ctx.Err() != nil {
		return false
	}
	q.parked++
	q.mu.Unlock()
	select {
	case <-q.wake:
		q.mu.Lock()
		return true
	case <-q.n.ctx.Done():
	}
	q.mu.Lock()
	if q.parked > 0 {
		q.parked--
		return false
	}
	<-q.wake // startLocked was first
	return true
}

// carryOut sends one batch. It reports false if the batch was given up.
func (sn *sender) carryOut(b *batch) bool {
	n := sn.q.n
	if !n.breaker.allow() {
		err := n.away()
		for _, r := range b.rs {
			r.end(sending, withdrawn, err)
		}
		return true
	}
	b.after = n.breaker.sent()
	a := sn.set(b)
	defer sn.reset()
	err := sn.q.send(a, sn.pipe, b.rs)
	n.noteOutcome(err)
	inTime := b.ended.CompareAndSwap(false, true)
	if inTime {
		n.breaker.count(b.after, err) // before the callers know, which may ask again at once
	}
	err = n.explain(err)
	for _, r := range b.rs {
		r.answer(err)
	}
	return inTime
}

// set has an alarm for the batch.
func (sn *sender) set(b *batch) *alarm {
	s := sn.q.n.s
	a := sn.alarm
	made := a == nil
	if made {
		a = &alarm{q: sn.q, done: make(chan struct{})}
		sn.alarm = a
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.b, a.values, a.extended = b, b.rs[0].values, false
	a.timeout = s.timeout(b.weight)
	a.end = time.Now().Add(a.timeout)
	if made {
		a.unhook = context.AfterFunc(s.ctx, func() { a.goOff(store.ErrClosed) })
		a.timer = time.AfterFunc(a.timeout, a.ring)
	} else {
		a.timer.Reset(a.timeout)
	}
	return a
}

// reset stops the alarm when its batch has ended. One that has gone off, or is about to,
// is not used again: it may still look at its batch.
func (sn *sender) reset() {
	a := sn.alarm
	if !a.timer.Stop() || a.Err() != nil {
		sn.discard()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.b, a.values = nil, nil // a parked sender keeps no results
}

func (sn *sender) discard() {
	if sn.alarm != nil {
		sn.alarm.timer.Stop()
		sn.alarm.unhook()
		sn.alarm = nil
	}
}

// An alarm gives up a batch that takes too long. It is the context that batches are sent
// on, one after another: a context with a timeout for each would cost more than the rest
// of a lone read in this process.
type alarm struct {
	q      *queue
	timer  *time.Timer
	unhook func() bool // from the store's end
	done   chan struct{}

	mu       sync.Mutex
	b        *batch          // nil: none is under way
	values   context.Context // of the first request's caller
	end      time.Time
	timeout  time.Duration
	extended bool
	why      error // the alarm went off
}

// ring is called when the batch has had its time. If that is noticed late it gets as much
// again, once: this process may be short of CPU, and the reply already buffered.
func (a *alarm) ring() {
	a.mu.Lock()
	end, first := a.end, !a.extended && a.why == nil
	a.mu.Unlock()
	late := first && a.q.n.isLate(end)
	a.mu.Lock()
	extend := late && a.why == nil
	if extend {
		a.extended, a.end = true, time.Now().Add(a.timeout)
		a.timer.Reset(a.timeout)
	}
	a.mu.Unlock()
	if !extend {
		a.goOff(errTimeout)
	}
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
