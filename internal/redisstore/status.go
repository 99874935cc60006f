package redisstore

import (
	"cmp"
	"slices"
)

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
