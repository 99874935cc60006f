package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// locks are named locks, which hold no entry.
type locks struct {
	*core
	watches  *watches
	locking  sync.Once                // adds a hook for the commands of locks
	callsEnd atomic.Pointer[deadline] // of the latest commands of locks
}

// lockCall carries a script out. On a single server that is done by this goroutine, without
// the queue: a lock is seldom asked for together with others, and two goroutines that wake
// each other take longer than Redis does. ctx is not heeded then, but RedisTimeout.
func (s *locks) lockCall(ctx context.Context, op *store.LockOp, inv invocation, late lateReader) (any, error) {
	timed, ok := s.client.(interface {
		WithTimeout(time.Duration) *redis.Client
	})
	if !ok {
		value, _, err := s.call(ctx, op.Kind.String(), inv, late)
		return value, err
	}
	n, err := s.topo.node(inv.key())
	if err != nil {
		return nil, err
	}
	if !n.breaker.allow() {
		return nil, n.away()
	}
	s.locking.Do(func() {
		lone := timed.WithTimeout(s.opts.RedisTimeout)
		lone.AddHook(endedDials{})
		s.client.AddHook(diverted{s, lone})
	})
	after := n.breaker.sent()
	bounded := &diversion{ctx, s, s.deadline()}
	cmd := inv.command(bounded, false)
	if err = s.client.Process(bounded, cmd); isUnknownScript(err) {
		cmd = inv.command(bounded, true)
		err = s.client.Process(bounded, cmd)
	}
	err = classify(op.Kind.String(), err)
	n.noteOutcome(err)
	n.breaker.count(after, err)
	if err != nil {
		return nil, n.explain(err)
	}
	return cmd.Val(), nil
}

// diverted has a client with bounded calls carry out the commands of locks. Such a client
// has lost the hooks of the one that it was made of, so this is the innermost of them.
type diverted struct {
	s    *locks
	lone *redis.Client
}

// A diversion is the context of a command of locks: it has the values of the caller's
// context, and ends with others of about the same time.
type diversion struct {
	context.Context
	s   *locks
	end context.Context
}

// Deadline implements [context.Context].
func (d *diversion) Deadline() (time.Time, bool) { return d.end.Deadline() }

// Done implements [context.Context].
func (d *diversion) Done() <-chan struct{} { return d.end.Done() }

// Err implements [context.Context].
func (d *diversion) Err() error { return d.end.Err() }

// Value implements [context.Context].
func (d *diversion) Value(key any) any {
	if key == any(d.s) {
		return d
	}
	return d.Context.Value(key)
}

// DialHook implements [redis.Hook].
func (diverted) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (d diverted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if ctx.Value(d.s) != nil {
			return d.lone.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (diverted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A deadline ends the calls that were begun before a time.
type deadline struct {
	context.Context
	last   time.Time // to begin a call
	cancel context.CancelFunc
}

// deadline is a context that ends RedisTimeout from now, or up to a quarter of that later.
// The calls of that time share it: a context of its own costs a call more than the rest of
// its work in this process.
func (s *locks) deadline() context.Context {
	now := time.Now()
	if d := s.callsEnd.Load(); d != nil && now.Before(d.last) {
		return d
	}
	d := &deadline{last: now.Add(s.opts.RedisTimeout / 4)}
	d.Context, d.cancel = context.WithDeadline(context.Background(), d.last.Add(s.opts.RedisTimeout)) // which ends it
	s.callsEnd.Store(d)
	return d
}
