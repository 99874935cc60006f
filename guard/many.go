package guard

import (
	"context"
	"errors"
	"slices"
	"time"

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
// that wraps one or several, with its map; the others live. Any other error, also one
// that is joined with a BatchError (errors.Join, or a second %w), is that of all keys
// that are not in its map nor named. It is called from several goroutines at once
// where some keys can be fetched under a lease and others can't, and for one key
// where that key's fetch in another process has died. Its context is as of
// [FetchFunc].
//
// Events and Stats count each key: a fetch of ten keys is ten fetches that
// started and ended together.
func (g *Guard[V]) GetMany(ctx context.Context, keys []string, fetch func(ctx context.Context, keys []string) (map[string]V, error)) (map[string]V, error) {
	values := make(map[string]V, len(keys))
	if ctx == nil || fetch == nil {
		return values, g.engine.misused(ctx)
	}
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
	left := m.read(ask, func(key string, value any) { values[key] = g.shared(value) })
	left = slices.DeleteFunc(left, func(w *wanted) bool { // asked for twice, and read once
		_, served := values[w.key]
		return served
	})
	var failed map[string]error
	for _, p := range m.pursue(left) {
		switch {
		case p.o.err == nil:
			values[p.key] = g.shared(p.o.value)
		case !errors.Is(p.o.err, ErrNotFound):
			if failed == nil {
				failed = map[string]error{}
			}
			failed[p.key] = g.engine.errorFor(p.o)
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

// read serves what is stored and fresh, and returns what is left: each key once.
func (m *many) read(keys []string, serve func(key string, value any)) []*wanted {
	if len(keys) == 0 {
		return nil
	}
	if o := m.endedFor(m.ctx, nil); o != nil {
		return m.distinct(keys, nil, func(w *wanted) { w.o = o })
	}
	if m.near != nil {
		m.tickets = make([]ticket, len(keys))
		for i, key := range keys {
			m.tickets[i] = m.near.ticket(key)
		}
	}
	decode := m.coder.decode
	if m.near == nil { // which would keep 64 values for the sake of one
		decode = m.coder.many()
	}
	at := time.Now()
	var reads []read // of what isn't served, by place
	hits := 0
	m.readUnjoined(keys, func(i int, r *cache.Reading, err error) {
		if value := m.fresh(r, decode); value != nil {
			hits++
			serve(keys[i], value)
			if m.near != nil {
				m.near.put(keys[i], m.tickets[i], value, r.Keep(), dueAt(&r.Entry, m.policy.Beta), at)
			}
			return
		}
		if reads == nil {
			reads = make([]read, len(keys))
		}
		reads[i] = kept(r, err, at)
	})
	m.counters.redisHits.Add(uint64(hits))
	if hits == len(keys) {
		return nil
	}
	return m.distinct(keys, reads, m.judgeFirst)
}

// kept is a read whose reading was only lent.
func kept(r *cache.Reading, err error, at time.Time) read {
	if r != nil {
		r = r.Keep()
	}
	return read{r, err, at}
}

// distinct lists the keys that were read, or all, each once.
func (m *many) distinct(keys []string, reads []read, begin func(w *wanted)) []*wanted {
	seen := map[string]struct{}{}
	var left []*wanted
	for i, key := range keys {
		if _, dup := seen[key]; dup || reads != nil && reads[i].at.IsZero() {
			continue
		}
		seen[key] = struct{}{}
		w := &wanted{call: call{ctx: m.ctx, key: key, fetch: m.fetch.one(key)}}
		if m.tickets != nil {
			w.t = m.tickets[i]
		}
		if reads != nil {
			w.rd = reads[i]
		}
		begin(w)
		left = append(left, w)
	}
	return left
}

// judgeFirst judges what was read, unless it wasn't: then the key has a flight.
func (m *many) judgeFirst(w *wanted) {
	if w.rd.none() {
		w.rd, w.o = read{}, &outcome{then: fetch}
		return
	}
	m.judgeRead(w)
}

// fresh decodes what is fresh and not due to be refreshed; else it returns nil.
func (m *many) fresh(r *cache.Reading, decode func([]byte) (any, error)) any {
	if r == nil || decide(r, &m.policy) != serve || due(r, m.policy.Beta) {
		return nil
	}
	value, err := m.decode(r, decode)
	if err != nil {
		return nil
	}
	return value
}

// readUnjoined reads keys, but for those that have a flight: they are given to
// each without a reading.
func (m *many) readUnjoined(keys []string, each func(i int, r *cache.Reading, err error)) {
	if m.flights.flying.Load() == 0 {
		m.store.ReadMany(m.ctx, m.storePrefix(), keys, each)
		return
	}
	var places []int
	var ask []string
	for i, key := range keys {
		if m.flights.has(key) {
			each(i, nil, nil)
		} else {
			places, ask = append(places, i), append(ask, key)
		}
	}
	if len(ask) > 0 {
		m.store.ReadMany(m.ctx, m.storePrefix(), ask, func(j int, r *cache.Reading, err error) { each(places[j], r, err) })
	}
}

// judgeRead sets the outcome that the reading alone allows.
func (m *many) judgeRead(w *wanted) {
	if w.o = m.endedFor(m.ctx, w.rd.err); w.o == nil {
		w.o = m.judge(w.rd, w.call)
	}
}
