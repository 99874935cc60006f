package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A breaker keeps requests away from a node that has stopped answering. After a few
// failures in a row it opens; while it is open a probe in the background asks the node,
// and closes the breaker when the node answers. No caller's own request is ever used as
// the probe, so none waits for a dead node to time out.
//
// Requests that were under way together count as one failure, however many they are: a
// pause of the node fails all of them. So it takes as many timeouts, one after another,
// whatever the load.
type breaker struct {
	limit    int32
	failures atomic.Int32 // in a row
	open     atomic.Bool

	mu    sync.Mutex
	since time.Time // open since

	ctx     context.Context // ends with the node
	spawn   func(func()) bool
	probe   func(context.Context) error
	opened  func()                                          // on the goroutine of the request that failed
	changed func(open bool, since time.Duration, err error) // on a goroutine of the breaker's
}

// Probes follow each other by these times, growing by half each time, with a quarter of
// jitter: soon enough that a returning Redis is noticed within two seconds, seldom enough
// that a fleet's probes are no load.
const (
	firstProbe = 100 * time.Millisecond
	lastProbe  = time.Second
)

func (b *breaker) allow() bool { return !b.open.Load() }

// sent is asked when requests are sent; count wants to know its answer.
func (b *breaker) sent() (after int32) { return b.failures.Load() }

// count takes the outcome of requests that were sent together. A failure of requests that
// were sent before the last failure was known adds nothing to that.
func (b *breaker) count(after int32, err error) {
	switch {
	case err == nil:
		if b.failures.Load() != 0 {
			b.failures.Store(0)
		}
	case !tripsBreaker(err), !b.failures.CompareAndSwap(after, after+1), after+1 < b.limit:
	default:
		b.trip(err)
	}
}

func (b *breaker) trip(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() || b.ctx.Err() != nil {
		return
	}
	b.since = time.Now()
	b.open.Store(true)
	b.spawn(func() {
		b.opened()
		b.changed(true, 0, err)
		b.probeUntilAnswered()
	})
}

// probeUntilAnswered ends when the node answers or its context does. A node that answers
// by a refusal, as it came back with another password, has that reported once.
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
		if errors.Is(err, store.ErrRefused) && err.Error() != told {
			told = err.Error()
			b.changed(true, time.Since(b.since), err)
		}
		wait = min(wait*3/2, lastProbe)
	}
	b.mu.Lock()
	b.failures.Store(0)
	b.open.Store(false)
	since := time.Since(b.since)
	b.mu.Unlock()
	b.changed(false, since, nil)
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
