package guard

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// lead fetches under the leases that were granted, one part after the other.
func (b *batch) lead(won []*member) {
	won = b.claimFetches(won)
	turns := map[string]int{}
	var parts []*part
	for i, m := range won {
		if i%b.policy.MaxBatch == 0 {
			parts = append(parts, &part{unwanted: make(chan struct{})})
		}
		p := parts[len(parts)-1]
		p.members = append(p.members, m)
		p.wanted.Add(1)
		m.part = p
		turns[m.call.key] = len(parts) - 1
	}
	for _, m := range won {
		ev := Event{Kind: cache.LeaseGranted, Key: m.call.key, Token: m.lease.Token, Attempt: m.lease.Attempt}
		if m.lease.TakenOver {
			ev.Kind = cache.LeaseTakenOver
		}
		b.observe(ev)
		m.tell(step{part: m.part})
	}
	for i, p := range parts {
		b.leadPart(p, &fetchKeys{turns, i, flightsOf(won[i*b.policy.MaxBatch:])})
	}
}

// flightsOf are the members' flights.
func flightsOf(members []*member) []*flight {
	all := make([]*flight, len(members))
	for i, m := range members {
		all[i] = m.f
	}
	return all
}

// claimFetches releases the leases of flights whose first caller fetches for itself:
// the callers of those go round. It returns the others' members.
func (b *batch) claimFetches(won []*member) (claimed []*member) {
	var taken []*member
	var ends []ending
	for _, m := range won {
		if m.f.claimFetch() {
			claimed = append(claimed, m)
			continue
		}
		taken = append(taken, m)
		ends = append(ends, ending{back: cache.Return{Lease: m.lease}, o: goRound()})
	}
	if len(taken) > 0 {
		b.giveBackMany(taken, ends)
	}
	return claimed
}

// leadPart pays for one fetch, makes it, and gives the leases back with the
// outcomes.
func (b *batch) leadPart(p *part, keys *fetchKeys) {
	live := b.letGo(p.members)
	if len(live) == 0 {
		return
	}
	var paid fill
	refused := b.affordMany(b.ctx, live[0].call.key, b.spending(live), &paid, p.unwanted, func() bool { return b.deserted(live) })
	fetching := false
	defer refundUnless(&fetching, paid.expense)
	if live = b.letGo(live); len(live) == 0 {
		return
	}
	if refused == nil && b.engine.ctx.Err() != nil {
		refused = ErrClosed // in the part before: nobody would wait for this one, and the next would run beside it
	}
	ends := make([]ending, len(live))
	if refused != nil {
		for i, m := range live {
			ends[i] = m.unpaid(m.lease, refused)
		}
		b.giveBackMany(live, ends)
		return
	}
	stamp, stampErr := b.stamp(live)
	evs := make([]Event, len(live))
	starts := make([]uint64, len(live))
	for i, m := range live {
		evs[i] = Event{Key: m.call.key, Token: m.lease.Token, Attempt: m.lease.Attempt}
		starts[i] = m.fs.fetching(m.f, m.tick)
	}
	fetching = true
	rs := b.runFetchMany(b.ctx, b.fetch, keys, evs, paid, p.unwanted)
	b.withStale(live, rs)
	for i, m := range live {
		rs[i].stamp, rs[i].stampErr = stamp, stampErr
		ends[i] = m.endingOf(starts[i], &rs[i])
	}
	b.giveBackMany(live, ends)
}

// endingOf is ending, and costs only this key its outcome if StaleOn panics over it, say.
func (m *member) endingOf(start uint64, r *fetched) (e ending) {
	defer func() {
		if p := recover(); p != nil {
			o := &outcome{err: &PanicError{Value: p, Stack: debug.Stack()}, moment: always}
			e = ending{back: cache.Return{Lease: m.lease}, o: o}
		}
	}()
	return m.ending(m.lease, start, r)
}

