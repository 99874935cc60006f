package guard

import (
	"context"
	"errors"
	"slices"
	"time"

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
	if len(keys) == 0 {
		return values, nil
	}
	ask := keys
	if g.near != nil {
		ask = make([]string, 0, len(keys))
		for _, key := range keys {
			if n := g.nearValue(ctx, key, anyAge); n != nil {
				values[key] = g.shared(n.value)
			} else {
				ask = append(ask, key)
			}
		}
	}
	c := &call{e: g.engine, ctx: ctx, fetch: many(fetch), maxAge: anyAge}
	left := c.lookMany(ask, func(key string, value any) { values[key] = g.shared(value) })
	left = slices.DeleteFunc(left, func(w *want) bool { // asked for twice, and served once
		_, served := values[w.key]
		return served
	})
	if len(left) > 0 {
		c.resolve(left)
	}
	var failed map[string]error
	for _, w := range left {
		switch err := w.out.err; {
		case err == nil:
			values[w.key] = g.shared(w.out.value)
		case !errors.Is(err, ErrNotFound):
			if failed == nil {
				failed = map[string]error{}
			}
			failed[w.key] = err
		}
	}
	if failed != nil {
		return values, &BatchError{Errs: failed, hideKeys: g.engine.policy.HideKeys}
	}
	return values, nil
}

// many is a fetch of many keys, for the engine.
func many[V any](fetch func(context.Context, []string) (map[string]V, error)) fetchFunc {
	return func(ctx context.Context, fills []*fill) {
		if fetch == nil {
			panic(errNoFetch)
		}
		keys := make([]string, len(fills))
		for i, r := range fills {
			keys[i] = r.key
		}
		values, err := fetch(ctx, keys)
		failed := failureOf(err)
		for _, r := range fills {
			value, ok := values[r.key]
			r.value, r.err = &value, failed.forKey(r.key, ok)
		}
	}
}

// lookMany serves the keys that are stored and fresh. It returns the others, each once,
// with what their read alone allows.
func (c *call) lookMany(keys []string, serve func(key string, value any)) []*want {
	if len(keys) == 0 {
		return nil
	}
	e := c.e
	left := wants{}
	if o := e.endedFor(c.ctx, nil); o != nil {
		for _, key := range keys {
			left.add(&want{key: key, out: o})
		}
		return left.all
	}
	var tickets []ticket
	decode := e.packer.coder.many()
	if e.near != nil { // which would keep 64 values for the sake of one
		decode = e.packer.coder.decode
		tickets = make([]ticket, len(keys))
		for i, key := range keys {
			tickets[i] = e.near.ticket(key)
		}
	}
	at, hits := time.Now(), 0
	c.readUnjoined(keys, func(i int, r *cache.Reading, err error) {
		if value := e.fresh(r, decode); value != nil {
			hits++
			serve(keys[i], value)
			if e.near != nil {
				e.near.put(keys[i], tickets[i], value, r.Keep(), dueAt(&r.Entry, e.policy.Beta), at)
			}
			return
		}
		w := &want{key: keys[i], rd: keep(r, err, at)}
		if tickets != nil {
			w.ticket = tickets[i]
		}
		left.add(w)
	})
	e.events.redisHits.Add(uint64(hits))
	for _, w := range left.all {
		if w.rd.none() { // it has a flight
			w.out = &outcome{then: fetch}
		} else {
			e.judgeFor(c.ctx, c.maxAge, w)
		}
	}
	return left.all
}

// wants are some keys of a call, each once.
type wants struct {
	all []*want
	has map[string]struct{}
}

func (ws *wants) add(w *want) {
	if _, twice := ws.has[w.key]; twice {
		return
	}
	if ws.has == nil {
		ws.has = map[string]struct{}{}
	}
	ws.has[w.key] = struct{}{}
	ws.all = append(ws.all, w)
}

// fresh decodes an entry that is fresh and not due to be refreshed; else it returns
// nil.
func (e *engine) fresh(r *cache.Reading, decode func([]byte) (any, error)) any {
	if r == nil || decide(r, &e.policy) != serve || due(r, e.policy.Beta) {
		return nil
	}
	value, err := e.packer.decode(r, decode)
	if err != nil {
		return nil
	}
	return value
}

// readUnjoined reads the keys that have no flight. The others are given to each without
// a reading.
func (c *call) readUnjoined(keys []string, each func(i int, r *cache.Reading, err error)) {
	e := c.e
	if e.flights.flying[foreground].Load() == 0 {
		e.readMany(c.ctx, keys, each)
		return
	}
	var places []int
	var ask []string
	for i, key := range keys {
		if e.flights.has(foreground, key) {
			each(i, nil, nil)
		} else {
			places, ask = append(places, i), append(ask, key)
		}
	}
	if len(ask) > 0 {
		e.readMany(c.ctx, ask, func(j int, r *cache.Reading, err error) { each(places[j], r, err) })
	}
}
