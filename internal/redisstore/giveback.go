package redisstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// failureKept is how long Redis keeps the failure of a fetch, for a waiter that missed the
// wake-up: longer than any waiter's poll.
const failureKept = 5 * time.Second

// Return implements [store.Store]: one pipeline on each node for every 2000 leases, or
// every 4 MiB of entries. It resends only scripts that were certainly not carried out. Leases
// that Redis does not answer for are given back again in the background.
func (s *leases) Return(ctx context.Context, returns []store.Return) []store.Returned {
	start := time.Now()
	ttls := make([]time.Duration, len(returns))
	for i := range returns {
		ttls[i] = s.ledger.give(returns[i].Lease.Token)
	}
	all := s.giveBack(ctx, returns)
	for i := range all {
		s.gaveBack(&returns[i], all[i].Err, start, ttls[i])
	}
	return all
}

// giveBack ties the entries and sends the scripts of the leases. It does not look at their
// records in the ledger.
func (s *leases) giveBack(ctx context.Context, returns []store.Return) []store.Returned {
	if len(returns) == 1 && isUntied(returns[0].Entry) {
		return s.giveBackOne(ctx, &returns[0])
	}
	all := make([]store.Returned, len(returns))
	sent := returns
	entries := make([]*store.Entry, len(returns))
	for i := range returns {
		entries[i] = returns[i].Entry
	}
	refused := s.tags.tie(ctx, entries)
	names := make([]string, 0, len(returns))
	invs := make([]invocation, 0, len(returns))
	tokens := make([]store.Token, 0, len(returns))
	places := make([]int, 0, len(returns))
	for i := range returns {
		switch {
		case s.closing.Load() && !returns[i].Releases():
			all[i].Err = store.ErrClosed // Close releases it
			continue
		case s.isUnanswered(refused[i]):
			continue // it is tied again later
		case refused[i] != nil:
			if &sent[0] == &returns[0] {
				sent = slices.Clone(returns)
			}
			sent[i] = store.Return{Lease: returns[i].Lease}
		}
		inv := s.returning(&handBack{}, &sent[i])
		names, invs, places = append(names, inv.key()), append(invs, inv), append(places, i)
		tokens = append(tokens, sent[i].Lease.Token)
	}
	size := func(j int) int { return invs[j].size() }
	xs := s.exchange(ctx, names, size, func(j int, err error) { all[places[j]].Err = err }, func(n *node, some []int) (*queue, *request) {
		return n.scripts, scriptRequest(lateFunc(func(late []reply) {
			for k, j := range some {
				if late[k].err == nil {
					s.ledger.forget(tokens[j])
				}
			}
		}), at(invs, some)...)
	})
	for _, x := range xs {
		fate, err := x.await(ctx)
		for k, j := range x.places {
			i := places[j]
			if fate != gotAnswer || err != nil {
				all[i].Err = err
				continue
			}
			answer := s.settled(ctx, x.n, invs[j], x.r.scripts.replies[k], nil)
			err := x.n.classify("giving back", answer.err)
			all[i] = store.Returned{OK: err == nil && (sent[i].Releases() || answer.value == int64(1)), Err: err}
		}
	}
	for i, err := range refused {
		if err == nil {
			continue
		}
		if all[i].OK { // it was released instead
			s.ledger.forget(returns[i].Lease.Token)
		}
		all[i] = store.Returned{Err: err}
	}
	return all
}

// giveBackOne is giveBack for one lease, if no tags have to be tied.
func (s *leases) giveBackOne(ctx context.Context, r *store.Return) []store.Returned {
	if s.closing.Load() && !r.Releases() {
		return []store.Returned{{Err: store.ErrClosed}} // Close releases it
	}
	g := &loneHandBack{handBack: handBack{s: s}}
	value, _, err := s.callIn(&g.call, ctx, "giving back", s.returning(&g.handBack, r), g)
	g.returned[0] = store.Returned{OK: err == nil && (r.Releases() || value == int64(1)), Err: err}
	return g.returned[:]
}

// gaveBack takes the result of giving a lease back into the ledger. If Redis has not
// answered, the lease is given back again.
func (s *leases) gaveBack(r *store.Return, err error, start time.Time, ttl time.Duration) {
	switch {
	case errors.Is(err, store.ErrClosed): // Close releases it
	case err == nil, errors.Is(err, store.ErrRefused) && !r.Releases():
		s.ledger.forget(r.Lease.Token)
	case s.isUnanswered(err) && ttl > 0:
		later := *r
		if !s.spawn(func() { s.giveBackLater(&later, start, ttl) }) {
			s.ledger.leave(r.Lease.Token)
		}
	default:
		s.ledger.leave(r.Lease.Token)
	}
}

// isUnanswered reports whether an error says that no answer came, and the store is open.
func (s *leases) isUnanswered(err error) bool {
	return errors.Is(err, store.ErrUnavailable) && !s.closing.Load()
}

