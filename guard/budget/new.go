package budget

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/outage"
)

// New returns the budget of the given name (letters, digits and "._-") on the given
// client: standalone, behind Sentinel, or a cluster. It refuses a [redis.Ring] and a
// cluster client that reads from replicas. Budgets of the same namespace and name, in
// any process, share one allowance.
//
// Errors: all faults of the client, the name, the limit and the options, joined; a Redis
// that refuses the commands. A Redis that cannot be reached is no error.
//
// The Redis user needs the keys and channels "<namespace>:*" and the commands
// EVAL EVALSHA TIME GET SET ZADD ZREM ZCARD ZRANGE ZSCORE ZREMRANGEBYSCORE
// PEXPIRE PING, and PUBSUB and SUBSCRIBE for Limit.MaxInFlight to notice deaths
// at once. If SUBSCRIBE is refused, a LivenessOff event says so.
func New(rdb redis.UniversalClient, name string, limit Limit, opts Options) (*Budget, error) {
	opts, limit = opts.withDefaults(), limit.withDefaults()
	if err := errors.Join(checkClient(rdb), checkName("New: the name", name, "._-"), limit.validate(), opts.validate()); err != nil {
		return nil, err
	}
	var id [8]byte
	rand.Read(id[:]) // never fails (crypto/rand since Go 1.24)
	s := &server{
		rdb: rdb, node: outage.NewNode(rdb), prefix: opts.Namespace + ":budget:{" + name + "}:",
		rate: decimal(limit.rate()), timeout: opts.RedisTimeout, errClosed: fmt.Errorf("%w: budget %q", ErrClosed, name),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	now := time.Now()
	b := &Budget{
		name: name, process: hex.EncodeToString(id[:]), limit: limit, opts: opts, server: s,
		beats: make(chan struct{}, 1), nudge: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		fleet: bucket{limit: limit, among: 1, at: now},
		local: share{bucket: bucket{limit: limit, among: float64(opts.Processes), at: now}},
		held:  map[string]time.Time{},
	}
	for i := range b.gates {
		b.gates[i].turn = make(chan struct{}, 1)
	}
	if err := b.beat(s.ctx); refused(err) {
		s.cancel()
		return nil, fmt.Errorf("budget: New: this Redis user lacks permissions (see New for the commands, keys and channels to grant): %w", err)
	} else if err != nil {
		b.wentAway(err)
	}
	if limit.MaxInFlight > 0 {
		b.alive = &presence{server: s, channel: s.prefix + "alive:" + b.process, observe: b.observe}
		s.spawn(b.alive.run)
	}
	s.spawn(b.beatLoop)
	return b, nil
}

// checkClient refuses clients that do not keep to the one server that has the budget. A
// client-side cache is no problem: the budget only runs scripts.
func checkClient(rdb redis.UniversalClient) error {
	switch {
	case rdb == nil:
		return errors.New("budget: New: nil client (make one with redis.NewClient)")
	case nils.Is(rdb):
		return fmt.Errorf("budget: New: the client is a nil %T", rdb)
	}
	switch c := rdb.(type) {
	case interface{ Options() *redis.RingOptions }:
		return errors.New("budget: New: a redis.Ring is not supported, each process would begin a budget anew on another shard when it misses one; use redis.NewClient or redis.NewClusterClient")
	case interface{ Options() *redis.ClusterOptions }:
		if o := c.Options(); o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return errors.New("budget: New: the cluster client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly), and would subscribe there, where this process is missed and its calls count as over; use a client without them")
		}
	}
	return nil
}
