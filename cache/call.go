package cache

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// do runs fn, which talks to node n, and returns its error classified. It
// returns when fn does, when ctx ends, or after RedisTimeout, whichever is
// first; fn is then still at work until the client's own timeouts end it, on a
// context that has ended. What fn returns late is lost: give fn its own means
// where that matters.
func (s *Redis) do(ctx context.Context, n *node, op string, fn func(context.Context) error) error {
	return s.doWithin(ctx, n, op, s.opts.RedisTimeout, fn)
}

// doWithin is do with a bound of its own.
func (s *Redis) doWithin(ctx context.Context, n *node, op string, d time.Duration, fn func(context.Context) error) error {
	return s.doUntil(ctx, n, op, d, nil, fn)
}

// readWithin is doWithin for what changes nothing: it is given up as soon as the
// node is known to be away.
func (s *Redis) readWithin(ctx context.Context, n *node, d time.Duration, fn func(context.Context) error) error {
	if !n.breaker.allow() {
		return n.explain(errBreakerOpen)
	}
	return s.doUntil(ctx, n, "read", d, n.breaker.away(), fn)
}

func (s *Redis) doUntil(ctx context.Context, n *node, op string, d time.Duration, away <-chan struct{}, fn func(context.Context) error) error {
	if !n.breaker.allow() {
		return n.explain(errBreakerOpen)
	}
	after := n.breaker.sent()
	err := s.boundedBy(ctx, n, op, d, away, fn)
	switch {
	case err == nil:
		n.breaker.succeeded()
	case tripsBreaker(err):
		n.breaker.failed(after, err)
	}
	return n.explain(err)
}

// bounded is do without the breaker.
func (s *Redis) bounded(ctx context.Context, n *node, op string, fn func(context.Context) error) error {
	return s.boundedBy(ctx, n, op, s.opts.RedisTimeout, nil, fn)
}

func (s *Redis) boundedBy(ctx context.Context, n *node, op string, d time.Duration, away <-chan struct{}, fn func(context.Context) error) error {
	if err := ended(ctx); err != nil {
		return fmt.Errorf("%w: %w", errEndedBefore, err)
	}
	timer, end := time.NewTimer(d), time.Now().Add(d)
	defer timer.Stop()
	select {
	case n.slots <- struct{}{}:
	case <-timer.C:
		return errBusy
	case <-away:
		return errBreakerOpen
	case <-ctx.Done():
		return ended(ctx)
	}
	// The call's values (for tracing hooks) are the caller's, its end is ours: a
	// client that is waiting for a reply doesn't heed a cancellation anyway. It isn't
	// put off for a process that is late: what may be answered by now has been sent.
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
	done := make(chan error, 1)
	if !s.spawnBrief(func() {
		defer func() { <-n.slots; cancel() }()
		err := classify(op, fn(callCtx))
		s.failed(n, err)
		done <- err
	}) {
		<-n.slots
		cancel()
		return ErrClosed
	}
	for extended := false; ; extended = true {
		select {
		case err := <-done:
			if err == nil {
				n.outage.Answered()
			}
			return err
		case <-timer.C:
			if extended || !s.noticedLate(n, end) {
				s.silent(n)
				return errTimeout
			}
			timer.Reset(d)
		case <-away:
			return errBreakerOpen
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// lateness is from how late on the end of a timeout tells that this process waits for
// a processor: what it was to be answered by then may have been lying here for long.
const lateness = 20 * time.Millisecond

// noticedLate reports whether that is so. A command is given its time again then,
// once: or a burst of callers, a machine that slept, a container that has used up its
// share of the processor would take Redis to be away, and fetch without a lease.
func (s *Redis) noticedLate(n *node, end time.Time) bool {
	runtime.Gosched() // who is ready runs first: it may be who reads the answer
	late := time.Since(end)
	if late <= lateness {
		return false
	}
	s.observe(Event{Kind: ProcessLate, Node: n.addr, Duration: late})
	return true
}
