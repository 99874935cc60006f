package guard

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// Get returns the value of key: the stored value while it is fresh, or stale if the policy
// allows that, else the result of a fetch that one caller of the fleet makes. Keys may
// contain arbitrary bytes. It is safe for concurrent use, as all methods are.
//
// The fetch gets the value from its origin. Its context has the values of the first
// caller's context but not its cancellation, as all callers share the value. The context
// ends at [Policy.FetchTimeout], with [Guard.Close], or when the lease was lost and no
// caller can use the value any more. For private values it is the caller's own context. The
// fetch may run on, or start, after the call that brought it has returned: other callers
// may wait for it.
//
// Errors: the fetch's, as it is in this process and as a [*RemoteError] from another one;
// [*PanicError]; [ErrNotFound]; [ErrFetchTimeout]; [ErrWaitTimeout]; [ErrQuarantined];
// [ErrUnavailable]; [ErrReentrant]; [*ExhaustedError]; [ErrClosed]; and the cause of ctx's
// end. When ctx ends Get returns at once, and the fetch goes on for the other callers.
func (g *Guard[V]) Get(ctx context.Context, key string, fetch func(ctx context.Context) (V, error), opts ...CallOption) (V, error) {
	var zero V
	if ctx == nil || fetch == nil {
		return zero, g.engine.misused(ctx)
	}
	maxAge := maxAgeOf(opts)
	if n := g.nearValue(ctx, key, maxAge); n != nil {
		return g.shared(n.value), nil
	}
	o := g.engine.get(ctx, key, maxAge, func() *call { return &call{fetch: plain(fetch)} })
	if o.err != nil {
		return zero, g.engine.errorFor(o)
	}
	return g.shared(o.value), nil
}

// plain is a fetch for the engine.
func plain[V any](fetch func(ctx context.Context) (V, error)) fetchFunc {
	return func(ctx context.Context, fills []*fill) {
		v, err := fetch(ctx)
		fills[0].value, fills[0].err = &v, err
	}
}

// Load is Get with a [Fill] for the fetch, which tells it the last value and takes the terms
// of the new one, and with a [Result], which tells the source of the value.
func (g *Guard[V]) Load(ctx context.Context, key string, fetch func(context.Context, *Fill[V]) (V, error), opts ...CallOption) (Result[V], error) {
	if ctx == nil || fetch == nil {
		return Result[V]{}, g.engine.misused(ctx)
	}
	maxAge := maxAgeOf(opts)
	if n := g.nearValue(ctx, key, maxAge); n != nil {
		return g.nearResult(n), nil
	}
	return g.resultOf(g.engine.get(ctx, key, maxAge, func() *call { return &call{fetch: telling(fetch), told: true} }))
}

// telling is a fetch for the engine that is told more and may say more.
func telling[V any](fetch func(context.Context, *Fill[V]) (V, error)) fetchFunc {
	return func(ctx context.Context, fills []*fill) {
		f := fillOf[V](fills[0])
		v, err := fetch(ctx, f)
		f.into(fills[0])
		fills[0].value, fills[0].err = &v, err
	}
}

// Begin returns a value that is stored and may be served, as [Guard.Load] does, or that
// another caller fetched while this one waited. If this caller is to fetch, it returns a
// Turn and the last value, if there is one, in its Stale. Errors as of Load.
//
// refresh is called, on a goroutine of its own, with the turn to refresh a value that
// is served: it must end the turn. Nothing waits for its return. Nil: such values are not
// refreshed.
func (g *Guard[V]) Begin(ctx context.Context, key string, refresh func(*Turn[V]), opts ...CallOption) (Result[V], *Turn[V], error) {
	if ctx == nil {
		return Result[V]{}, nil, g.engine.misused(ctx)
	}
	maxAge := maxAgeOf(opts)
	if n := g.nearValue(ctx, key, maxAge); n != nil {
		return g.nearResult(n), nil, nil
	}
	o := g.engine.get(ctx, key, maxAge, func() *call {
		c := &call{told: true, steps: true}
		if refresh != nil {
			c.refreshed = func(t *openTurn) { refresh(turnOf[V](t)) }
		}
		return c
	})
	if o.turn != nil {
		return Result[V]{}, turnOf[V](o.turn), nil
	}
	r, err := g.resultOf(o)
	return r, nil, err
}

