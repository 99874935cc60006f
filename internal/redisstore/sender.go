package redisstore

import "github.com/redis/go-redis/v9"

// A sender carries out the batches of a queue, one after another. Some senders stay when
// there is nothing to send, and wait for the next batch.
type sender struct {
	q     *queue
	pipe  redis.Pipeliner
	alarm *alarm // of the batch under way, kept for the next; nil: none yet, or used up
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
	if sn.alarm == nil {
		sn.alarm = newAlarm(sn.q)
	}
	sn.alarm.set(b)
	err := sn.q.send(sn.alarm, sn.pipe, b.rs)
	if !sn.alarm.reset() {
		sn.alarm = nil
	}
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

func (sn *sender) discard() {
	if sn.alarm != nil {
		sn.alarm.discard()
	}
}
