package cache

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A sender carries out the batches of a lane, one after another. Some stay when
// there is nothing to be sent, and wait for the next batch: their stacks have grown
// to what the client needs, and their pipelines and alarms are made.
type sender[B laden] struct {
	l     *lane[B]
	pipe  redis.Pipeliner
	alarm *alarm[B]

	crowded bool // there was much in the last batch
	hurry   int  // so many batches are sent without yielding
}

func newSender[B laden](l *lane[B]) *sender[B] {
	return &sender[B]{l: l, pipe: l.s.client.Pipeline()}
}

// run sends batches until the node ends, or until one got no answer in time:
// this sender is then still at work in the client, and another takes its place.
func (sn *sender[B]) run() {
	defer sn.discard()
	var none B
	for {
		bt := sn.next()
		if bt == none {
			return
		}
		if !sn.l.n.breaker.allow() {
			bt.claim()
			bt.settle(errBreakerOpen)
		} else if !sn.carryOut(bt) {
			return
		}
		sn.done(bt)
	}
}

// done has the sender come for its next batch.
func (sn *sender[B]) done(bt B) {
	l := sn.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended(bt)
	l.coming++
}

// next waits for a batch. It returns nil when the sender isn't needed any more.
func (sn *sender[B]) next() B {
	var none B
	l := sn.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if bt := l.next(); sn.crowded && bt != none && !bt.full() {
			l.mu.Unlock()
			sn.yield()
			l.mu.Lock()
		}
		l.coming--
		if bt := l.take(); bt != none {
			sn.crowded = bt.crowded()
			l.start()
			return bt
		}
		if !sn.park() {
			return none
		}
	}
}

const (
	// maxYield is how long a sender may be kept from its next batch by those who are
	// about to join it. If it was longer, it was by goroutines that compute.
	maxYield = 2 * time.Millisecond
	// hurriedBatches are sent after such a wait without another.
	hurriedBatches = 100
)

// yield lets others run who may only need a processor to join the next batch, so
// that there are fewer and larger ones.
func (sn *sender[B]) yield() {
	if sn.hurry > 0 {
		sn.hurry--
		return
	}
	start := time.Now()
	runtime.Gosched()
	if time.Since(start) > maxYield {
		sn.hurry = hurriedBatches
	}
}

// park waits until a batch is there to be taken. It answers false if enough
// senders wait, be it that they are awake and haven't noticed: wake has room for no
// more. Or if the node has ended. l.mu is held, but while it waits.
func (sn *sender[B]) park() bool {
	l := sn.l
	if l.parked+len(l.wake) >= maxParked || l.n.ctx.Err() != nil {
		return false
	}
	l.parked++
	l.mu.Unlock()
	sn.crowded = false
	select {
	case <-l.wake:
		l.mu.Lock()
		return true
	case <-l.n.ctx.Done():
	}
	l.mu.Lock()
	if l.parked > 0 {
		l.parked--
		return false
	}
	<-l.wake // start was first
	return true
}

// replace starts a sender in place of one that is stuck with a batch, if there is
// another.
func (l *lane[B]) replace(bt B) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended(bt)
	l.start()
}

// carryOut sends one batch and settles it, after manyTimeout at the latest. It
// answers false if that came first. What do is for a single call, this is for
// batches, without a goroutine for each.
func (sn *sender[B]) carryOut(bt B) bool {
	n := sn.l.n
	after := n.breaker.sent()
	ctx := sn.set(bt, after)
	defer sn.stop()
	select {
	case n.slots <- struct{}{}:
	default:
		select {
		case n.slots <- struct{}{}:
		case <-ctx.Done():
			return false // the alarm gives the batch up
		}
	}
	defer func() { <-n.slots }()
	err := bt.carryOut(ctx, sn.pipe)
	sn.l.s.failed(n, err)
	if !bt.claim() {
		return false
	}
	// What fails is counted before its callers know, who may ask again at once: a
	// batch that seems to have been sent before this failure would add nothing to it.
	if err == nil {
		n.outage.Answered()
		n.breaker.succeeded()
	} else if tripsBreaker(err) {
		n.breaker.failed(after, err)
	}
	bt.settle(err)
	bt.carriedOut()
	return true
}

// giveUp settles a batch that takes too long, unless it is settled, and has
// another sender take the next.
func (l *lane[B]) giveUp(bt B, after int32) {
	if bt.claim() {
		l.s.silent(l.n)
		l.n.breaker.failed(after, errTimeout)
		bt.settle(errTimeout)
		l.replace(bt)
	}
}

// An alarm gives one batch after another up that takes too long, and is the
// context that they are sent on, which ends when it goes off, or with the store.
// It isn't used again then: it may still be looking at its batch.
//
// A context with a timeout for each batch would cost more than all else that is
// done for a lone read in this process.
type alarm[B laden] struct {
	context.Context // the store's
	l               *lane[B]
	timer           *time.Timer
	unhook          func() bool // from the store's end
	done            chan struct{}

	mu       sync.Mutex
	bt       B // nil: none is under way
	after    int32
	d        time.Duration
	at       time.Time
	extended bool
	wentOff  error
}

// set has an alarm for the batch.
func (sn *sender[B]) set(bt B, after int32) *alarm[B] {
	d := sn.l.s.manyTimeout(bt.keys())
	a := sn.alarm
	made := a == nil
	if made {
		a = &alarm[B]{Context: sn.l.s.ctx, l: sn.l, done: make(chan struct{})}
		sn.alarm = a
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bt, a.after, a.d, a.at, a.extended = bt, after, d, time.Now().Add(d), false
	if made {
		a.unhook = context.AfterFunc(a.Context, func() { a.goOff(context.Cause(a.Context)) })
		a.timer = time.AfterFunc(d, a.ring)
	} else {
		a.timer.Reset(d)
	}
	return a
}

// ring is called when the batch has had its time. If that is noticed late it gets as
// much again, once.
func (a *alarm[B]) ring() {
	a.mu.Lock()
	end, first := a.at, !a.extended && a.wentOff == nil
	a.mu.Unlock()
	late := first && a.l.s.noticedLate(a.l.n, end)
	a.mu.Lock()
	extend := late && a.wentOff == nil
	if extend {
		a.extended, a.at = true, time.Now().Add(a.d)
		a.timer.Reset(a.d)
	}
	a.mu.Unlock()
	if !extend {
		a.goOff(context.DeadlineExceeded)
	}
}

func (a *alarm[B]) goOff(why error) {
	var none B
	a.mu.Lock()
	if a.wentOff == nil {
		a.wentOff = why
		close(a.done)
	}
	bt, after := a.bt, a.after
	a.mu.Unlock()
	if bt != none {
		a.l.giveUp(bt, after)
	}
}

// stop is called when the batch is settled, or given up.
func (sn *sender[B]) stop() {
	a := sn.alarm
	if !a.timer.Stop() || a.Err() != nil {
		sn.discard()
		return
	}
	var none B
	a.mu.Lock()
	a.bt = none // a parked sender keeps no results
	a.mu.Unlock()
}

// discard leaves the alarm.
func (sn *sender[B]) discard() {
	if sn.alarm != nil {
		sn.alarm.unhook()
		sn.alarm = nil
	}
}

func (a *alarm[B]) end() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// Deadline implements [context.Context].
func (a *alarm[B]) Deadline() (time.Time, bool) { return a.end(), true }

// Done implements [context.Context].
func (a *alarm[B]) Done() <-chan struct{} { return a.done }

// Err implements [context.Context].
func (a *alarm[B]) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wentOff
}
