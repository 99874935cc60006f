package budget

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/outage"
)

var errTimeout = errors.New("budget: no answer, or no connection, in time (Options.RedisTimeout)")

// A server is the Redis that has the budget. It bounds calls in time and owns the
// budget's goroutines.
type server struct {
	rdb       redis.UniversalClient
	node      *outage.Node
	prefix    string // of keys and channels
	rate      string // first argument of all scripts
	timeout   time.Duration
	errClosed error

	ctx    context.Context // ends with close
	cancel context.CancelFunc

	mu     sync.Mutex // guards closed; held to start work
	closed bool
	work   sync.WaitGroup
}

// spawn runs f in a goroutine that close waits for. After close it returns false and
// runs nothing.
func (s *server) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Go(f)
	return true
}

// close ends ctx and waits for the goroutines. Calls that the client does not end in time
// are an error.
func (s *server) close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	s.mu.Unlock()
	idle := make(chan struct{})
	go func() { // ends with the last call, by the client's timeouts at the latest
		s.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-time.After(4 * s.timeout):
		return errors.New("calls are still under way in the Redis client, its own timeouts will end them")
	}
}

// wait returns nil after d or when early is ready, and an error when ctx ends or the
// budget is closed.
func (s *server) wait(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-early:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.ctx.Done():
		return s.errClosed
	}
}

// call runs a script, for at most timeout and until ctx ends. The client's own timeouts
// end an abandoned call. If its report comes late, late receives it; late may be nil.
func (s *server) call(ctx context.Context, sc *script, late func(report), args []any) (report, error) {
	if ctx.Err() != nil {
		return report{}, context.Cause(ctx)
	}
	type answer struct {
		report report
		err    error
	}
	done := make(chan answer, 1)
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	if !s.spawn(func() {
		defer cancel()
		reply, err := sc.run(callCtx, s.rdb, s.prefix, append([]any{s.rate}, args...))
		a := answer{err: err}
		if err == nil {
			a.report, a.err = readReport(reply)
		}
		done <- a
	}) {
		cancel()
		return report{}, s.errClosed
	}
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	var err error
	select {
	case a := <-done:
		return a.report, s.explain(a.err)
	case <-timer.C:
		err = s.explain(errTimeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if late != nil {
		s.spawn(func() {
			if a := <-done; a.err == nil {
				late(a.report)
			}
		})
	}
	return report{}, err
}

// explain records the result of a call for the node, and adds the node and the cause to
// its error.
func (s *server) explain(err error) error {
	switch {
	case err == nil:
		s.node.Answered()
		return nil
	case errors.Is(err, errTimeout), outage.SaysNothing(err):
		s.node.Silent(s.ctx, s.spawn, s.timeout)
		return s.node.Explain(err)
	case !refused(err):
		s.node.Failed(err)
	}
	return s.node.Name(err)
}

// refused reports whether an error is a refusal by Redis that does not end by itself.
func refused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) || strings.Contains(err.Error(), "-READONLY ") {
		return false
	}
	return !redis.IsLoadingError(err) && !redis.IsClusterDownError(err) && !redis.IsMasterDownError(err) &&
		!redis.IsReadOnlyError(err) && !redis.IsTryAgainError(err) && !redis.IsMaxClientsError(err) &&
		!redis.IsNoReplicasError(err) && !redis.IsOOMError(err) && !redis.HasErrorPrefix(err, "BUSY")
}
