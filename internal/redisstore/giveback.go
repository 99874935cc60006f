package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// failureKept is how long Redis keeps why a fetch failed, for a waiter that missed the
// wake-up: longer than any waiter's poll.
const failureKept = 5 * time.Second

// Return implements [store.Store]: one pipeline on each node for every 2000 leases, or
// every 4 MiB of entries. It sends again only what was certainly not carried out.
func (s *Store) Return(ctx context.Context, returns []store.Return) []store.Returned {
	all := make([]store.Returned, len(returns))
	invs := make([]invocation, len(returns))
	refused := s.tieReturns(ctx, returns)
	names := make([]string, 0, len(returns))
	places := make([]int, 0, len(returns))
	for i := range returns {
		r := &returns[i]
		if s.closing.Load() && !r.Releases() {
			all[i].Err = store.ErrClosed // Close releases it
			continue
		}
		if refused[i] != nil {
			r = &store.Return{Lease: r.Lease}
		}
		invs[i] = s.returning(r)
		s.ledger.give(r.Lease.Token)
		names, places = append(names, invs[i].key()), append(places, i)
	}
	failed := func(j int, err error) {
		s.ledger.leave(returns[places[j]].Lease.Token)
		all[places[j]].Err = err
	}
	size := func(j int) int { return invs[places[j]].size() }
	xs := s.exchange(ctx, names, size, failed, func(n *node, some []int) (*queue, *request) {
		batch := make([]invocation, len(some))
		for k, j := range some {
			batch[k] = invs[places[j]]
		}
		return n.scripts, scriptRequest(nil, batch...)
	})
	for _, x := range xs {
		fate, err := x.n.await(ctx, x.r)
		for k, j := range x.places {
			if fate != gotAnswer || err != nil {
				failed(j, err)
				continue
			}
			i := places[j]
			answer := s.settled(ctx, x.n, invs[i], x.r.scripts.replies[k], nil)
			all[i] = s.returned(x.n, &returns[i], answer)
		}
	}
	for i, err := range refused {
		if err != nil {
			all[i] = store.Returned{Err: err}
		}
	}
	return all
}

// returned accounts for the answer to a return.
func (s *Store) returned(n *node, r *store.Return, answer reply) store.Returned {
	err := n.classify("giving back", answer.err)
	if err == nil || errors.Is(err, store.ErrRefused) && !r.Releases() {
		s.ledger.forget(r.Lease.Token)
	} else {
		s.ledger.leave(r.Lease.Token)
	}
	return store.Returned{OK: err == nil && (r.Releases() || answer.value == int64(1)), Err: err}
}

// returning is one fill, fail or release.
func (s *Store) returning(r *store.Return) invocation {
	l := r.Lease
	names, _ := l.Names.(*nameWords)
	if names == nil {
		names = s.names.words(l.Key)
	}
	switch {
	case r.Entry != nil:
		r.Entry.Version = l.Token
		wake := store.Message{Signal: store.Filled, Token: l.Token}
		bytes := r.Entry.Encode()
		return fillScript.invoke(5,
			names.entry, names.lease, names.tries, names.pause, names.failures,
			l.Token[:], bytes, ttlArg(r.Entry.TTL), names.wake, wake.Encode(), rides(bytes), s.publish())
	case r.Failed:
		wake := store.Message{Signal: store.FailedSignal, Token: l.Token}
		pause := r.Pause
		if pause > 0 {
			pause = max(pause, time.Millisecond)
		}
		return failScript.invoke(5,
			names.lease, names.tries, names.pause, names.failed(l.Token), names.failures,
			l.Token[:], r.Failure, failureKept.Milliseconds(), pause.Milliseconds(), names.wake, wake.Encode(), s.publish(), flag(r.Declined))
	}
	return s.releasing(names, l.Token)
}

func (s *Store) releasing(names *nameWords, token store.Token) invocation {
	wake := store.Message{Signal: store.Released, Token: token}
	return releaseScript.invoke(2, names.lease, names.tries, token[:], names.wake, wake.Encode(), s.publish())
}

// release gives back a token that may be a lease.
func (s *Store) release(ctx context.Context, key string, token store.Token) error {
	s.ledger.give(token)
	_, _, err := s.call(ctx, "release", s.releasing(s.names.words(key), token), nil)
	if err == nil {
		s.ledger.forget(token)
	} else {
		s.ledger.leave(token)
	}
	return err
}

// ttlArg keeps an expiry positive: Redis refuses zero.
func ttlArg(d time.Duration) int64 { return max(1, d.Milliseconds()) }

// rides reports whether an entry rides in its wake-up, as an argument.
func rides(entry []byte) int { return flag(len(entry) <= store.MaxMessageBody) }

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
