package redisstore

import (
	"context"

	"github.com/stampedeguard/stampede/internal/store"
)

// Change implements [store.Store]: one pipeline on each node for every 2000 keys.
func (s *values) Change(ctx context.Context, changes []store.Change) []error {
	errs := make([]error, len(changes))
	if err := s.ready(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	s.stampEntries(ctx, changes, errs)
	var names []string
	var places []int
	for i := range changes {
		if errs[i] == nil {
			names, places = append(names, s.names.entry(changes[i].Key)), append(places, i)
		}
	}
	holders := make([]store.Token, len(changes))
	invs := make([]invocation, len(changes))
	size := func(j int) int {
		if e := changes[places[j]].Entry; e != nil {
			return len(e.Payload)
		}
		return 0
	}
	xs := s.exchange(ctx, names, size, func(j int, err error) { errs[places[j]] = err }, func(n *node, some []int) (*queue, *request) {
		batch := make([]invocation, len(some))
		for k, j := range some {
			i := places[j]
			// A lease that this process is granted between the script and its answer is not the
			// one that ended.
			holders[i] = s.ledger.holder(changes[i].Key)
			invs[i] = s.changing(&changes[i])
			batch[k] = invs[i]
		}
		return n.scripts, scriptRequest(nil, batch...)
	})
	for _, x := range xs {
		fate, err := x.await(ctx)
		for k, j := range x.places {
			i := places[j]
			c := &changes[i]
			if errs[i] = err; fate == gotAnswer && err == nil {
				answer := s.settled(ctx, x.n, invs[i], x.r.scripts.replies[k], nil)
				errs[i] = x.n.classify(c.Kind.String(), answer.err)
			}
			if c.Kind == store.Reset {
				errs[i] = orLater(c.Kind.String(), fate, errs[i])
				continue
			}
			s.feeds.Forget(store.Invalidation{Key: c.Key}) // near caches of this process need not wait to hear of it
			if errs[i] = orLater(c.Kind.String(), fate, errs[i]); errs[i] == nil {
				s.ledger.lose(holders[i]) // nor need a fetch
			}
		}
	}
	return errs
}

// stampEntries draws the versions of entries to be set, and ties those with tags.
func (s *values) stampEntries(ctx context.Context, changes []store.Change, errs []error) {
	var tagged []*store.Entry
	var places []int
	for i := range changes {
		e := changes[i].Entry
		if e == nil {
			continue
		}
		e.Version = s.minter.Token()
		if errs[i] = e.Storable(); errs[i] == nil && len(e.Tags) > 0 {
			tagged, places = append(tagged, e), append(places, i)
		}
	}
	if len(tagged) > 0 {
		for j, err := range s.tags.stampAndTie(ctx, tagged) {
			errs[places[j]] = err
		}
	}
}

// changing is one change.
func (s *values) changing(c *store.Change) invocation {
	names := s.names.names(c.Key)
	wake := store.Message{Signal: store.Deleted}
	if c.Kind == store.Reset {
		wake.Signal = store.Released
	}
	if c.Kind == store.Set {
		wake.Signal, wake.Token = store.Filled, c.Entry.Version
	} else {
		wake.Token = s.minter.Token()
	}
	message := wake.Encode()
	switch c.Kind {
	case store.Set:
		bytes := c.Entry.Encode()
		return setScript.invoke(5,
			&names.entry, &names.lease, &names.tries, &names.pause, &names.failures,
			bytes, ttlArg(c.Entry.TTL), &names.wake, message, rides(bytes), s.publish(), s.names.invalidations(), c.Key)
	case store.Reset:
		return resetScript.invoke(3, &names.tries, &names.pause, &names.failures, &names.wake, message, s.publish())
	case store.Expire:
		return expireScript.invoke(2, &names.entry, &names.lease, &names.wake, message, s.publish(), s.names.invalidations(), c.Key)
	}
	return deleteScript.invoke(2, &names.entry, &names.lease, &names.wake, message, s.publish(), s.names.invalidations(), c.Key)
}
