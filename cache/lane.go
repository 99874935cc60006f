package cache

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// A lane sends what is asked of a node in batches, one after another: while one
// is under way, what comes is collected, and goes together when it has ended. A
// lone one goes at once. Databases call it group commit.
type lane[B laden] struct {
	s     *Redis
	n     *node
	limit int      // batches that may be under way at once, besides full ones
	open  func() B // makes an empty batch
	// hold, if there is one, is asked with mu held before the next batch is taken,
	// which may be none, and answers whether to leave it for a missPause first.
	hold func(next B) bool

	mu      sync.Mutex
	next    B // collecting, if there is one
	senders int
	parked  bool // a sender waits for wake
	wake    chan struct{}
}

// laden is a batch: a pointer to what embeds a load.
type laden interface {
	comparable
	// full is asked with the lane's mu held: a full batch waits for no other.
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

// join adds to the batch that collects, and sees to it that it will be sent. It
// returns nil when the store has been closed.
func (l *lane[B]) join(add func(B)) B {
	var none B
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == none {
		l.next = l.open()
	}
	bt := l.next
	add(bt)
	if l.senders < l.limit || bt.full() {
		l.senders++
		if l.parked {
			l.parked = false
			l.wake <- struct{}{}
		} else if !l.s.spawnCall(newSender(l).run) {
			return none
		}
	}
	return bt
}
