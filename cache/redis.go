package cache

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// Options configure [NewRedis]. The zero value of each field but Namespace
// means its default.
type Options struct {
	// Namespace starts the name of every key and channel, so that applications
	// can share a Redis: letters, digits and "._:-", at most 128 bytes.
	// Required.
	Namespace string

	// RedisTimeout bounds every call to Redis, whatever the client's own
	// timeouts and retries are: at least 1 ms. Default 250 ms. A call for many keys, and
	// the renewal of many leases, has it once for each 250 of them. It is given once more
	// where this process gets to notice its end more than 20 ms late, as the answer may
	// have been waiting for the process.
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

	// DisableLiveness turns off the check that a lease's holder is alive, and
	// with it takeovers and quarantines: a dead holder is then replaced when its
	// lease expires. The store turns it off by itself, and on again, where it can't
	// work: see [Redis.Liveness].
	DisableLiveness bool

	// Observer is told of the breaker, of subscriptions, and when this process is late.
	// Default none.
	Observer Observer
}

// Redis is a [Store] that shares values and leases through Redis. It is safe for
// concurrent use.
//
// It keeps one subscribed connection to each Redis node besides those of the
// client's pool.
type Redis struct {
	s      *redisstore.Store
	detach func() // ends what the observers were told of the store
}

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
	o := redisstore.Options{
		Namespace: opts.Namespace, RedisTimeout: opts.RedisTimeout, BreakerFailures: opts.BreakerFailures,
		DisableLiveness: opts.DisableLiveness,
	}
	if o.RedisTimeout == 0 {
		o.RedisTimeout = 250 * time.Millisecond
	}
	if o.BreakerFailures == 0 {
		o.BreakerFailures = 2
	}
	if to := opts.Observer; to != nil {
		o.Report = func(e store.Event) {
			to.Observe(Event{Kind: EventKind(e.Kind), Node: e.Node, Duration: e.Duration, Err: e.Err})
		}
	}
	s, err := redisstore.Open(client, o)
	if err != nil {
		return nil, err
	}
	r := &Redis{s: s}
	r.detach = sync.OnceFunc(Attach(opts.Observer, Component{Kind: StoreComponent, Self: r}))
	return r, nil
}

// Liveness returns nil while the store watches whether the holders of leases are alive.
// Otherwise its error says why it does not and what to do: dead holders are then replaced
// when their leases expire.
func (r *Redis) Liveness() error { return r.s.Liveness() }

// Close gives back what the store holds and ends its goroutines. It returns an error if
// something could not be given back, which then expires by itself. Calling it again waits
// for the first call.
func (r *Redis) Close() error {
	r.detach()
	return r.s.Close()
}

// A NodeStatus is how a store sees one Redis node.
type NodeStatus struct {
	Addr        string
	BreakerOpen bool // no call is sent to the node, which has stopped answering
	Subscribed  bool // wake-ups and invalidations of the node arrive
}

// Nodes returns the status of each Redis node that the store knows, by address.
func (r *Redis) Nodes() []NodeStatus {
	all := r.s.Nodes()
	nodes := make([]NodeStatus, len(all))
	for i, n := range all {
		nodes[i] = NodeStatus(n)
	}
	return nodes
}

// Unwrap is for package guard.
func (r *Redis) Unwrap() store.Store { return r.s }

// ACLRules returns the rules of ACL SETUSER for a Redis user that serves one store in the
// given namespace, and nothing else:
//
//	rules, err := cache.ACLRules("app", false)
//	// ACL SETUSER app on >password <rules>
//
// The rules replace all keys, channels and commands that the user had. A cluster needs a
// few more commands, and the user on each of its nodes; before Redis 7 it does not know
// the three that begin with "s" and end with "publish" or "subscribe", which are to be
// left out there. A client with Options.DB needs +select as well, one with ClientName
// +client|setname, and a budget (package budget) its own keys. The error is about the
// namespace, as that of NewRedis.
func ACLRules(namespace string, cluster bool) (string, error) {
	return redisstore.ACLRules(namespace, cluster)
}
