package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// Inspect implements [store.Inspector]: one pipeline, which changes nothing.
func (s *Store) Inspect(ctx context.Context, key string) (store.KeyState, error) {
	n := s.names.names(key)
	if err := s.ready(ctx); err != nil {
		return store.KeyState{}, err
	}
	node, err := s.topo.node(string(n.entry))
	if err != nil {
		return store.KeyState{}, err
	}
	var lease *redis.StringCmd
	var leaseLeft, pauseLeft, triesLeft *redis.DurationCmd
	var tries *redis.IntCmd
	err = s.bounded(ctx, "inspecting", func(ctx context.Context) error {
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			lease, leaseLeft = p.Get(ctx, string(n.lease)), p.PTTL(ctx, string(n.lease))
			pauseLeft = p.PTTL(ctx, string(n.pause))
			tries, triesLeft = p.SCard(ctx, string(n.tries)), p.PTTL(ctx, string(n.tries))
			return nil
		})
		if errors.Is(err, redis.Nil) { // there is no lease
			err = nil
		}
		return err
	})
	if err != nil {
		return store.KeyState{}, node.explain(err)
	}
	k := store.KeyState{Pause: max(0, pauseLeft.Val()), Attempts: int(tries.Val())}
	if k.Attempts > 0 {
		k.Remembered = max(0, triesLeft.Val())
	}
	if b := lease.Val(); len(b) >= store.TokenSize && leaseLeft.Val() > 0 {
		k.Holder, k.Lease = store.Token([]byte(b[:store.TokenSize])), leaseLeft.Val()
	}
	return k, nil
}

// A NodeStatus is how the store sees one node.
type NodeStatus struct {
	Addr        string
	BreakerOpen bool
	Subscribed  bool
}

// Nodes returns the status of each node, by address.
func (s *Store) Nodes() []NodeStatus {
	nodes := s.topo.all()
	all := make([]NodeStatus, len(nodes))
	for i, n := range nodes {
		all[i] = NodeStatus{Addr: n.addr, BreakerOpen: n.breaker.open.Load(), Subscribed: n.sub.isLive.Load()}
	}
	slices.SortFunc(all, func(a, b NodeStatus) int { return cmp.Compare(a.Addr, b.Addr) })
	return all
}
