package cache

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A sender carries out the batches of a node, one after another. One of them
// stays when there is nothing to be sent, and waits for the next batch: its
// stack has grown to what the client needs, and its pipeline and alarm are made.
type sender struct {
	b     *batcher
	pipe  redis.Pipeliner
	alarm *alarm
}

func newSender(b *batcher) *sender { return &sender{b: b, pipe: b.s.client.Pipeline()} }

// run sends batches until the node ends, or until one got no answer in time:
// this sender is then still at work in the client, and another takes its place.
func (sn *sender) run() {
	for {
		bt := sn.next()
		if bt == nil {
			return
		}
		if !sn.b.n.breaker.allow() {
			bt.settle(nil, errBreakerOpen)
			continue
		}
		if !sn.carryOut(bt) {
			return
		}
	}
}

// next waits for a batch. It returns nil when the sender isn't needed any more.
func (sn *sender) next() *batch {
	b := sn.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if b.asksAgain() {
			b.mu.Unlock()
			_ = sleep(b.s.ctx, missPause)
			b.mu.Lock()
		}
		bt := b.next
		b.next, b.missed = nil, nil
		if bt != nil {
			return bt
		}
		b.senders--
		if b.parked || b.n.ctx.Err() != nil || !sn.park() {
			return nil
		}
	}
}

// park waits until join asks for a sender: then it counts as one again. It
// answers false if the node has ended. b.mu is held, but while it waits.
func (sn *sender) park() bool {
	b := sn.b
	b.parked = true
	b.mu.Unlock()
	select {
	case <-b.wake:
		b.mu.Lock()
		return true
	case <-b.n.ctx.Done():
	}
	b.mu.Lock()
	if b.parked {
		b.parked = false
		return false
	}
	<-b.wake // join was first
	return true
}

// replace starts a sender in place of one that is stuck, if there is a batch.
func (b *batcher) replace() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil || !b.s.spawnCall(newSender(b).run) {
		b.senders--
	}
}

// carryOut sends one batch and settles it, after manyTimeout at the latest. It
// answers false if that came first. What do is for a single call, this is for
// batches, without a goroutine for each.
func (sn *sender) carryOut(bt *batch) bool {
	b := sn.b
	after := b.n.breaker.sent()
	// Reads of many keys may look up the records of very many tags at once.
	patience := b.s.manyTimeout(len(bt.records.names))
	ctx := &deadline{Context: b.s.ctx, at: time.Now().Add(patience)}
	defer ctx.end()
	sn.set(bt, after, patience)
	defer sn.stop()
	select {
	case b.n.slots <- struct{}{}:
	default:
		select {
		case b.n.slots <- struct{}{}:
		case <-ctx.Done():
			bt.giveUp(b, after) // or the alarm has
			return false
		}
	}
	defer func() { <-b.n.slots }()
	tags := b.foresee(bt)
	results, err := b.pipeline(ctx, sn.pipe, bt)
	err = classify("read", err)
	b.note(bt.entries.names, results)
	check := tags.begin(bt, results)
	if !bt.settle(results, err) {
		return false
	}
	check.finishLater()
	if err == nil {
		b.n.breaker.succeeded()
	} else if tripsBreaker(err) {
		b.n.breaker.failed(after, err)
	}
	return true
}

// giveUp settles a batch that takes too long, unless it is settled, and has
// another sender take the next.
func (bt *batch) giveUp(b *batcher, after int32) {
	if bt.settle(nil, errTimeout) {
		b.n.breaker.failed(after, errTimeout)
		b.replace()
	}
}

// An alarm gives one batch after another up that takes too long.
// Once it has gone off it is not used again: it may still be looking at its
// batch.
type alarm struct {
	timer *time.Timer
	bt    *batch
	after int32
}

func (sn *sender) set(bt *batch, after int32, patience time.Duration) {
	if sn.alarm != nil {
		sn.alarm.bt, sn.alarm.after = bt, after
		sn.alarm.timer.Reset(patience)
		return
	}
	a := &alarm{bt: bt, after: after}
	sn.alarm = a
	a.timer = time.AfterFunc(patience, func() { a.bt.giveUp(sn.b, a.after) })
}

func (sn *sender) stop() {
	if !sn.alarm.timer.Stop() {
		sn.alarm = nil
		return
	}
	sn.alarm.bt = nil // a parked sender keeps no results
}

// A deadline is a context that ends at a point in time, or with its parent. It
// costs a timer and a channel only if somebody waits for its end, which the
// client does only when its pool is empty.
type deadline struct {
	context.Context
	at time.Time

	mu    sync.Mutex
	timed context.Context // nil: nobody waits
	stop  context.CancelFunc
	ended bool
}

// Deadline implements [context.Context].
func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

// Done implements [context.Context].
func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.timer().Done()
}

// Err implements [context.Context].
func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed == nil && !d.ended && time.Now().Before(d.at) {
		return d.Context.Err()
	}
	return d.timer().Err()
}

// timer is the context that keeps the time. d.mu is held.
func (d *deadline) timer() context.Context {
	if d.timed == nil {
		d.timed, d.stop = context.WithDeadline(d.Context, d.at)
		if d.ended {
			d.stop()
		}
	}
	return d.timed
}

// end ends it now.
func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.stop != nil {
		d.stop()
	}
}
