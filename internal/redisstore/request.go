package redisstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A request is commands for one node that are sent together, once, and answered together:
// reads or scripts.
type request struct {
	reads   *reads
	scripts *scripts

	values context.Context // the caller's: its values are for hooks of the client
	weight int             // commands, which share the timeout
	bytes  int             // of the commands, or expected of the answers
	since  time.Time       // when it was queued

	state atomic.Int32
	err   error         // classified; of the whole request
	batch batch         // the memory of the batch that the request is the first of
	done  chan struct{} // holds one, when the request has ended; nil: then is told
	then  interface {   // by the goroutine that ends the request: it must be quick
		ended(r *request)
	}
}

// The states of a request. A queued one is sent or withdrawn; a sent one is answered, or
// left by its caller or for its time. The last three are ends.
const (
	queued int32 = iota
	sending
	answered
	withdrawn
	left
)

// A fate tells a caller that goes on whether its request was sent and answered.
type fate byte

const (
	notSent   fate = iota // and never will be
	noAnswer              // sent; scripts.late deals with the answer, if one comes
	gotAnswer             // the answer is there, be it an error
)

// end moves the request from one state to another and, if it was in the first, ends it.
func (r *request) end(from, to int32, err error) bool {
	if !r.state.CompareAndSwap(from, to) {
		return false
	}
	r.err = err
	if r.then != nil {
		r.then.ended(r)
	} else {
		r.done <- struct{}{}
	}
	return true
}

// answer ends a request that was sent, or deals with its answer if it was left.
func (r *request) answer(err error) {
	if !r.end(sending, answered, err) && err == nil && r.scripts != nil && r.scripts.late != nil {
		r.scripts.late.answeredLate(r.scripts.replies)
	}
}

// fate is that of a request that has ended.
func (r *request) fate() fate {
	switch r.state.Load() {
	case answered:
		return gotAnswer
	case left:
		return noAnswer
	}
	return notSent
}

// do sends a request and waits for its end: until ctx ends, or the store is closed.
func (n *node) do(ctx context.Context, q *queue, r *request) (fate, error) {
	n.start(ctx, q, r)
	return n.await(ctx, r)
}

// start sends a request; await waits for its end.
func (n *node) start(ctx context.Context, q *queue, r *request) {
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
func (n *node) await(ctx context.Context, r *request) (fate, error) {
	defer n.s.dones.Put(r.done) // whatever ended the request, the channel is empty again
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
	case <-n.s.ctx.Done():
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
