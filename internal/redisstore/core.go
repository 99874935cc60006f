package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// Options configure a [Store]. They are the public ones, with their defaults filled in.
type Options struct {
	Namespace       string
	RedisTimeout    time.Duration
	BreakerFailures int
	DisableLiveness bool
	Report          func(store.Event)
}

func (o *Options) validate() error {
	var errs []error
	if _, err := newKeyspace(o.Namespace); err != nil {
		errs = append(errs, err)
	}
	if o.RedisTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("cache: Options.RedisTimeout is %v, must be at least 1ms", o.RedisTimeout))
	}
	if o.BreakerFailures < 1 {
		errs = append(errs, fmt.Errorf("cache: Options.BreakerFailures is %d, must be at least 1", o.BreakerFailures))
	}
	return errors.Join(errs...)
}

// A core is shared by all parts of a store: the client, the nodes, the names, and the
// goroutines with their end.
type core struct {
	client  redis.UniversalClient
	opts    Options
	names   keyspace
	minter  *store.Minter
	alive   string // this process's liveness channel
	topo    topology
	sharded atomic.Bool // channels belong to slots: a cluster of Redis 7 or later

	// Close sets closing first, and ends ctx when everything has been given back.
	closing atomic.Bool
	ctx     context.Context
	cancel  context.CancelFunc

	spawning sync.RWMutex
	ended    bool           // nothing is spawned any more
	work     sync.WaitGroup // the store's own goroutines
	calls    sync.WaitGroup // those that may be stuck in the Redis client
	dones    sync.Pool      // of the channels of requests; they are empty
}

func newCore(client redis.UniversalClient, opts Options) *core {
	s := &core{client: client, opts: opts, names: keyspace{opts.Namespace}, minter: store.NewMinter()}
	s.alive = s.names.alive(s.minter.Process())
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// ready returns an error if the context has ended or the store is closed.
func (s *core) ready(ctx context.Context) error {
	if s.closing.Load() {
		return store.ErrClosed
	}
	if err := store.Ended(ctx); err != nil {
		return fmt.Errorf("%w: %w", errEndedBefore, err)
	}
	return nil
}

// perTimeout commands share one RedisTimeout.
const perTimeout = 250

func (s *core) timeout(commands int) time.Duration {
	return s.opts.RedisTimeout * time.Duration(1+max(0, commands-1)/perTimeout)
}

func (s *core) report(e store.Event) {
	if s.opts.Report != nil {
		s.opts.Report(e)
	}
}

// publish is the command by which scripts wake waiters: a string.
func (s *core) publish() any {
	if s.sharded.Load() {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// spawn runs f in a goroutine that Close waits for. f must end soon after s.ctx does.
// It answers false, and does nothing, when the store has been closed.
func (s *core) spawn(f func()) bool { return s.spawnIn(&s.work, f) }

// spawnCall is spawn for a goroutine that may be stuck in the Redis client until the
// client's own timeouts end it. Close waits for it only for a while.
func (s *core) spawnCall(f func()) bool { return s.spawnIn(&s.calls, f) }

func (s *core) spawnIn(wg *sync.WaitGroup, f func()) bool {
	s.spawning.RLock()
	defer s.spawning.RUnlock()
	if s.ended {
		return false
	}
	wg.Go(f)
	return true
}

// await ends the spawning of goroutines and waits for those there are.
func (s *core) await() error {
	s.cancel()
	s.spawning.Lock()
	s.ended = true
	s.spawning.Unlock()
	s.work.Wait()
	idle := make(chan struct{})
	go func() { // ends with the last call, at the latest by the client's timeouts
		s.calls.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-time.After(4 * s.opts.RedisTimeout):
		return errors.New("cache: Close: calls are still under way in the Redis client, its own timeouts will end them")
	}
}

// bounded runs fn in the client and returns its error, classified. It returns after
// RedisTimeout, or when ctx ends; fn may then still be at work.
func (s *core) bounded(ctx context.Context, op string, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.RedisTimeout)
	defer cancel() // not by fn's goroutine: with the answer there, too, the select could take the end of ctx
	done := make(chan error, 1)
	if !s.spawnCall(func() { done <- classify(op, fn(ctx)) }) {
		return store.ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errTimeout
	}
}