// GetMany is Get for many keys. Each key is served, waited for, or fetched once for the
// fleet, in a few round trips. The fetch is called once for all keys that this call has to
// fetch, or for [Policy.MaxBatch] of them at a time; such calls run one after the other,
// each for FetchTimeout at most.
//
// The map has the values of all keys that exist. A key that does not exist is missing from
// it, and that is no error: the fetch leaves the key out of its map, or returns ErrNotFound
// for it. If other keys failed, the error is a [*BatchError] that names them, and the map
// has the rest.
//
// The fetch fails for some of its keys by returning a [*BatchError], or an error
// that wraps one or several, with its map; the others live. Any other error, also one
// that is joined with a BatchError (errors.Join, or a second %w), is that of all keys
// that are not in its map nor named. It is called from several goroutines at once
// where some keys can be fetched under a lease and others can't, and for one key
// where that key's fetch in another process has died. Its context is as of
// Get.
//
// Events and Stats count each key: a fetch of ten keys is ten fetches that
// started and ended together.
func (g *Guard[V]) GetMany(ctx context.Context, keys []string, fetch func(ctx context.Context, keys []string) (map[string]V, error), opts ...CallOption) (map[string]V, error) {
	values := make(map[string]V, len(keys))
	if ctx == nil || fetch == nil {
		return values, g.engine.misused(ctx)
	}
	c := &call{e: g.engine, ctx: ctx, fetch: many(fetch), maxAge: maxAgeOf(opts)}
	has := func(key string) bool { _, ok := values[key]; return ok }
	left := c.lookMany(g.notNear(c, keys, func(key string, n *nearValue) { values[key] = g.shared(n.value) }), has,
		func(key string, value any, _ *store.Reading) { values[key] = g.shared(value) })
	err := c.resolveMany(left, func(w *want) { values[w.key] = g.shared(w.out.value) })
	return values, err
}

// LoadMany is GetMany with a [Fill] and a [Result] for each key, as of Load. Each Fill names
// its Key.
func (g *Guard[V]) LoadMany(ctx context.Context, keys []string, fetch func(ctx context.Context, fills []*Fill[V]) (map[string]V, error), opts ...CallOption) (map[string]Result[V], error) {
	results := make(map[string]Result[V], len(keys))
	if ctx == nil || fetch == nil {
		return results, g.engine.misused(ctx)
	}
	c := &call{e: g.engine, ctx: ctx, fetch: tellingMany(fetch), told: true, maxAge: maxAgeOf(opts)}
	has := func(key string) bool { _, ok := results[key]; return ok }
	left := c.lookMany(g.notNear(c, keys, func(key string, n *nearValue) { results[key] = g.nearResult(n) }), has,
		func(key string, value any, r *store.Reading) {
			results[key], _ = g.resultOf(&outcome{value: value, source: FromStore, stored: true, entry: r})
		})
	err := c.resolveMany(left, func(w *want) { results[w.key], _ = g.resultOf(w.out) })
	return results, err
}

// notNear serves the keys that the near cache has, and returns the others.
func (g *Guard[V]) notNear(c *call, keys []string, serve func(key string, n *nearValue)) []string {
	if g.near == nil {
		return keys
	}
	left := make([]string, 0, len(keys))
	for _, key := range keys {
		if n := g.nearValue(c.ctx, key, c.maxAge); n != nil {
			serve(key, n)
		} else {
			left = append(left, key)
		}
	}
	return left
}

// many is a fetch of many keys, for the engine.
func many[V any](fetch func(context.Context, []string) (map[string]V, error)) fetchFunc {
	return func(ctx context.Context, fills []*fill) {
		keys := make([]string, len(fills))
		for i, r := range fills {
			keys[i] = r.key
		}
		values, err := fetch(ctx, keys)
		answerMany(fills, values, err)
	}
}

