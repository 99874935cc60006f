package guard

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sync/singleflight"

	"github.com/stampedeguard/stampede/cache"
)

// GetMany is Get for many keys: each is served, waited for, or fetched once for
// the fleet, with as few round trips as the store can and one call of the fetch
// for all keys that this call has to fetch, [Policy.MaxBatch] at most in each.
// Several such calls run one after the other, each for FetchTimeout at most; to
// those who wait for the keys of a later one, WaitTimeout is as long as ever.
//
// It returns the values there are. A key that doesn't exist is missing from
// them, and no error: a fetch says so by leaving the key out of its map, or with
// ErrNotFound for an error of that key. If anything else went wrong with some
// keys the error is a [*BatchError], which names them, and the map has all
// others.
//
// The fetch fails for some of its keys by returning a [*BatchError], or an error
// that wraps one, with its map; the others live. Any other error is that of all
// keys that are not in its map. It is called from several goroutines at once
// where some keys can be fetched under a lease and others can't, and for one key
// where that key's fetch in another process has died. Its context is as of
// [FetchFunc].
//
// Events and Stats count each key: a fetch of ten keys is ten fetches that
// started and ended together.
func (g *Guard[V]) GetMany(ctx context.Context, keys []string, fetch func(ctx context.Context, keys []string) (map[string]V, error)) (map[string]V, error) {
	values := make(map[string]V, len(keys))
	if len(keys) == 0 {
		return values, nil
	}
	ask := keys
	if g.near != nil {
		ask = make([]string, 0, len(keys))
		for _, key := range keys {
			if n := g.nearValue(ctx, key); n != nil {
				values[key] = g.shared(n.value)
			} else {
				ask = append(ask, key)
			}
		}
	}
	m := &many{engine: g.engine, ctx: ctx, fetch: func(ctx context.Context, keys []string) (func(string) (any, bool), error) {
		got, err := fetch(ctx, keys)
		return func(key string) (any, bool) {
			v, ok := got[key]
			return &v, ok
		}, err
	}}
	served, left := m.read(ask)
	for i, value := range served {
		if value != nil {
			values[ask[i]] = g.shared(value)
		}
	}
	var failed map[string]error
	for _, p := range m.pursue(left) {
		switch err := p.o.err; {
		case err == nil:
			values[p.key] = g.shared(p.o.value)
		case !errors.Is(err, ErrNotFound):
			if failed == nil {
				failed = map[string]error{}
			}
			failed[p.key] = err
		}
	}
	if failed != nil {
		return values, &BatchError{Errs: failed, hideKeys: g.engine.policy.HideKeys}
	}
	return values, nil
}

// many is one call of GetMany.
type many struct {
	*engine
	ctx   context.Context
	fetch manyFetch

	num          uint64 // the caller's, drawn when it first needs one
	waited, soft *patience
	waitOver     bool
	softOver     bool
	tickets      []ticket // by place, where there is a near cache
}

// A wanted is a key that what was read first doesn't serve.
type wanted struct {
	call
	rd  read
	t   ticket
	o   *outcome // so far
	low bool     // SoftTimeout was looked at

	f      *flight
	result <-chan singleflight.Result
	m      *member // this call is its flight's first
}

