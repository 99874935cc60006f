package guard

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// pursue is engine.pursue for many: it goes round, with those that have to, until
// there is an outcome for each.
func (m *many) pursue(all []*wanted) []*wanted {
	if len(all) == 0 {
		return nil
	}
	m.waited, m.soft = newPatience(m.policy.WaitTimeout), newPatience(m.policy.SoftTimeout)
	defer m.waited.stop()
	defer m.soft.stop()
	if m.policy.SoftTimeout == 0 {
		m.soft.stop()
	}
	for left, round := all, 0; len(left) > 0; round++ {
		if round > 0 {
			m.readAgain(left)
		}
		left = m.goRound(left)
		if m.waitOver && !slices.ContainsFunc(left, func(w *wanted) bool { return !m.owned(w) }) {
			m.waited.again(m.policy.WaitTimeout)
			m.waitOver = false
		}
	}
	m.mask(all)
	m.insteadOfWaiting(all)
	m.settle(all)
	return all
}

// readAgain reads what has to go round.
func (m *many) readAgain(left []*wanted) {
	m.readUnread(left)
	for _, w := range left {
		m.judgeRead(w)
	}
}

// readUnread reads for all of them, whatever was read before.
func (m *many) readUnread(ws []*wanted) {
	if len(ws) == 0 {
		return
	}
	keys := make([]string, len(ws))
	for i, w := range ws {
		keys[i] = w.key
	}
	at := time.Now()
	m.store.ReadMany(m.ctx, m.storePrefix(), keys, func(i int, r *cache.Reading, err error) {
		ws[i].rd = kept(r, err, at)
	})
}

// goRound brings all keys on by one round, and returns those that need another.
func (m *many) goRound(ws []*wanted) (left []*wanted) {
	if ws := m.notWithin(which(ws, fetch)); len(ws) > 0 {
		if m.num == 0 {
			m.num = m.tick()
		}
		m.share(&m.flights, ws, m.num, m.waited, m.soft)
	}
	m.shareLocally(which(ws, fetchLocal))
	m.alone(which(ws, fetchAlone))
	return which(ws, fetch)
}

// which are those that are to do something.
func which(ws []*wanted, then action) (some []*wanted) {
	for _, w := range ws {
		if w.o.then == then {
			some = append(some, w)
		}
	}
	return some
}

// notWithin sets the outcome of those that a fetch asks for which is under way in
// them, and returns the others.
func (m *many) notWithin(ws []*wanted) (others []*wanted) {
	for _, w := range ws {
		if within(m.ctx, m.engine, w.key) {
			w.o = m.reentrant(w.key)
		} else {
			others = append(others, w)
		}
	}
	return others
}

// share waits for the flights of the keys among fs, as the first caller of those
// that have none: of those it makes a batch.
func (m *many) share(fs *flights, ws []*wanted, num uint64, waited, soft *patience) {
	b := m.newBatch(fs, m.ctx, m.fetch)
	for _, w := range ws {
		w.f, w.result, w.m = b.join(w.call, num, w.rd)
	}
	inner := frameOf(m.ctx)
	var joined []*wanted
	for _, w := range ws {
		switch {
		case w.f == nil:
			w.o = guardClosed()
		case inner != nil && !inner.await(m.waitOf(w)):
			w.o = m.deadlocked(w.key)
			fs.leave(w.f, num)
		default:
			joined = append(joined, w)
		}
	}
	b.start()
	for i, w := range joined {
		w.o = m.await(fs, w, joined[i:], num, waited, soft)
		fs.leave(w.f, num)
		if inner != nil {
			inner.done(m.waitOf(w))
		}
	}
}

// waitOf is the wait for the flight that a key has been joined to.
func (m *many) waitOf(w *wanted) wait { return wait{m.engine, w.key, w.f} }

// await waits for one flight, ws being those that are still waited for. The
// others are as good as waited for meanwhile: all are needed in the end.
func (m *many) await(fs *flights, w *wanted, ws []*wanted, num uint64, waited, soft *patience) *outcome {
	var superseded <-chan struct{} = w.f.superseded
	for {
		select {
		case res := <-w.result:
			return res.Val.(*outcome).forCaller(num, w.m != nil)
		default:
		}
		if m.softOver && fs == &m.flights && !w.low {
			w.low = true
			if o := m.engine.mask(w.call, &outcome{err: errSoftTimeout}, w.rd); o.err == nil {
				return o
			}
		}
		if m.waitOver && (w.m == nil || m.mayLeave(fs, w.f)) {
			return m.waitedTooLong(w.key)
		}
		select {
		case res := <-w.result:
			return res.Val.(*outcome).forCaller(num, w.m != nil)
		case <-superseded:
			var o *outcome
			if o, superseded = fs.sentOff(w.f, num); o != nil {
				return o
			}
		case <-m.ctx.Done():
			return &outcome{err: context.Cause(m.ctx)}
		case <-soft.over():
			soft.stop()
			m.softOver = true
			m.readUnread(unread(ws))
		case <-waited.over():
			waited.stop()
			m.waitOver = true
		}
	}
}

// owned reports whether the flight that was last waited for is the call's own to fetch.
func (m *many) owned(w *wanted) bool { return w.m != nil && m.ownFetch(w.m.fs, w.f) }