// letGo releases the leases that were lost before their fetch began: who waits
// asks again. It returns the others' members.
func (b *batch) letGo(members []*member) (live []*member) {
	var gone []*member
	var ends []ending
	for _, m := range members {
		select {
		case <-m.lease.Lost():
			m.drop()
			gone = append(gone, m)
			ends = append(ends, ending{back: cache.Return{Lease: m.lease}, o: goRound()})
		default:
			live = append(live, m)
		}
	}
	if len(gone) > 0 {
		b.giveBackMany(gone, ends)
	}
	return live
}

// deserted reports whether nobody waits for any of the members.
func (b *batch) deserted(members []*member) bool {
	return !slices.ContainsFunc(members, func(m *member) bool { return !b.fs.deserted(m.f) })
}

// stamp is that of a pursuit, for all members.
func (b *batch) stamp(members []*member) (cache.Stamp, error) {
	for _, m := range members {
		if m.mayCarryTags() {
			return b.store.Stamp(b.ctx)
		}
	}
	return cache.Stamp{}, nil
}

// spending is what one call of the fetch takes from the budget: as much as the
// fetch of one key, as it is one call of the upstream. It waits if one of its keys
// has callers who have nothing stale to live on; but no longer than the batch's
// own caller does, if there is no other.
func (b *batch) spending(members []*member) Spending {
	s := Spending{Cost: b.policy.Cost, Priority: Background}
	if b.fs == &b.refreshes {
		return s
	}
	s.Priority = b.policy.Priority
	if !slices.ContainsFunc(members, func(m *member) bool { return !m.livesOnStale() }) {
		return s
	}
	s.MaxWait = b.policy.MaxBudgetWait
	if !slices.ContainsFunc(members, func(m *member) bool { return !b.fs.lone(m.f) }) {
		s.MaxWait = withinDeadline(s.MaxWait, members[0].call.ctx)
	}
	return s
}

// withStale reads the last value anew where the fetch has said that it is good, and
// adds it.
func (p *pursuit) withStale(r *fetched) {
	if errors.Is(r.err, ErrNotModified) {
		p.recheck()
		p.addStale(r)
	}
}

// addStale adds the last value as it is known.
func (p *pursuit) addStale(r *fetched) {
	f := p.newFill()
	r.fill.stale, r.fill.staleReading = f.stale, f.staleReading
}

// withStale is that of a pursuit, for many: all are read at once.
func (b *batch) withStale(members []*member, rs []fetched) {
	var good []int
	var keys []string
	for i, m := range members {
		if errors.Is(rs[i].err, ErrNotModified) && m.known != nil && m.known.Found {
			good, keys = append(good, i), append(keys, m.call.key)
		}
	}
	if len(good) == 0 {
		return
	}
	at, moment := time.Now(), b.tick()
	b.store.ReadMany(b.ctx, b.storePrefix(), keys, func(j int, r *cache.Reading, err error) {
		if err != nil {
			r = nil
		}
		m := members[good[j]]
		m.known, m.knownAt, m.knownMoment = kept(r, err, at).reading, at, moment
	})
	for _, i := range good {
		members[i].addStale(&rs[i])
	}
}

// giveBackMany is giveBack for many, and ends their flights.
func (b *batch) giveBackMany(members []*member, ends []ending) {
	ctx := context.WithoutCancel(b.ctx)
	back := make([]cache.Return, len(ends))
	for i := range ends {
		back[i] = ends[i].back
	}
	done := b.store.ReturnMany(ctx, back)
	var full []cache.Return
	for i := range ends {
		if errors.Is(done[i].Err, cache.ErrRefused) && (back[i].Entry != nil || back[i].Failed) {
			full = append(full, cache.Return{Lease: back[i].Lease})
		}
	}
	if len(full) > 0 {
		b.store.ReturnMany(ctx, full) // see giveBack
	}
	for i, m := range members {
		m.answer(m.given(ends[i], done[i]))
	}
}