// read serves what is stored and fresh. It returns the values by place, and what
// is left: each key once.
func (m *many) read(keys []string) (values []any, left []*wanted) {
	if len(keys) == 0 {
		return nil, nil
	}
	if o := m.endedFor(m.ctx, nil); o != nil {
		return nil, m.distinct(keys, nil, func(w *wanted, _ int) { w.o = o })
	}
	if m.near != nil {
		m.tickets = make([]ticket, len(keys))
		for i, key := range keys {
			m.tickets[i] = m.near.ticket(key)
		}
	}
	values = make([]any, len(keys))
	at := time.Now()
	results := m.readUnjoined(keys)
	m.unpackFresh(results, values)
	hits := uint64(0)
	for i, value := range values {
		if value != nil {
			hits++
			if m.near != nil {
				// A copy, as the store's readings share their memory.
				r := results[i].Reading
				own := &cache.Reading{Entry: r.Entry, Found: true, Age: r.Age, Left: r.Left}
				m.near.put(keys[i], m.tickets[i], value, own, dueAt(&r.Entry, m.policy.Beta))
			}
		}
	}
	m.counters.redisHits.Add(hits)
	if hits == uint64(len(keys)) {
		return values, nil
	}
	return values, m.distinct(keys, values, func(w *wanted, i int) {
		if res := results[i]; res.Reading == nil && res.Err == nil {
			w.o = &outcome{then: fetch} // it has a flight
		} else {
			w.rd = read{res.Reading, res.Err, at}
			m.judgeRead(w)
		}
	})
}

// distinct lists the keys without a value, each once.
func (m *many) distinct(keys []string, values []any, begin func(w *wanted, i int)) []*wanted {
	seen := map[string]struct{}{}
	var left []*wanted
	for i, key := range keys {
		if _, dup := seen[key]; dup || values != nil && values[i] != nil {
			continue
		}
		seen[key] = struct{}{}
		w := &wanted{call: call{ctx: m.ctx, key: key, fetch: m.fetch.one(key)}}
		if m.tickets != nil {
			w.t = m.tickets[i]
		}
		begin(w, i)
		left = append(left, w)
	}
	return left
}

// unpackFresh decodes what is fresh and not due to be refreshed.
func (m *many) unpackFresh(results []cache.ReadResult, values []any) {
	decode := m.coder.decode
	if m.near == nil {
		decode = m.coder.adopter()
	}
	for i := range results {
		r := results[i].Reading
		if r == nil || decide(r, &m.policy) != serve || due(r, m.policy.Beta) {
			continue
		}
		if value, err := m.decode(r, decode); err == nil {
			values[i] = value
		}
	}
}

// readUnjoined reads keys, but for those that have a flight: their results are
// zero.
func (m *many) readUnjoined(keys []string) []cache.ReadResult {
	names := m.storeKeys(keys)
	if m.flights.flying.Load() == 0 {
		return m.store.ReadMany(m.ctx, names)
	}
	all := make([]cache.ReadResult, len(keys))
	var places []int
	ask := names[:0]
	for i, key := range keys {
		if !m.flights.has(key) {
			places, ask = append(places, i), append(ask, names[i])
		}
	}
	if len(ask) > 0 {
		for j, res := range m.store.ReadMany(m.ctx, ask) {
			all[places[j]] = res
		}
	}
	return all
}

// storeKeys is storeKey for many, which share their memory.
func (e *engine) storeKeys(keys []string) []string {
	size := 0
	for _, key := range keys {
		size += len(e.name) + 1 + len(key)
	}
	prefix, all := e.name+":", make([]byte, 0, size)
	names := make([]string, len(keys))
	for i, key := range keys {
		start := len(all)
		all = append(append(all, prefix...), key...)
		// Nothing is written twice: there is room for all.
		names[i] = unsafe.String(&all[start], len(all)-start)
	}
	return names
}

// judgeRead sets the outcome that the reading alone allows.
func (m *many) judgeRead(w *wanted) {
	if w.o = m.endedFor(m.ctx, w.rd.err); w.o == nil {
		w.o = m.judge(w.rd, w.call)
	}
}

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
	for i, res := range m.store.ReadMany(m.ctx, m.storeKeys(keys)) {
		ws[i].rd = read{res.Reading, res.Err, at}
	}
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
			w.o = &outcome{err: m.reentrant(w.key)}
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
	b.start()
	for i, w := range ws {
		if w.f == nil {
			w.o = &outcome{err: ErrClosed}
			continue
		}
		w.o = m.await(fs, w, ws[i:], num, waited, soft)
		fs.leave(w.f, num)
	}
}

