package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

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

// orLater says of a change that was sent and not answered that it may still be carried
// out. After an error reply nothing is to come.
func orLater(op string, fate fate, err error) error {
	if answered := redis.Error(nil); err == nil || fate == notSent || errors.As(err, &answered) || errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrClosed) {
		return err
	}
	return &laterError{op, err}
}

// A laterError is of a change that may still be carried out. Its text is made when it is
// asked for, as the cause of an outage may be known by then.
type laterError struct {
	op  string
	err error
}

func (e *laterError) Error() string {
	return fmt.Sprintf("%v (the %s may still be carried out)", e.err, e.op)
}

// Unwrap returns the error of the change.
func (e *laterError) Unwrap() error { return e.err }
