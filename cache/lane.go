package cache

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// A lane sends what is asked of a node in batches: while some are under way, what
// comes is collected, and goes together when one has ended. A lone one goes at
// once. Databases call it group commit.
type lane[B laden] struct {
	s    *Redis
	n    *node
	open func() B // makes an empty batch
	// mayGo is asked with mu held whether a batch may be sent while so many are under
	// way, or about to be taken by a sender. Where none is, any may.
	mayGo func(bt B, busy int) bool
	// took, if there is one, is told with mu held of a batch that has left the queue.
	took func(B)

	mu     sync.Mutex
	queue  []B // collecting: all but the last take nothing new
	under  []B // under way
	coming int // senders that are about to take a batch
	parked int // senders that wait for wake
	wake   chan struct{}
}

// maxParked senders of a lane stay when there is nothing to be sent.
const maxParked = 4

func newLane[B laden](s *Redis, n *node, open func() B, mayGo func(B, int) bool) *lane[B] {
	return &lane[B]{s: s, n: n, open: open, mayGo: mayGo, wake: make(chan struct{}, maxParked)}
}

// laden is a batch: a pointer to what embeds a load.
type laden interface {
	comparable
	// full is asked with the lane's mu held: nobody waits for others to join.
	full() bool
	// keys is what the batch's timeout goes by: see manyTimeout.
	keys() int
	// carryOut sends it and keeps what is answered. Its error is classified, and
	// that of the whole batch.
	carryOut(ctx context.Context, pipe redis.Pipeliner) error
	// carriedOut is called when it was answered in time, and has been settled.
	carriedOut()
	// crowded reports whether there is much in it that different callers want.
	crowded() bool
	// claim answers whether the caller is the first who would settle the batch. It
	// does then, when all is done that those who wait for it are to find.
	claim() bool
	settle(err error)
}

// A load is what batches have in common: they are settled once.
type load struct {
	claimed atomic.Bool
	err     error // of all that is in it
	done    chan struct{}
}

func newLoad() load { return load{done: make(chan struct{})} }

func (l *load) claim() bool { return l.claimed.CompareAndSwap(false, true) }

// settle ends the wait for the batch. Only who has claimed it calls it.
func (l *load) settle(err error) {
	l.err = err
	close(l.done)
}

// join adds to the batch of the queue that find answers with mu held, or, if that is
// nil, to a new one, and sees to it that it will be sent. It returns nil when the
// store has been closed.
func (l *lane[B]) join(find func() B, add func(B)) B {
	var none B
	l.mu.Lock()
	defer l.mu.Unlock()
	bt := find()
	if bt == none {
		bt = l.open()
		l.queue = append(l.queue, bt)
	}
	add(bt)
	if !l.start() {
		return none
	}
	return bt
}

// start sees to it that a sender comes for the first batch that none is coming for,
// if that may go. It answers false if the store has been closed. mu is held.
func (l *lane[B]) start() bool {
	if l.coming >= len(l.queue) || !l.may(l.queue[l.coming]) {
		return true
	}
	l.coming++
	if l.parked > 0 {
		l.parked--
		l.wake <- struct{}{}
		return true
	}
	return l.s.spawnCall(newSender(l).run)
}

func (l *lane[B]) may(bt B) bool {
	busy := len(l.under) + l.coming
	return busy == 0 || l.mayGo(bt, busy)
}

// next is the batch that is to be sent next, if there is one. mu is held.
func (l *lane[B]) next() (bt B) {
	if len(l.queue) > 0 {
		bt = l.queue[0]
	}
	return bt
}

// take takes that out of the queue, if it may go. mu is held.
func (l *lane[B]) take() (bt B) {
	if len(l.queue) == 0 || !l.may(l.queue[0]) {
		return bt
	}
	bt = l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	l.under = append(l.under, bt)
	if l.took != nil {
		l.took(bt)
	}
	return bt
}

// ended takes out a batch that isn't under way any more.
func (l *lane[B]) ended(bt B) {
	i := slices.Index(l.under, bt)
	l.under = slices.Delete(l.under, i, i+1)
}
