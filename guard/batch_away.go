package guard

import (
	"context"
	"errors"

	"github.com/stampedeguard/stampede/cache"
)

// withoutStore is what the members come to whose read or acquire got no answer:
// one fetch of all of them, which takes one slot, if they may.
func (b *batch) withoutStore(away []*member) {
	var open []*member
	for _, m := range away {
		switch {
		case errors.Is(m.err, cache.ErrClosed):
			m.answer(guardClosed())
		case m.refusesWithout():
			m.answer(&outcome{err: unavailable(m.err), own: true, moment: always})
		default:
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return
	}
	// By itself: the slot may have to be waited for, and leases are held.
	for _, m := range open {
		m.away = true
	}
	b.fs.wg.Go(func() { b.carefully(true, func() { b.fetchUnguarded(open) }) })
}

// fetchUnguarded is unguardedFetch for many.
func (b *batch) fetchUnguarded(open []*member) {
	leave := b.turn(b.ctx, func() bool { return b.deserted(open) })
	if leave == nil {
		for _, m := range open {
			m.answer(b.noTurn())
		}
		return
	}
	defer leave()
	var claimed []*member
	for _, m := range open {
		if !m.f.claimFetch() {
			m.answer(b.noTurn())
			continue
		}
		claimed = append(claimed, m)
		m.observe(Event{Kind: cache.Unguarded, Key: m.call.key, Err: m.err})
	}
	b.fetchHere(claimed, UnguardedFetch)
}

// fetchHere is that of a pursuit, for many.
func (b *batch) fetchHere(members []*member, source Source) {
	ctx := b.ctx
	if source == UnguardedFetch {
		ctx = context.WithValue(ctx, slotKey{}, b.engine)
	}
	turns := map[string]int{}
	for i, m := range members {
		turns[m.call.key] = i / b.policy.MaxBatch
	}
	for turn := 0; len(members) > 0; turn++ {
		now, left := members[:min(len(members), b.policy.MaxBatch)], members
		members = members[len(now):]
		if b.engine.ctx.Err() != nil || b.deserted(now) { // what is not stored is of no use to anybody else
			for _, m := range now {
				m.answer(b.noTurn())
			}
			continue
		}
		var paid fill
		if err := b.affordMany(ctx, now[0].call.key, b.spending(now), &paid, nil, func() bool { return b.deserted(now) }); err != nil {
			for _, m := range now {
				m.answer(m.unaffordable(nil, err))
			}
			continue
		}
		evs := make([]Event, len(now))
		starts := make([]uint64, len(now))
		for i, m := range now {
			evs[i] = Event{Key: m.call.key, Attempt: 1}
			starts[i] = m.fs.fetching(m.f, m.tick)
		}
		rs := b.runFetchMany(ctx, b.fetch, &fetchKeys{turns, turn, flightsOf(left)}, evs, paid, nil)
		for i, m := range now {
			if errors.Is(rs[i].err, ErrNotModified) {
				m.addStale(&rs[i]) // as it was read: Redis may be away
			}
			m.answer(m.fetchedHere(&rs[i], &rs[i].fill, starts[i], source))
		}
	}
}
