package cache

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A breaker keeps calls away from a node that has stopped answering. After a
// few failures in a row it opens; while it is open a probe in the background
// asks the node, and closes it when the node answers. No caller's own call is
// ever used as the probe, so none waits for a dead node to time out.
type breaker struct {
	limit    int32
	failures atomic.Int32 // in a row
	open     atomic.Bool

	mu    sync.Mutex
	since time.Time // open since

	probe   func(context.Context) error
	spawn   func(func()) bool
	ctx     context.Context // ends with the node
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

// succeeded and failed take the outcome of each call.
func (b *breaker) succeeded() {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

func (b *breaker) failed(err error) {
	if b.failures.Add(1) < b.limit {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() || b.ctx.Err() != nil {
		return
	}
	b.since = time.Now()
	b.open.Store(true)
	b.spawn(b.probeUntilAnswered)
	b.changed(true, 0, err)
}

// probeUntilAnswered ends when the node answers or its context does.
func (b *breaker) probeUntilAnswered() {
	wait := firstProbe
	for {
		jittered := wait + time.Duration(rand.Int64N(int64(wait/4)))
		if sleep(b.ctx, jittered) != nil {
			return
		}
		if b.probe(b.ctx) == nil {
			break
		}
		wait = min(wait*3/2, lastProbe)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures.Store(0)
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