// A lease is given back again after these times, each twice the one before.
const (
	firstAgain = 50 * time.Millisecond
	lastAgain  = 500 * time.Millisecond
)

// giveBackLater gives a lease back again until Redis answers, for as long as the lease
// may live: ttl from the start of the first attempt. Waiters in other processes wait for
// that lease meanwhile. Each attempt compares the token, so it does no harm if an earlier
// one was carried out. It ends with the store.
func (s *leases) giveBackLater(r *store.Return, start time.Time, ttl time.Duration) {
	token := r.Lease.Token
	for wait := firstAgain; sleep(s.ctx, wait) == nil; wait = min(2*wait, lastAgain) {
		late := time.Since(start)
		switch {
		case !s.ledger.gives(token):
			return // Redis has answered after all, or Close has released it
		case late >= ttl || s.closing.Load():
			s.ledger.leave(token)
			return
		}
		again := after(r, late)
		if err := s.giveBack(s.ctx, []store.Return{*again})[0].Err; !s.isUnanswered(err) {
			s.gaveBack(again, err, start, 0)
			return
		}
	}
}

// after is a return when it is late. An entry is fresh, and kept, for so much less. An
// entry that would have expired is not stored.
func after(r *store.Return, late time.Duration) *store.Return {
	if r.Entry == nil {
		return r
	}
	aged := *r.Entry
	if aged.TTL -= late; aged.TTL < time.Millisecond {
		return &store.Return{Lease: r.Lease}
	}
	if aged.FreshFor > 0 {
		aged.FreshFor = max(aged.FreshFor-late, time.Millisecond)
	}
	return &store.Return{Lease: r.Lease, Entry: &aged, Trace: r.Trace}
}

// isUntied reports whether there is nothing to be tied.
func isUntied(e *store.Entry) bool { return e == nil || len(e.Tags) == 0 && e.Storable() == nil }

// A handBack is the memory of a fill, fail or release.
type handBack struct {
	s     *leases
	lease store.Token
	words [firstKey + 5 + 9]any

	token, entry, wake bytesArg
	ttl                int64
	message            [1 + store.TokenSize]byte
}

// A loneHandBack is one that goes alone.
type loneHandBack struct {
	handBack
	call     scriptCall
	returned [1]store.Returned
}

// answeredLate implements [lateReader].
func (g *loneHandBack) answeredLate(late []reply) {
	if late[0].err == nil {
		g.s.ledger.forget(g.lease)
	}
}

// returning is one fill, fail or release.
func (s *leases) returning(g *handBack, r *store.Return) invocation {
	l := r.Lease
	g.lease = l.Token
	g.token = g.lease[:]
	names, _ := l.Names.(*names)
	if names == nil {
		names = s.names.names(l.Key)
	}
	switch {
	case r.Entry != nil:
		r.Entry.Version = l.Token
		wake := store.Message{Signal: store.Filled, Token: l.Token}
		g.entry, g.ttl, g.wake = r.Entry.Encode(), ttlArg(r.Entry.TTL), wake.Append(g.message[:0])
		return traced(r, fillScript.invokeIn(g.words[:0], 5,
			&names.entry, &names.lease, &names.tries, &names.pause, &names.failures,
			&g.token, &g.entry, &g.ttl, &names.wake, &g.wake, rides(g.entry), s.publish()))
	case r.Failed:
		wake := store.Message{Signal: store.FailedSignal, Token: l.Token}
		pause := r.Pause
		if pause > 0 {
			pause = max(pause, time.Millisecond)
		}
		return traced(r, failScript.invokeIn(g.words[:0], 5,
			&names.lease, &names.tries, &names.pause, names.failed(l.Token), &names.failures,
			&g.token, r.Failure, failureKept.Milliseconds(), pause.Milliseconds(), &names.wake, wake.Encode(), s.publish(), flag(r.Declined)))
	}
	return s.releasing(names, l.Token)
}

func (s *leases) releasing(names *names, token store.Token) invocation {
	wake := store.Message{Signal: store.Released, Token: token}
	return releaseScript.invoke(2, &names.lease, &names.tries, token[:], &names.wake, wake.Encode(), s.publish())
}

// traced adds the message with the trace context of the fetch, if there is one.
func traced(r *store.Return, inv invocation) invocation {
	if r.Trace != nil {
		m := store.Message{Signal: store.Traced, Token: r.Lease.Token, Body: r.Trace}
		inv.words = append(inv.words, m.Encode())
	}
	return inv
}

// releaseAll gives tokens back that may be leases.
func (s *leases) releaseAll(tokens []owned) error {
	calls := make([]invocation, len(tokens))
	for i, o := range tokens {
		s.ledger.give(o.token)
		calls[i] = s.releasing(s.names.names(o.key), o.token)
	}
	var errs []error
	for i, a := range s.runAll(context.Background(), "release", calls) {
		if a.err != nil {
			errs = append(errs, a.err)
			s.ledger.leave(tokens[i].token)
			continue
		}
		s.ledger.forget(tokens[i].token)
	}
	return errors.Join(errs...)
}
