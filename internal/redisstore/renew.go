package redisstore

import (
	"context"
	"time"
)

// leases are acquired, renewed and given back.
type leases struct {
	*core
	ledger  *ledger
	tags    *tags
	watches *watches
}

// renewSlack lets leases that are due soon share a pipeline.
const renewSlack = 20 * time.Millisecond

// renewLoop extends all leases of this process from one timer, every third of their TTL.
// It ends with the store.
func (s *leases) renewLoop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		batch, next := s.ledger.due(time.Now(), renewSlack)
		if len(batch) > 0 {
			s.spawn(func() { s.renew(batch) }) // a slow node holds up no later renewal
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

// renew extends leases, those of one node in one pipeline. A renewal that is not answered
// is sent again when it is next due.
func (s *leases) renew(batch []renewal) {
	names := make([]string, len(batch))
	for i, r := range batch {
		names[i] = s.names.entry(r.key)
	}
	sent := time.Now()
	xs := s.exchange(s.ctx, names, nil, func(int, error) {}, func(n *node, places []int) (*queue, *request) {
		all := make([]invocation, len(places))
		for j, i := range places {
			r, names := batch[i], s.names.names(batch[i].key)
			all[j] = extendScript.invoke(2, &names.lease, &names.tries, r.token[:], r.ttl.Milliseconds(), r.window.Milliseconds())
		}
		return n.scripts, scriptRequest(lateFunc(func(late []reply) { s.renewed(batch, places, sent, late) }), all...)
	})
	for _, x := range xs {
		if fate, err := x.await(context.WithoutCancel(s.ctx)); fate == gotAnswer && err == nil {
			s.renewed(batch, x.places, sent, x.r.scripts.replies)
		}
	}
}

func (s *leases) renewed(batch []renewal, places []int, sent time.Time, replies []reply) {
	for j, i := range places {
		switch r := replies[j]; {
		case r.err != nil:
		case r.value == int64(1):
			s.ledger.renewed(batch[i].token, sent)
		default:
			s.ledger.lose(batch[i].token)
		}
	}
}
