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
	defer sn.discard()
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
	ctx := sn.set(bt, after)
	defer sn.stop()
	select {
	case b.n.slots <- struct{}{}:
	default:
		select {
		case b.n.slots <- struct{}{}:
		case <-ctx.Done():
			return false // the alarm gives the batch up
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

// An alarm gives one batch after another up that takes too long, and is the
// context that they are sent on, which ends when it goes off, or with the store.
// It isn't used again then: it may still be looking at its batch.
//
// A context with a timeout for each batch would cost more than all else that is
// done for a lone read in this process.
type alarm struct {
	context.Context // the store's
	b               *batcher
	timer           *time.Timer
	unhook          func() bool // from the store's end
	done            chan struct{}

	mu      sync.Mutex
	bt      *batch // nil: none is under way
	after   int32
	at      time.Time
	wentOff error
}

// set has an alarm for the batch.
func (sn *sender) set(bt *batch, after int32) *alarm {
	// Reads of many keys may look up the records of very many tags at once.
	d := sn.b.s.manyTimeout(len(bt.records.names))
	a := sn.alarm
	made := a == nil
	if made {
		a = &alarm{Context: sn.b.s.ctx, b: sn.b, done: make(chan struct{})}
		sn.alarm = a
	}
	a.mu.Lock()
	a.bt, a.after, a.at = bt, after, time.Now().Add(d)
	a.mu.Unlock()
	if made {
		a.unhook = context.AfterFunc(a.Context, func() { a.goOff(context.Cause(a.Context)) })
		a.timer = time.AfterFunc(d, func() { a.goOff(context.DeadlineExceeded) })
	} else {
		a.timer.Reset(d)
	}
	return a
}

func (a *alarm) goOff(why error) {
	a.mu.Lock()
	if a.wentOff == nil {
		a.wentOff = why
		close(a.done)
	}
	bt, after := a.bt, a.after
	a.mu.Unlock()
	if bt != nil {
		bt.giveUp(a.b, after)
	}
}

// stop is called when the batch is settled, or given up.
func (sn *sender) stop() {
	a := sn.alarm
	if !a.timer.Stop() || a.Err() != nil {
		sn.discard()
		return
	}
	a.mu.Lock()
	a.bt = nil // a parked sender keeps no results
	a.mu.Unlock()
}

// discard leaves the alarm.
func (sn *sender) discard() {
	if sn.alarm != nil {
		sn.alarm.unhook()
		sn.alarm = nil
	}
}

// Deadline implements [context.Context].
func (a *alarm) Deadline() (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at, true
}

// Done implements [context.Context].
func (a *alarm) Done() <-chan struct{} { return a.done }

// Err implements [context.Context].
func (a *alarm) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wentOff
}