// unread are those that were not read.
func unread(ws []*wanted) (some []*wanted) {
	for _, w := range ws {
		if w.rd.none() {
			some = append(some, w)
		}
	}
	return some
}

// shareLocally is engine.shareLocally for many.
func (m *many) shareLocally(ws []*wanted) {
	ws = m.notWithin(ws)
	for num := m.tick(); len(ws) > 0; ws = which(ws, fetch) {
		m.share(&m.locals, ws, num, m.waited, &patience{off: true})
	}
}

// alone fetches for this call alone, on its own context, what may not be shared.
func (m *many) alone(ws []*wanted) {
	m.forOneself(m.ctx, m.notWithin(ws), Fetched)
}

// spending is that of a fetch for this call alone.
func (m *many) spending() Spending {
	return Spending{
		Cost: m.policy.Cost, Priority: m.policy.Priority, MaxWait: withinDeadline(m.policy.MaxBudgetWait, m.ctx),
	}
}

// forOneself is engine.forOneself for many.
func (m *many) forOneself(ctx context.Context, ws []*wanted, source Source) {
	turns := map[string]int{}
	for i, w := range ws {
		turns[w.key] = i / m.policy.MaxBatch
	}
	for turn := 0; len(ws) > 0; turn++ {
		if ended := m.endedFor(ctx, nil); ended != nil { // nobody would wait for the others: all would run at once
			for _, w := range ws {
				w.o = ended
			}
			return
		}
		some := ws[:min(len(ws), m.policy.MaxBatch)]
		ws = ws[len(some):]
		evs := make([]Event, len(some))
		for i, w := range some {
			evs[i] = Event{Key: w.key, Attempt: 1}
		}
		var paid fill
		var rs []fetched
		if err := m.affordMany(ctx, some[0].key, m.spending(), &paid, m.engine.ctx.Done(), nil); err != nil {
			rs = all(len(some), fetched{err: err})
		} else {
			rs = m.runFetchMany(ctx, m.fetch, &fetchKeys{turn: turns, now: turn}, evs, paid, m.engine.ctx.Done())
		}
		for i, r := range rs {
			o := &outcome{value: r.value, err: r.err, source: source}
			if r.err != nil {
				if ended := m.endedFor(ctx, nil); ended != nil {
					o = ended
				}
			}
			some[i].o = o
		}
	}
}

// mask serves stale values instead of errors, where the policy says so.
func (m *many) mask(all []*wanted) {
	if m.policy.StaleIfError == 0 || m.ctx.Err() != nil {
		return
	}
	var failed []*wanted
	for _, w := range all {
		if w.o.err != nil && m.maskable(w.o) {
			failed = append(failed, w)
		}
	}
	m.readUnread(unread(failed))
	for _, w := range failed {
		w.o = m.engine.mask(w.call, w.o, w.rd)
	}
}

// insteadOfWaiting is StaleOrFetch's fetch, for all keys in one slot.
func (m *many) insteadOfWaiting(all []*wanted) {
	if m.policy.OnWaitTimeout != StaleOrFetch {
		return
	}
	var late []*wanted
	for _, w := range all {
		if w.o.late() {
			late = append(late, w)
		}
	}
	if len(late) == 0 {
		return
	}
	leave := m.ownTurn(m.ctx)
	if leave == nil {
		for _, w := range late {
			w.o = cmp.Or(m.endedFor(m.ctx, nil), w.o)
		}
		return
	}
	defer leave()
	for _, w := range late {
		m.observe(Event{Kind: cache.Unguarded, Key: w.key, Err: w.o.err})
	}
	m.forOneself(context.WithValue(m.ctx, slotKey{}, m.engine), late, UnguardedFetch)
}

// settle counts, starts the refreshes, and keeps values in the near cache.
func (m *many) settle(all []*wanted) {
	var stale []*wanted
	ended := m.ctx.Err() != nil
	for _, w := range all {
		o := w.o
		m.counters.served(o, ended)
		if o.refresh != nil {
			m.tellStale(w.key, o)
			stale = append(stale, w)
		}
		if m.near != nil && o.err == nil && o.stored && o.source != Stale {
			// Others may have been waited for since o.at.
			m.near.put(w.key, w.t, o.value, o.entry, dueAt(&o.entry.Entry, m.policy.Beta), o.at)
		}
	}
	m.refresh(stale)
}

// refresh is engine.refresh for many: one batch in the background.
func (m *many) refresh(stale []*wanted) {
	if m.policy.Budget != nil && m.policy.Budget.Exhausted(Background) {
		return
	}
	var b *batch
	var joined []*flight
	for _, w := range stale {
		if m.refreshes.has(w.key) {
			continue
		}
		if b == nil {
			b = m.newBatch(&m.refreshes, m.ctx, m.fetch)
		}
		f, _, first := b.join(w.call, 0, read{reading: w.o.refresh, at: w.o.at}) // others may have been waited for since
		if first != nil {
			m.counters.refreshes.Add(1)
		}
		if f != nil {
			joined = append(joined, f)
		}
	}
	if b == nil {
		return
	}
	b.start()
	for _, f := range joined {
		m.refreshes.leave(f, 0)
	}
}
