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

// A request is commands for one node that are sent together, once, and answered
// together: reads or scripts.
type request struct {
	reads   *reads
	scripts *scripts

	values context.Context // the caller's: its values are for hooks of the client
	weight int             // commands, which share the timeout
	bytes  int             // of the commands, or expected of the answers
	since  time.Time

	state atomic.Int32
	err   error          // classified; of the whole request
	done  chan struct{}  // closed when the request is answered or given up; nil: then is called
	then  func(*request) // by the goroutine that ends the request: it must be quick
	late  func(*request) // deals with an answer that comes after the request was given up; nil: none is needed
}

// The states of a request. A queued one is either sent or withdrawn; a sent one is
// answered, or left by its caller or for its time.
const (
	queued int32 = iota
	sending
	answered
	withdrawn
	left
)

// fate is what is known of a request when its caller goes on.
type fate byte

const (
	notSent   fate = iota // and never will be
	noAnswer              // sent; late deals with the answer, if one comes
	gotAnswer             // the answer is there, be it an error
)

// end moves the request from one state to another and, if it was in the first, ends it.
func (r *request) end(from, to int32, err error) bool {
	if !r.state.CompareAndSwap(from, to) {
		return false
	}
	r.err = err
	if r.then != nil {
		r.then(r)
	} else {
		close(r.done)
	}
	return true
}

// answer ends a request that was sent, or deals with its answer if its caller has left.
func (r *request) answer(err error) {
	if !r.end(sending, answered, err) && err == nil && r.late != nil {
		r.late(r)
	}
}

// A queue sends the requests for one node in batches: while some are under way, further
// requests collect, and go together when one has ended. A lone request goes at once.
// Databases call it group commit.
type queue struct {
	n    *node
	send func(ctx context.Context, pipe redis.Pipeliner, rs []*request) error

	side   int // batches that may be under way while they hold fewer than few commands
	few    int
	full   int // batches under way, if they are full
	weight int // commands of a full batch; a larger request goes by itself
	bytes  int // of a full batch

	mu      sync.Mutex // guards memory only
	waiting []*request
	load    load // of those that wait
	flying  []*batch
	coming  int           // senders that are about to take a batch
	parked  int           // senders that wait for wake
	wake    chan struct{} // holds maxParked
}

// A batch is the requests that go together.
type batch struct {
	rs     []*request
	weight int
	ended  atomic.Bool // it was answered, or given up
}

// A load is how much some requests hold.
type load struct{ weight, bytes int }

func (l load) plus(r *request) load { return load{l.weight + r.weight, l.bytes + r.bytes} }

// full reports whether a batch need not wait for more.
func (q *queue) isFull(l load) bool { return l.weight >= q.weight || l.bytes >= q.bytes }

// maxParked senders of a queue stay when there is nothing to send: their stacks have
// grown to the depth of the client.
const maxParked = 4

// submit queues a request. It is given up if the store is closed.
func (q *queue) submit(r *request) {
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
	if len(q.waiting) == 0 || q.coming > 0 && !q.isFull(q.load) || !q.mayGoLocked() {
		return true
	}
	q.coming++
	if q.parked > 0 {
		q.parked--
		q.wake <- struct{}{}
		return true
	}
	return q.n.s.spawnCall((&sender{q: q, pipe: q.n.s.client.Pipeline()}).run)
}

// mayGoLocked reports whether one more batch may be under way.
func (q *queue) mayGoLocked() bool {
	busy := len(q.flying) + q.coming
	if busy == 0 || busy < q.full && q.isFull(q.load) {
		return true
	}
	commands := 0
	for _, b := range q.flying {
		commands += b.weight
	}
	return busy < q.side && commands < q.few
}

// takeLocked takes the next batch out of the queue, or returns nil.
func (q *queue) takeLocked() *batch {
	if len(q.waiting) == 0 || !q.mayGoLocked() {
		return nil
	}
	b, taken, n := &batch{}, load{}, 0
	for _, r := range q.waiting {
		byItself := q.isFull(load{}.plus(r))
		if more := taken.plus(r); n > 0 && (byItself || more.weight > q.weight || more.bytes > q.bytes) {
			break
		}
		taken, n = taken.plus(r), n+1
		if byItself {
			break
		}
	}
	b.weight = taken.weight
	q.load.weight, q.load.bytes = q.load.weight-taken.weight, q.load.bytes-taken.bytes
	b.rs = slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	q.flying = append(q.flying, b)
	return b
}

