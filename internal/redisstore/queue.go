package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// A queue sends the requests for one node in batches: while some are under way, further
// requests collect, and go together when one has ended. A lone request goes at once.
// Databases call it group commit. A request that fills a batch by itself goes by a queue
// of such requests, so that no small one waits for it.
type queue struct {
	n     *node
	limit batchLimits
	send  func(ctx context.Context, pipe redis.Pipeliner, rs []*request) error
	large *queue // nil: this is it

	mu      sync.Mutex // guards memory only
	waiting []*request
	load    load // of those that wait
	flying  []*batch
	coming  int           // senders that are about to take a batch
	parked  int           // senders that wait for wake
	wake    chan struct{} // holds maxParked
}

// batchLimits say how large batches are, and how many may be under way.
type batchLimits struct {
	weight, bytes int // of a full batch
	full          int // batches under way, if the next one is full
	side          int // batches under way, if the next one is not full
	few           int // and they hold fewer commands than this
}

// A batch is the requests that go together. They do not change.
type batch struct {
	rs     []*request
	one    [1]*request // the memory of rs, if it is one
	weight int
	after  int32       // the breaker's, see breaker.sent
	ended  atomic.Bool // it was answered, or given up
}

// A load is how much some requests hold.
type load struct{ weight, bytes int }

func (l load) plus(r *request) load { return load{l.weight + r.weight, l.bytes + r.bytes} }

// maxParked senders of a queue stay when there is nothing to send: their stacks have
// grown to the depth of the client.
const maxParked = 4

func newQueue(n *node, limit batchLimits, send func(context.Context, redis.Pipeliner, []*request) error) *queue {
	large := &queue{n: n, limit: limit, send: send, wake: make(chan struct{}, maxParked)}
	return &queue{n: n, limit: limit, send: send, wake: make(chan struct{}, maxParked), large: large}
}

func (q *queue) isFull(l load) bool { return l.weight >= q.limit.weight || l.bytes >= q.limit.bytes }

// do sends a request and waits for its end: until ctx ends, or the store is closed.
func (q *queue) do(ctx context.Context, r *request) (fate, error) {
	q.start(ctx, r)
	return q.await(ctx, r)
}

// start sends a request; await waits for its end.
func (q *queue) start(ctx context.Context, r *request) {
	n := q.n
	r.values = ctx
	if done, ok := n.s.dones.Get().(chan struct{}); ok {
		r.done = done
	} else {
		r.done = make(chan struct{}, 1)
	}
	switch err := store.Ended(ctx); {
	case err != nil:
		r.end(queued, withdrawn, fmt.Errorf("%w: %w", errEndedBefore, err))
	case n.s.ctx.Err() != nil:
		r.end(queued, withdrawn, store.ErrClosed)
	case !n.breaker.allow():
		r.end(queued, withdrawn, n.away())
	default:
		q.submit(r)
	}
}

// await is called once for a request.
func (q *queue) await(ctx context.Context, r *request) (fate, error) {
	defer q.n.s.dones.Put(r.done) // whatever ended the request, the channel is empty again
	var ended <-chan struct{}
	if ctx != nil {
		ended = ctx.Done()
	}
	var err error
	select {
	case <-r.done:
		return r.fate(), r.err
	case <-ended:
		err = store.Ended(ctx)
	case <-q.n.s.ctx.Done():
		err = store.ErrClosed
	}
	switch {
	case r.state.CompareAndSwap(queued, withdrawn):
		return notSent, err
	case r.state.CompareAndSwap(sending, left):
		return noAnswer, err
	}
	<-r.done // it ended at this very moment
	return r.fate(), r.err
}

// submit queues a request. If the store is closed the request ends.
func (q *queue) submit(r *request) {
	if q.large != nil && q.isFull(load{}.plus(r)) {
		q = q.large
	}
	r.since = time.Now()
	q.mu.Lock()
	q.waiting, q.load = append(q.waiting, r), q.load.plus(r)
	started := q.startLocked()
	q.mu.Unlock()
	if !started {
		r.end(queued, withdrawn, store.ErrClosed)
	}
}

// startLocked sees to it that a sender comes for the next batch, if that may go. It
// reports false if the store has been closed.
func (q *queue) startLocked() bool {
	enough := q.coming*q.limit.weight >= q.load.weight && q.coming*q.limit.bytes >= q.load.bytes
	if len(q.waiting) == 0 || enough || !q.mayGoLocked() {
		return true
	}
	q.coming++
	if q.parked > 0 {
		q.parked--
		q.wake <- struct{}{}
		return true
	}
	return q.n.s.spawnCall(newSender(q).run)
}

