package cache

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
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
	_ = s.do(s.ctx, n, "extend", func(ctx context.Context) error {
		cmds, invs := make([]once, len(batch)), make([]invocation, len(batch))
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, r := range batch {
				invs[i] = s.extending(r)
				cmds[i] = invs[i].command(ctx)
				_ = p.Process(ctx, cmds[i])
			}
			return nil
		})
		answered := false
		for i, cmd := range cmds {
			reply, replyErr := cmd.Result()
			if isUnknownScript(replyErr) {
				reply, replyErr = invs[i].run(ctx, s.client)
			}
			if replyErr != nil {
				continue
			}
			answered = true
			if n, _ := reply.(int64); n == 1 {
				s.ledger.renewed(batch[i].token, sent)
			} else {
				s.ledger.lose(batch[i].token)
			}
		}
		if answered {
			return nil
		}
		return err
	})
}

func (s *Redis) extending(r renewal) invocation {
	names := s.keys.names(r.key)
	return extendScript.invoke(2, names.lease, names.tries, r.token[:], r.ttl.Milliseconds(), r.window.Milliseconds())
}