func (q *queue) removeLocked(b *batch) {
	if i := slices.Index(q.flying, b); i >= 0 {
		q.flying = slices.Delete(q.flying, i, i+1)
	}
}

// fail ends all requests that wait, and the reads under way: the node is away.
func (q *queue) fail(err error) {
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
	for _, r := range waiting {
		r.end(queued, withdrawn, err)
	}
	for _, r := range reading {
		r.end(sending, left, err)
	}
}

// A sender carries out the batches of a queue, one after another.
type sender struct {
	q     *queue
	pipe  redis.Pipeliner
	alarm *alarm // of the batch under way, kept for the next; nil: none yet, or used up
}

// run sends batches until the node ends or a batch got no answer in time.
func (sn *sender) run() {
	defer sn.discard()
	for b := sn.next(); b != nil; b = sn.next() {
		if !sn.carryOut(b) {
			return
		}
		sn.q.mu.Lock()
		sn.q.removeLocked(b)
		sn.q.coming++
		sn.q.mu.Unlock()
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
		for _, r := range b.rs {
			r.end(queued, withdrawn, n.away())
		}
		return true
	}
	rs := slices.DeleteFunc(b.rs, func(r *request) bool { return !r.state.CompareAndSwap(queued, sending) })
	if len(rs) == 0 {
		return true
	}
	after := n.breaker.sent()
	if sn.alarm == nil {
		sn.alarm = newAlarm(sn.q)
	}
	sn.alarm.set(b, rs[0].values, after)
	err := sn.q.send(sn.alarm, sn.pipe, rs)
	if !sn.alarm.reset() {
		sn.alarm = nil
	}
	n.noteOutcome(err)
	inTime := b.ended.CompareAndSwap(false, true)
	if inTime {
		n.breaker.count(after, err) // before the callers know, which may ask again at once
	}
	err = n.explain(err)
	for _, r := range rs {
		r.answer(err)
	}
	return inTime
}

func (sn *sender) discard() {
	if sn.alarm != nil {
		sn.alarm.discard()
	}
}

// giveUp ends a batch that takes too long and has another sender take the next one.
func (q *queue) giveUp(b *batch, after int32, why error) {
	if !b.ended.CompareAndSwap(false, true) {
		return
	}
	q.n.breaker.count(after, why)
	if errors.Is(why, errTimeout) {
		q.n.silent()
		why = q.n.explain(why)
	}
	for _, r := range b.rs {
		r.end(sending, left, why)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.removeLocked(b)
	q.startLocked()
}

// do sends a request and waits for its end: until ctx ends, or the store is closed.
func (n *node) do(ctx context.Context, q *queue, r *request) (fate, error) {
	n.start(ctx, q, r)
	return n.await(ctx, r)
}

// start sends a request; await waits for its end.
func (n *node) start(ctx context.Context, q *queue, r *request) {
	r.values, r.done = ctx, make(chan struct{})
	switch err := ended(ctx); {
	case err != nil:
		r.end(queued, withdrawn, fmt.Errorf("%w: %w", errEndedBefore, err))
	case !n.breaker.allow():
		r.end(queued, withdrawn, n.away())
	default:
		q.submit(r)
	}
}

func (n *node) await(ctx context.Context, r *request) (fate, error) {
	var err error
	select {
	case <-r.done:
		return r.fate(), r.err
	case <-ctx.Done():
		err = ended(ctx)
	case <-n.s.ctx.Done():
		err = store.ErrClosed
	}
	switch {
	case r.state.CompareAndSwap(queued, withdrawn):
		return notSent, err
	case r.state.CompareAndSwap(sending, left):
		return noAnswer, err
	}
	<-r.done // it was ended at this very moment
	return r.fate(), r.err
}

func (r *request) fate() fate {
	switch r.state.Load() {
	case answered:
		return gotAnswer
	case left:
		return noAnswer
	}
	return notSent
}
