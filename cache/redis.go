package cache

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// Options configure [NewRedis]. The zero value of each field but Namespace
// means its default.
type Options struct {
	// Namespace starts the name of every key and channel, so that applications
	// can share a Redis: letters, digits and "._:-", at most 128 bytes.
	// Required.
	Namespace string

	// RedisTimeout bounds every call to Redis, independently of the client's timeouts and
	// retries: at least 1 ms. A call for many keys, and the renewal of many leases, has it
	// once for each 250 of them. If this process notices its end more than 20 ms late, the
	// call gets it once more, as the answer may already be there. Default 250 ms.
	//
	// The client's own timeouts end a call that the store gave up. A client with
	// ReadTimeout and DialTimeout near this value has fewer such calls during an outage.
	// One with ReadTimeout -1 and without ContextTimeoutEnabled never ends them: a network
	// that drops all packets uses up its pool until TCP gives up the connections.
	RedisTimeout time.Duration

	// BreakerFailures is the number of calls in a row that must fail on a node before the
	// store stops asking it, until a probe in the background succeeds. Calls that were
	// under way together count as one, so this takes that many times RedisTimeout. Default 2.
	BreakerFailures int

	// DisableLiveness turns off the check that a lease's holder is alive, and with it
	// takeovers and quarantines: a dead holder is then replaced when its lease expires. The
	// store itself turns the check off while it cannot work: see [Redis.Liveness].
	DisableLiveness bool

	// Observer receives the store's events. Default none.
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
// All commands must reach primaries, so NewRedis refuses a client that reads from replicas
// or from a client-side cache, and a [redis.Ring]. A Redis that cannot be reached, or that
// is full, is no error: the store works as soon as Redis does. A Redis user without
// permissions is an error, which names them; [ACLRules] returns all of them. Without
// SUBSCRIBE or PUBSUB the store works without takeovers: see [Redis.Liveness].
//
// Redis 6.2 or later; a cluster of Redis 7 or later uses sharded channels.
//
// NewRedis adds a hook to the client, or to those of a cluster's masters, which only
// refuses to dial on a context that has ended.
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
	r.detach = sync.OnceFunc(telemetry.Attach(opts.Observer, "", r))
	return r, nil
}

// Liveness returns nil while the store watches whether the holders of leases are alive.
// Otherwise its error tells the reason and the remedy: dead holders are then replaced
// when their leases expire.
func (r *Redis) Liveness() error { return r.s.Liveness() }

// Close gives back the store's leases and ends its goroutines. It returns an error if a
// lease could not be given back and has to expire. Calling it again waits for the first
// call.
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
// The rules replace all keys, channels and commands of the user. A cluster needs a few more
// commands, and the user on each of its nodes; before Redis 7, leave out the three commands
// that begin with "s" and end with "publish" or "subscribe". A client with Options.DB also
// needs +select, one with ClientName +client|setname, and a budget its own keys. An error
// is about the namespace, as that of NewRedis.
func ACLRules(namespace string, cluster bool) (string, error) {
	return redisstore.ACLRules(namespace, cluster)
}
