package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/nils"
)

// Options configure [NewRedis]. The zero value of each field but Namespace
// means its default.
type Options struct {
	// Namespace starts the name of every key and channel, so that applications
	// can share a Redis: letters, digits and "._:-", at most 128 bytes.
	// Required.
	Namespace string

	// RedisTimeout bounds every call to Redis, whatever the client's own
	// timeouts and retries are: at least 1 ms. Default 250 ms. A call for many keys
	// (ReadMany, AcquireMany, ReturnMany), and the renewal of many leases, has it once
	// for each 250 of them. It is given once more where this process gets to notice its
	// end more than 20 ms late, as the answer may have been waiting for the process, and
	// not it for Redis.
	//
	// The client is still at work on a call that was given up, until its own
	// timeouts end it; a client with ReadTimeout and DialTimeout near this value
	// has fewer such calls during an outage. One with ReadTimeout -1, and without
	// ContextTimeoutEnabled, has nothing to end them by: a black hole that lasts uses
	// up its pool, and the store stays away until TCP has given up those connections.
	RedisTimeout time.Duration

	// BreakerFailures is how many calls in a row must fail on a node before the
	// store stops asking it, until a probe in the background succeeds. Calls that
	// were under way together count as one, so a black hole is left alone after
	// so many times RedisTimeout, and a pause of Redis that is shorter is sat
	// out. Default 2.
	BreakerFailures int

	// MaxInFlight bounds the calls under way at once on each Redis node, reads
	// of different keys that share a pipeline counting as one. Further calls
	// queue for at most RedisTimeout. Default 256.
	MaxInFlight int

	// DisableLiveness turns off the check that a lease's holder is alive, and
	// with it takeovers and quarantines: a dead holder is then replaced when its
	// lease expires. The store turns it off by itself, and on again, where it can't
	// work: see [Redis.Liveness].
	DisableLiveness bool

	// Observer is told of the breaker, of subscriptions, and when this process is late.
	// Default none.
	Observer Observer
}

func (o Options) withDefaults() Options {
	if o.RedisTimeout == 0 {
		o.RedisTimeout = 250 * time.Millisecond
	}
	if o.BreakerFailures == 0 {
		o.BreakerFailures = 2
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 256
	}
	return o
}

func (o Options) validate() error {
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
	if o.MaxInFlight < 1 {
		errs = append(errs, fmt.Errorf("cache: Options.MaxInFlight is %d, must be at least 1", o.MaxInFlight))
	}
	return errors.Join(errs...)
}

// Redis is a [Store] that shares entries and leases through Redis. It is safe
// for concurrent use.
//
// It keeps one subscribed connection to each Redis node besides those of the
// client's pool.
type Redis struct {
	client redis.UniversalClient
	opts   Options
	keys   keyspace
	minter *Minter
	alive  string // this process's liveness channel
	// aliveWord is alive as a word of commands.
	aliveWord any
	topo      topology
	ledger    *ledger
	ages      ages
	noMGET    atomic.Bool // it is refused: reads do without

	sharded  atomic.Bool // channels belong to slots: a cluster of Redis 7 or later
	liveness liveness

	closing atomic.Bool
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	closed  chan struct{} // Close has finished

	spawning sync.RWMutex
	ended    bool           // nothing is spawned any more
	work     sync.WaitGroup // the store's own goroutines
	calls    sync.WaitGroup // those that are in the Redis client
	parked   atomic.Int32   // of those, how many wait for another call
	next     chan func()    // to them
	homes    homes
	feeds    feeds
	carried  tagTable
}

var _ Store = (*Redis)(nil)

// NewRedis returns a store on the given client, which may be a [redis.Client]
// (standalone, or a master found through Sentinel) or a [redis.ClusterClient].
// The client stays the caller's: Close the store first, then the client.
//
// All commands must reach primaries, so a client that reads from replicas or
// from a client-side cache is refused, and so is a [redis.Ring]. A Redis that
// can't be reached, or that is full, is no error: the store goes to work when Redis
// does. A Redis user that lacks permissions is one, which names what to grant;
// [ACLRules] returns all that it needs. Without SUBSCRIBE or PUBSUB the store works
// in a lesser mode: see [Redis.Liveness].
//
// Redis 6.2 or later; a cluster of Redis 7 or later uses sharded channels.
//
// NewRedis adds a hook to the client, or to those of a cluster's masters. It refuses
// to dial on a context that has ended, and does nothing else.
func NewRedis(client redis.UniversalClient, opts Options) (*Redis, error) {
	opts = opts.withDefaults()
	if err := errors.Join(checkClient(client), opts.validate()); err != nil {
		return nil, err
	}
	keys, _ := newKeyspace(opts.Namespace)
	s := &Redis{
		client: client, opts: opts, keys: keys,
		minter: NewMinter(),
		ledger: newLedger(),
		closed: make(chan struct{}), next: make(chan func()),
	}
	s.alive = keys.alive(s.minter.Process())
	s.aliveWord = s.alive
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

func (s *Redis) observe(e Event) {
	if s.opts.Observer != nil {
		s.opts.Observer.Observe(e)
	}
}

// Close gives back what the store holds and ends its goroutines. The order
// matters: while the process still counts as alive every lease it knows of is
// released; then it is no longer watched, so that an acquire that is still on
// its way is refused by the script; and then the tokens are released whose
// acquire, fill or fail was never answered. Done in this order, an orderly
// shutdown is never mistaken for a death.
//
// It returns an error if something could not be given back, which then expires
// by itself. Calling it again waits for the first call.
func (s *Redis) Close() error {
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

// releaseAll gives leases back, in parallel but for what MaxInFlight allows.
func (s *Redis) releaseAll(leases []owned) error {
	errs := make([]error, len(leases))
	var wg sync.WaitGroup
	for i, l := range leases {
		wg.Go(func() { errs[i] = s.release(context.Background(), l.key, l.token) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// checkClient refuses clients whose reads may be older than a write that was
// acknowledged: a Delete would be no barrier behind them. A wrapper that embeds a
// client shows that client's options.
func checkClient(client redis.UniversalClient) error {
	switch {
	case client == nil:
		return errors.New("cache: NewRedis: nil client (make one with redis.NewClient)")
	case nils.Is(client):
		return fmt.Errorf("cache: NewRedis: the client is a nil %T", client)
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

// publish is the command by which scripts wake those who wait: a string.
func (s *Redis) publish() any {
	if s.sharded.Load() {
		return "SPUBLISH"
	}
	return "PUBLISH"
}