// mayGoLocked reports whether one more batch may be under way.
func (q *queue) mayGoLocked() bool {
	busy := len(q.flying) + q.coming
	if busy == 0 || busy < q.limit.full && q.isFull(q.load) {
		return true
	}
	commands := 0
	for _, b := range q.flying {
		commands += b.weight
	}
	return busy < q.limit.side && commands < q.limit.few
}

// takeLocked takes the next batch out of the queue, or returns nil. From now on its
// requests are being sent.
func (q *queue) takeLocked() *batch {
	if len(q.waiting) == 0 || !q.mayGoLocked() {
		return nil
	}
	b, taken, n := &q.waiting[0].batch, load{}, 0
	b.rs = b.one[:0]
	for _, r := range q.waiting {
		if q.isFull(taken) {
			break
		}
		taken = taken.plus(r)
		n++
		if r.state.CompareAndSwap(queued, sending) {
			b.rs = append(b.rs, r)
			b.weight += r.weight
		}
	}
	q.dropLocked(n)
	if len(b.rs) == 0 {
		return q.takeLocked() // all of them were withdrawn
	}
	q.flying = append(q.flying, b)
	return b
}

// dropLocked takes the first n requests out of the queue.
func (q *queue) dropLocked(n int) {
	for _, r := range q.waiting[:n] {
		q.load.weight, q.load.bytes = q.load.weight-r.weight, q.load.bytes-r.bytes
	}
	q.waiting = slices.Delete(q.waiting, 0, n)
}

func (q *queue) removeLocked(b *batch) {
	if i := slices.Index(q.flying, b); i >= 0 {
		q.flying = slices.Delete(q.flying, i, i+1)
	}
}

// shedLocked takes the requests out of the queue that have waited for that part of their
// timeout, or longer.
func (q *queue) shedLocked(part float64) (late []*request) {
	now := time.Now()
	isLate := func(r *request) bool {
		return float64(now.Sub(r.since)) >= part*float64(q.n.s.timeout(r.weight))
	}
	for _, r := range q.waiting { // one of many keys may stay before others that are late
		if isLate(r) {
			late = append(late, r)
		}
	}
	if late != nil {
		q.waiting = slices.Concat(late, slices.DeleteFunc(q.waiting, isLate))
		q.dropLocked(len(late))
	}
	return late
}

// done takes note that a batch has ended, and that its sender comes for the next one.
func (q *queue) done(b *batch) {
	q.mu.Lock()
	q.removeLocked(b)
	q.coming++
	late := q.shedLocked(1)
	q.mu.Unlock()
	if late != nil {
		withdraw(late, q.n.explain(errTimeout))
	}
}

func withdraw(rs []*request, err error) {
	for _, r := range rs {
		r.end(queued, withdrawn, err)
	}
}

// giveUp ends a batch that takes too long, and has another sender take the next one. The
// requests that have been waiting for long end with it: where one batch gets no answer
// they would wait in vain for batch after batch.
func (q *queue) giveUp(b *batch, why error) {
	if !b.ended.CompareAndSwap(false, true) {
		return
	}
	q.n.breaker.count(b.after, why)
	timeout := errors.Is(why, errTimeout)
	if timeout {
		q.n.silent()
		why = q.n.explain(why)
	}
	q.mu.Lock()
	q.removeLocked(b)
	part := 0.0
	if timeout {
		part = 0.5
	}
	late := q.shedLocked(part)
	if !q.startLocked() {
		late = append(late, q.shedLocked(0)...) // no sender comes any more
	}
	q.mu.Unlock()
	for _, r := range b.rs {
		r.end(sending, left, why)
	}
	withdraw(late, why)
}

// fail ends all requests that wait, and the reads under way: the node is away.
func (q *queue) fail(err error) {
	if q.large != nil {
		q.large.fail(err)
	}
	q.mu.Lock()
	waiting := q.waiting
	q.waiting, q.load = nil, load{}
	var reading []*request
	for _, b := range q.flying {
		for _, r := range b.rs {
			if r.reads != nil {
				reading = append(reading, r)
			}
		}
	}
	q.mu.Unlock()
	withdraw(waiting, err)
	for _, r := range reading {
		r.end(sending, left, err)
	}
}