// await waits for one flight, ws being those that are still waited for. The
// others are as good as waited for meanwhile: all are needed in the end.
func (m *many) await(fs *flights, w *wanted, ws []*wanted, num uint64, waited, soft *patience) *outcome {
	superseded := w.f.superseded
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
		overdue := m.waitOver && !m.ownFetch(fs, w)
		if overdue {
			return &outcome{err: fmt.Errorf("%w (%v) for %s", ErrWaitTimeout, m.policy.WaitTimeout, m.about(w.key))}
		}
		select {
		case res := <-w.result:
			return res.Val.(*outcome).forCaller(num, w.m != nil)
		case <-superseded:
			if !fs.servesLate(w.f, num) {
				return goRound()
			}
			superseded = nil
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

// ownFetch reports whether the call waits for its own fetch, which has a bound of
// its own, or is about to.
func (m *many) ownFetch(fs *flights, w *wanted) bool {
	return w.m != nil && (w.m.won.Load() || fs.leading(w.f))
}

// unread are those that were not read.
func unread(ws []*wanted) (some []*wanted) {
	for _, w := range ws {
		if w.rd.reading == nil && w.rd.err == nil {
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
	m.forOneself(m.notWithin(ws), Fetched)
}

// spending is that of a fetch for this call alone.
func (m *many) spending() Spending {
	return Spending{
		Cost: m.policy.Cost, Priority: m.policy.Priority, MaxWait: withinDeadline(m.policy.MaxBudgetWait, m.ctx),
	}
}

// forOneself is engine.forOneself for many.
func (m *many) forOneself(ws []*wanted, source Source) {
	turns := map[string]int{}
	for i, w := range ws {
		turns[w.key] = i / m.policy.MaxBatch
	}
	for turn := 0; len(ws) > 0; turn++ {
		some := ws[:min(len(ws), m.policy.MaxBatch)]
		ws = ws[len(some):]
		evs := make([]Event, len(some))
		for i, w := range some {
			evs[i] = Event{Key: w.key, Attempt: 1}
		}
		var paid fill
		var rs []fetched
		if err := m.affordMany(m.ctx, some[0].key, m.spending(), &paid, m.engine.ctx.Done(), nil); err != nil {
			rs = all(len(some), fetched{err: err})
		} else {
			rs = m.runFetchMany(m.ctx, m.fetch, &fetchKeys{turns, turn}, evs, paid, m.engine.ctx.Done())
		}
		for i, r := range rs {
			o := &outcome{value: r.value, err: r.err, source: source}
			if r.err != nil {
				if ended := m.endedFor(m.ctx, nil); ended != nil {
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
		if w.o.err != nil && m.maskable(w.o.err) {
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
		if errors.Is(w.o.err, ErrWaitTimeout) {
			late = append(late, w)
		}
	}
	if len(late) == 0 {
		return
	}
	var ended *outcome
	select {
	case m.unguarded <- struct{}{}:
		defer func() { <-m.unguarded }()
	case <-m.ctx.Done():
		ended = &outcome{err: context.Cause(m.ctx)}
	case <-m.engine.ctx.Done():
		ended = &outcome{err: ErrClosed}
	}
	for _, w := range late {
		if ended != nil {
			w.o = ended
		} else {
			m.observe(Event{Kind: cache.Unguarded, Key: w.key, Err: w.o.err})
		}
	}
	if ended == nil {
		m.forOneself(late, UnguardedFetch)
	}
}

// settle counts, starts the refreshes, and keeps values in the near cache.
func (m *many) settle(all []*wanted) {
	var stale []*wanted
	ended := m.ctx.Err() != nil
	for _, w := range all {
		o := w.o
		m.counters.served(o, ended)
		if o.refresh != nil {
			stale = append(stale, w)
		}
		if m.near != nil && o.err == nil && o.stored && o.source != Stale {
			m.near.put(w.key, w.t, o.value, o.entry, dueAt(&o.entry.Entry, m.policy.Beta))
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
		f, _, first := b.join(w.call, 0, read{reading: w.o.refresh})
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
