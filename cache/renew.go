package cache

import (
	"context"
	"time"
)

// renewSlack lets leases that are due soon share a pipeline.
const renewSlack = 20 * time.Millisecond

// renewLoop extends all leases of this process from one timer, every third of
// their TTL. It ends with the store.
func (s *Redis) renewLoop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		batch, next := s.ledger.due(time.Now(), renewSlack)
		for _, g := range s.groupByNode(batch) {
			// Each node's pipeline on its own, so that a slow one holds up none.
			s.spawn(func() { s.extend(g.n, g.renewals) })
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-s.ledger.wake:
		case <-s.ctx.Done():
			return
		}
	}
}

type nodeRenewals struct {
	n        *node
	renewals []renewal
}

func (s *Redis) groupByNode(batch []renewal) map[*node]*nodeRenewals {
	groups := map[*node]*nodeRenewals{}
	for _, r := range batch {
		n, err := s.topo.node(s.keys.names(r.key).lease)
		if err != nil {
			continue // tried again in a sixth of the TTL
		}
		if groups[n] == nil {
			groups[n] = &nodeRenewals{n: n}
		}
		groups[n].renewals = append(groups[n].renewals, r)
	}
	return groups
}

// extend renews the leases that live on one node in one pipeline. What isn't
// answered is tried again when it is next due, or has run out by then.
func (s *Redis) extend(n *node, batch []renewal) {
	sent := time.Now()
	_ = s.doWithin(s.ctx, n, "extend", s.manyTimeout(len(batch)), func(ctx context.Context) error {
		invs := make([]invocation, len(batch))
		for i, r := range batch {
			invs[i] = s.extending(r)
		}
		replies, err := s.runMany(ctx, invs)
		for i, r := range replies {
			switch {
			case r.err != nil:
			case r.value == int64(1):
				s.ledger.renewed(batch[i].token, sent)
			default:
				s.ledger.lose(batch[i].token)
			}
		}
		return err
	})
}

func (s *Redis) extending(r renewal) invocation {
	names := s.keys.names(r.key)
	return extendScript.invoke(2, names.lease, names.tries, r.token[:], r.ttl.Milliseconds(), r.window.Milliseconds())
}
