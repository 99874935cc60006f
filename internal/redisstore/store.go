// Package redisstore shares entries and leases through Redis.
//
// A key is served by a node: one server, or a master of a cluster. Each node has a breaker,
// a clock, a subscription, a queue for reads and one for scripts. A queue sends concurrent
// requests together.
package redisstore

import (
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/store"
)

// Store is a [store.Store] on Redis. It keeps one subscribed connection to each Redis node
// besides those of the client's pool. Each of its parts carries out some of its methods.
type Store struct {
	*core
	*watches
	*tags
	*leases
	*values
	*locks

	closed chan struct{} // Close has ended
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Locks     = (*Store)(nil)
)

// Open returns a store on the client, which stays the caller's. It tries once each
// command that it will need. A Redis that can't be reached is no error.
func Open(client redis.UniversalClient, opts Options) (*Store, error) {
	if err := errors.Join(checkClient(client), opts.validate()); err != nil {
		return nil, err
	}
	c := newCore(client, opts)
	ledger, feeds := newLedger(), &store.Feeds{}
	w := newWatches(c, ledger, feeds)
	t := &tags{core: c, feeds: feeds}
	s := &Store{
		core: c, watches: w, tags: t, closed: make(chan struct{}),
		leases: &leases{core: c, ledger: ledger, tags: t, watches: w},
		values: &values{core: c, ledger: ledger, tags: t, feeds: feeds},
		locks:  &locks{core: c, watches: w},
	}
	c.topo = newTopology(c, w)
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
	err := s.releaseAll(s.leases.ledger.held())
	s.topo.close()
	err = errors.Join(err, s.releaseAll(s.leases.ledger.unanswered()))
	return errors.Join(err, s.await())
}
