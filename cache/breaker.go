package cache

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A breaker keeps calls away from a node that has stopped answering. After a
// few failures in a row it opens; while it is open a probe in the background
// asks the node, and closes it when the node answers. No caller's own call is
// ever used as the probe, so none waits for a dead node to time out.
//
// Calls that were under way together are one sign between them, however many
// they are: a pause of the node fails all of them. So of timeouts it takes as
// many, one after another, whatever the load.
type breaker struct {
	limit    int32
	failures atomic.Int32 // in a row
	open     atomic.Bool
	opened   atomic.Pointer[chan struct{}] // closed while it is open

	mu    sync.Mutex
	since time.Time // open since

	probe func(context.Context) error
	spawn func(func()) bool
	ctx   context.Context // ends with the node
	// changed is told in a goroutine of the breaker's: who is told may wait for those
	// whose calls have failed.
	changed func(open bool, since time.Duration, err error)
}

// Probes follow each other by these times, growing by half each time, with a
// quarter of jitter: soon enough that a returning Redis is noticed within two
// seconds, seldom enough that a fleet's probes are no load.
const (
	firstProbe = 100 * time.Millisecond
	lastProbe  = time.Second
)

func (b *breaker) allow() bool { return !b.open.Load() }

// away is closed when the breaker opens. Ask for it after allow.
func (b *breaker) away() <-chan struct{} { return *b.opened.Load() }

// sent is asked when a call is sent, and answers what failed wants to know of it.
func (b *breaker) sent() (after int32) { return b.failures.Load() }

// succeeded and failed take the outcome of each call. A call that was sent
// before the last failure was known adds nothing to that.
func (b *breaker) succeeded() {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

func (b *breaker) failed(after int32, err error) {
	if !b.failures.CompareAndSwap(after, after+1) || after+1 < b.limit {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() || b.ctx.Err() != nil {
		return
	}
	b.since = time.Now()
	b.open.Store(true)
	close(*b.opened.Load())
	b.spawn(func() {
		b.changed(true, 0, err)
		b.probeUntilAnswered()
	})
}

// arm makes the channel that the next opening closes.
func (b *breaker) arm() {
	c := make(chan struct{})
	b.opened.Store(&c)
}

// probeUntilAnswered ends when the node answers or its context does. One that answers
// by a refusal, as it has come back with another password, has that told once.
func (b *breaker) probeUntilAnswered() {
	wait, told := firstProbe, ""
	for {
		jittered := wait + time.Duration(rand.Int64N(int64(wait/4)))
		if sleep(b.ctx, jittered) != nil {
			return
		}
		err := b.probe(b.ctx)
		if err == nil {
			break
		}
		if errors.Is(err, ErrRefused) && err.Error() != told {
			told = err.Error()
			b.changed(true, time.Since(b.since), err)
		}
		wait = min(wait*3/2, lastProbe)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures.Store(0)
	b.arm()
	b.open.Store(false)
	b.changed(false, time.Since(b.since), nil)
}

// sleep waits for d or for the end of ctx, and returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
