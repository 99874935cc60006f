// Package redisstore shares entries and leases through Redis.
//
// A key is served by a node: one server, or a master of a cluster. Each node has a breaker,
// a clock, a subscription, a queue for reads and one for scripts. A queue sends concurrent
// requests together.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/nils"
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

// Store is a [store.Store] on Redis. It keeps one subscribed connection to each Redis node
// besides those of the client's pool.
type Store struct {
	client redis.UniversalClient
	opts   Options
	names  keyspace
	minter *store.Minter
	alive  string // this process's liveness channel
	topo   topology
	ledger *ledger
	noMGET atomic.Bool // it is refused: reads do without

	sharded  atomic.Bool // channels belong to slots: a cluster of Redis 7 or later
	liveness liveness
	homes    homes
	feeds    store.Feeds
	carried  tagTable

	locking  sync.Once                // adds a hook for the commands of locks
	callsEnd atomic.Pointer[deadline] // of the latest commands of locks
	dones    sync.Pool                // of the channels of requests; they are empty

	// Close sets closing first, and ends ctx when everything has been given back.
	closing atomic.Bool
	ctx     context.Context
	cancel  context.CancelFunc
	closed  chan struct{}

	spawning sync.RWMutex
	ended    bool           // nothing is spawned any more
	work     sync.WaitGroup // the store's own goroutines
	calls    sync.WaitGroup // those that may be stuck in the Redis client
}

var _ store.Store = (*Store)(nil)

// Open returns a store on the client, which stays the caller's. It tries once each
// command that it will need. A Redis that can't be reached is no error.
func Open(client redis.UniversalClient, opts Options) (*Store, error) {
	if err := errors.Join(checkClient(client), opts.validate()); err != nil {
		return nil, err
	}
	names, _ := newKeyspace(opts.Namespace)
	s := &Store{
		client: client, opts: opts, names: names, minter: store.NewMinter(), ledger: newLedger(), closed: make(chan struct{}),
	}
	s.alive = names.alive(s.minter.Process())
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.liveness.disabled = opts.DisableLiveness
	s.liveness.on.Store(!opts.DisableLiveness)
	if cc, ok := client.(clusterClient); ok {
		s.topo = newClusterTopology(s, cc)
	} else {
		s.topo = newSingleTopology(s)
	}
	if err := s.probe(); err != nil {
		_ = s.await()
		return nil, err
	}
	s.topo.start()
	s.spawn(s.renewLoop)
	return s, nil
}

// checkClient refuses clients that may read data older than an acknowledged write: a
// Delete would be no barrier behind them. A wrapper that embeds a client shows that
// client's options.
func checkClient(client redis.UniversalClient) error {
	if nils.Is(client) {
		return errors.New("cache: NewRedis: the client is nil")
	}
	switch c := client.(type) {
	case interface{ Options() *redis.RingOptions }:
		return errors.New("cache: NewRedis: a redis.Ring is not supported, its keys move without notice when a shard fails; use redis.NewClient or redis.NewClusterClient")
	case *redis.AutoPipeliner:
		return errors.New("cache: NewRedis: pass the client itself, not its AutoPipeliner, which does not end a call with its context; the store shares pipelines by itself")
	case interface{ Options() *redis.ClusterOptions }:
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return errors.New("cache: NewRedis: the cluster client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly), where a Delete may not have arrived; use a client without them")
		}
	case interface{ Options() *redis.Options }:
		if o := c.Options(); o.ClientSideCache != nil || o.ClientSideCacheConfig != nil {
			return errors.New("cache: NewRedis: the client has a client-side cache, where a Delete may not have arrived; use a client without it")
		}
	}
	return nil
}

// Close gives back the store's leases and ends its goroutines. While the process still
// counts as alive, every lease it knows of is released. Then it leaves its liveness
// channel, so that the script refuses an acquire that is still on its way. Then it releases
// the tokens of each acquire, fill or fail that was never answered. In this order an orderly
// shutdown is never mistaken for a death.
//
// It returns an error if a lease could not be given back. Such a lease expires by itself.
// Calling Close again waits for the first call.
func (s *Store) Close() error {
	if s.closing.Swap(true) {
		<-s.closed
		return nil
	}
	defer close(s.closed)
	err := s.releaseAll(s.ledger.held())
	s.topo.close()
	err = errors.Join(err, s.releaseAll(s.ledger.unanswered()))
	return errors.Join(err, s.await())
}

// ready returns an error if the context has ended or the store is closed.
func (s *Store) ready(ctx context.Context) error {
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

func (s *Store) timeout(commands int) time.Duration {
	return s.opts.RedisTimeout * time.Duration(1+max(0, commands-1)/perTimeout)
}

func (s *Store) report(e store.Event) {
	if s.opts.Report != nil {
		s.opts.Report(e)
	}
}

// publish is the command by which scripts wake waiters: a string.
func (s *Store) publish() any {
	if s.sharded.Load() {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// spawn runs f in a goroutine that Close waits for. f must end soon after s.ctx does.
// It answers false, and does nothing, when the store has been closed.
func (s *Store) spawn(f func()) bool { return s.spawnIn(&s.work, f) }

// spawnCall is spawn for a goroutine that may be stuck in the Redis client until the
// client's own timeouts end it. Close waits for it only for a while.
func (s *Store) spawnCall(f func()) bool { return s.spawnIn(&s.calls, f) }

func (s *Store) spawnIn(wg *sync.WaitGroup, f func()) bool {
	s.spawning.RLock()
	defer s.spawning.RUnlock()
	if s.ended {
		return false
	}
	wg.Go(f)
	return true
}

// await ends the spawning of goroutines and waits for those there are.
func (s *Store) await() error {
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

// A deadline ends the calls that were begun before a time.
type deadline struct {
	context.Context
	last   time.Time // to begin a call
	cancel context.CancelFunc
}

// deadline is a context that ends RedisTimeout from now, or up to a quarter of that later.
// The calls of that time share it: a context of its own costs a call more than the rest of
// its work in this process.
func (s *Store) deadline() context.Context {
	now := time.Now()
	if d := s.callsEnd.Load(); d != nil && now.Before(d.last) {
		return d
	}
	d := &deadline{last: now.Add(s.opts.RedisTimeout / 4)}
	d.Context, d.cancel = context.WithDeadline(context.Background(), d.last.Add(s.opts.RedisTimeout)) // which ends it
	s.callsEnd.Store(d)
	return d
}
