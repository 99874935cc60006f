package redisstore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
)

// An around is a hook of a client that is called around each command and each pipeline.
type around func(ctx context.Context, cmds []redis.Cmder, next func() error) error

func (around) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return f(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (f around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return f(ctx, cmds, func() error { return next(ctx, cmds) })
	}
}

func isRead(cmd redis.Cmder) bool { return cmd.Name() == "get" || cmd.Name() == "mget" }

func isScript(cmd redis.Cmder) bool { return cmd.Name() == "evalsha" || cmd.Name() == "eval" }

// isAcquire: acquire is the only script of six keys.
func isAcquire(cmd redis.Cmder) bool {
	args := cmd.Args()
	return isScript(cmd) && len(args) > 2 && args[2] == 6
}

// A gate holds up round trips that begin with a command of the given kind: on their way to
// Redis, or on their way back. It counts the commands of all round trips.
type gate struct {
	redistest.Counter
	of       func(cmd redis.Cmder) bool
	mu       sync.Mutex
	way, ret chan struct{} // nil: open
	held     chan struct{} // one for each that is held up
	passed   atomic.Int64  // of those it is for
	opens    []func()
}

func newGate(of func(redis.Cmder) bool) *gate { return &gate{of: of, held: make(chan struct{}, 1000)} }

// shut shuts one side of the gate.
func (g *gate) shut(side *chan struct{}) (open func()) {
	c := make(chan struct{})
	g.mu.Lock()
	*side = c
	g.mu.Unlock()
	open = sync.OnceFunc(func() {
		g.mu.Lock()
		if *side == c { // it may have been shut again
			*side = nil
		}
		g.mu.Unlock()
		close(c)
	})
	g.opens = append(g.opens, open)
	return open
}

// open lets everything go on: a test that failed is to end soon.
func (g *gate) open() {
	for _, open := range g.opens {
		open()
	}
}

func (g *gate) wait(of *chan struct{}) {
	g.mu.Lock()
	c := *of
	g.mu.Unlock()
	if c != nil {
		g.held <- struct{}{}
		<-c
	}
}

func (g *gate) pass(cmd redis.Cmder, next func() error) error {
	if !g.of(cmd) {
		return next()
	}
	g.passed.Add(1)
	g.wait(&g.way)
	err := next()
	g.wait(&g.ret)
	return err
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	next = g.Counter.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		return g.pass(cmd, func() error { return next(ctx, cmd) })
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	next = g.Counter.ProcessPipelineHook(next)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return g.pass(cmds[0], func() error { return next(ctx, cmds) })
	}
}

// isHeld waits until a round trip is held up.
func (g *gate) isHeld(t testing.TB) {
	t.Helper()
	select {
	case <-g.held:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is held up")
	}
}

// A wall is a hook that keeps all commands of a process back while it is up, with an error
// of its own.
type wall struct{ up atomic.Bool }

var errWall = errors.New("wall")

func (h *wall) hook() redis.Hook {
	return around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if !h.up.Load() {
			return next()
		}
		for _, cmd := range cmds {
			cmd.SetErr(errWall)
		}
		return errWall
	})
}

// bubble runs a test in fake time, on a store on an embedded server. The store's
// subscription is live. The hooks are the client's.
func bubble(t *testing.T, opts redisstore.Options, hook redis.Hook, test func(t *testing.T, s *redisstore.Store, server *redistest.Embedded), further ...redis.Hook) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		client := server.Client()
		if hook != nil {
			client.AddHook(hook)
		}
		for _, h := range further {
			client.AddHook(h)
		}
		s := opened(t, client, opts)
		time.Sleep(time.Second)
		test(t, s, server)
	})
}