func tellingMany[V any](fetch func(context.Context, []*Fill[V]) (map[string]V, error)) fetchFunc {
	return func(ctx context.Context, fills []*fill) {
		told := make([]*Fill[V], len(fills))
		for i, r := range fills {
			told[i] = fillOf[V](r)
		}
		values, err := fetch(ctx, told)
		for i, r := range fills {
			told[i].into(r)
		}
		answerMany(fills, values, err)
	}
}

// answerMany notes the answer for each key.
func answerMany[V any](fills []*fill, values map[string]V, err error) {
	failed := failureOf(err)
	for _, r := range fills {
		value, ok := values[r.key]
		r.value, r.err = &value, failed.forKey(r.key, ok)
	}
}

// Peek returns the stored value, fresh or stale, or the value of the [Reserve] if the store
// does not answer. It never fetches. Errors: [ErrMiss];
// [ErrNotFound] if that is stored; [ErrUnavailable]; [ErrClosed]; the cause of ctx's end.
func (g *Guard[V]) Peek(ctx context.Context, key string) (Result[V], error) {
	if ctx == nil {
		return Result[V]{}, g.engine.misused(ctx)
	}
	e, t := g.engine, ticket{}
	if e.reserve != nil {
		t = e.coherence.ticket(key)
	}
	rd, o := e.lookups.readHedged(ctx, key, func(why error) *outcome { return e.standby.outcome(key, anyAge, why) })
	if o != nil {
		return g.resultOf(o)
	}
	return g.peeked(ctx, key, t, rd)
}

// PeekMany is Peek for many keys. A key that is not stored, or known not to exist, is
// missing from the results, and no error. If anything else went wrong with some keys the
// error is a [*BatchError].
func (g *Guard[V]) PeekMany(ctx context.Context, keys []string) (map[string]Result[V], error) {
	results := make(map[string]Result[V], len(keys))
	if ctx == nil {
		return results, g.engine.misused(ctx)
	}
	var failed []error
	var of []string
	at, tickets := time.Now(), g.engine.coherence.manyTickets(keys)
	g.engine.lookups.readManyHedged(ctx, keys, anyAge, g.engine.readMany, func(i int, r *store.Reading, err error, o *outcome) {
		result, err := g.peekedMany(ctx, keys[i], tickets.of(i), keep(r, err, at), o)
		switch {
		case err == nil:
			results[keys[i]] = result
		case !errors.Is(err, ErrMiss) && !errors.Is(err, ErrNotFound):
			of, failed = append(of, keys[i]), append(failed, err)
		}
	})
	return results, g.engine.events.batchError(of, failed)
}

// peekedMany is peeked, but for a key of the reserve if the store did not answer.
func (g *Guard[V]) peekedMany(ctx context.Context, key string, t ticket, rd *read, reserved *outcome) (Result[V], error) {
	if reserved == nil && rd.err != nil {
		reserved = g.engine.standby.outcome(key, anyAge, rd.err)
	}
	if reserved != nil {
		return g.resultOf(reserved)
	}
	return g.peeked(ctx, key, t, rd)
}

func (g *Guard[V]) peeked(ctx context.Context, key string, t ticket, rd *read) (Result[V], error) {
	e := g.engine
	if o := e.endedFor(ctx, rd.err); o != nil {
		return Result[V]{}, e.errorFor(o)
	}
	if rd.err != nil {
		return Result[V]{}, unavailable(rd.err)
	}
	e.standby.answered()
	if rd = e.unlessQueued(key, rd); rd.err != nil {
		return Result[V]{}, unavailable(rd.err)
	}
	r := rd.reading
	if r.Found && r.Entry.Kind == store.Negative && r.Fresh() {
		return Result[V]{}, ErrNotFound
	}
	if rd.found() == nil {
		e.standby.outdate(key, r)
		return Result[V]{}, ErrMiss
	}
	value, err := e.packer.unpack(ctx, key, rd)
	if err != nil {
		return Result[V]{}, ErrMiss
	}
	o := &outcome{value: value, source: FromStore, stored: true, entry: r, at: rd.at}
	if !r.Fresh() {
		o.source = Stale
	}
	e.standby.keep(key, t, o)
	return g.resultOf(o)
}
