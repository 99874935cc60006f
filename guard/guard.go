package guard

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A Guard reads values of type V through a store, fetching what is missing once
// for the whole fleet. It is safe for concurrent use; make one for each kind of
// value and keep it.
//
// A value is decoded once and shared by the callers of a flight: treat it, and
// what it points to, as read-only.
type Guard[V any] struct {
	engine *engine
	near   *near     // the engine's
	clone  func(V) V // nil: values are shared
}

// A FetchFunc gets a value from where it comes from. Its context has the values
// of the first caller's context but not its cancellation, as the value is for
// everybody; it ends at [Policy.FetchTimeout], with [Guard.Close], or when the
// lease was lost and nobody can use the value any more. Where values are private
// it is the caller's own context, and ends with it.
type FetchFunc[V any] func(ctx context.Context) (V, error)

// New returns a guard on the store. The name is the same in all processes that
// share the values: it stands in front of the keys (to the store, key k of guard g is
// "g:k") and labels the events; letters, digits and "._-". All that is wrong with
// the name and the policy is returned, joined.
//
// Several guards may share a store. Close the guards first, then the store, then
// the Redis client.
func New[V any](store cache.Store, name string, policy Policy) (*Guard[V], error) {
	var errs []error
	if store == nil {
		errs = append(errs, errors.New("guard: New: the store is nil"))
	}
	policy = policy.withDefaults()
	errs = append(errs, checkName(name), policy.validate())
	clone, ok := policy.Clone.(func(V) V)
	if policy.Clone != nil && !ok {
		errs = append(errs, fmt.Errorf("guard: Policy.Clone is a %T, must be a %T", policy.Clone, clone))
	}
	tagsOf, ok := policy.TagsOf.(func(string, V) []string)
	if policy.TagsOf != nil && !ok {
		errs = append(errs, fmt.Errorf("guard: Policy.TagsOf is a %T, must be a %T", policy.TagsOf, tagsOf))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	codec := policy.Codec
	if codec == nil {
		codec = cache.CodecFor[V]()
	}
	if _, ok := codec.(cache.MsgPack); ok { // which looks at the type before the bytes
		if err := codec.Unmarshal(nil, new(V)); err != nil && !errors.Is(err, cache.ErrDamaged) {
			return nil, fmt.Errorf("guard: New: values of type %v can't be stored: %w", reflect.TypeFor[V](), err)
		}
	}
	e := newEngine(store, name, policy, coderOf[V]{codec}, codec)
	if tagsOf != nil {
		e.tagsOf = func(key string, value any) []string { return tagsOf(key, *value.(*V)) }
	}
	if policy.Near.on() {
		var err error
		if e.near, err = newNear(store, e.storeKey(""), policy.Near); err != nil {
			return nil, err
		}
	}
	return &Guard[V]{engine: e, near: e.near, clone: clone}, nil
}

// nearValue is the value in the near cache, if it may be used, or nil.
func (g *Guard[V]) nearValue(ctx context.Context, key string, maxAge time.Duration) *nearValue {
	if g.near == nil || maxAge == 0 {
		return nil
	}
	n := g.near.get(key)
	if n == nil || ctx.Err() != nil || g.engine.ctx.Err() != nil || maxAge > 0 && n.age() > maxAge {
		return nil
	}
	g.near.hits.add()
	return n
}

func (g *Guard[V]) nearResult(n *nearValue) Result[V] {
	age := n.age()
	return Result[V]{Value: g.shared(n.value), Source: FromNear, Age: age, TTL: max(0, n.entry.Entry.FreshFor-age), Stored: true}
}

// shared is a value for one of those who share it.
func (g *Guard[V]) shared(value any) V {
	v := *value.(*V)
	if g.clone != nil {
		v = g.clone(v)
	}
	return v
}

// Get returns the value of key: the stored one while it is fresh, or stale if
// the policy says so, else what the fetch of one caller in the fleet returns.
// Any bytes are a key.
//
// Errors: what the fetch returned, in this process as it is and from another as
// a [*RemoteError]; [*PanicError]; [ErrNotFound]; [ErrFetchTimeout];
// [ErrWaitTimeout]; [ErrQuarantined]; [ErrUnavailable]; [ErrReentrant];
// [*ExhaustedError]; [ErrClosed]; and the cause of ctx's end, upon which Get returns at once while
// the fetch goes on for the others.
func (g *Guard[V]) Get(ctx context.Context, key string, fetch FetchFunc[V], opts ...CallOption) (V, error) {
	maxAge := maxAgeOf(opts)
	if n := g.nearValue(ctx, key, maxAge); n != nil {
		return g.shared(n.value), nil
	}
	o := g.engine.get(ctx, key, maxAge, func() *call { return &call{fetch: plain(fetch)} })
	if o.err != nil {
		var zero V
		return zero, o.err
	}
	return g.shared(o.value), nil
}

// plain is a fetch for the engine.
func plain[V any](fetch FetchFunc[V]) fetchFunc {
	return func(ctx context.Context, fills []*fill) {
		if fetch == nil {
			panic(errNoFetch)
		}
		v, err := fetch(ctx)
		fills[0].value, fills[0].err = &v, err
	}
}

// Load is Get for those who want to say or know more: the fetch is told about
// the last value and may set its value's terms, and the result says where the
// value comes from.
func (g *Guard[V]) Load(ctx context.Context, key string, fetch func(context.Context, *Fill[V]) (V, error), opts ...CallOption) (Result[V], error) {
	maxAge := maxAgeOf(opts)
	if n := g.nearValue(ctx, key, maxAge); n != nil {
		return g.nearResult(n), nil
	}
	return g.resultOf(g.engine.get(ctx, key, maxAge, func() *call { return &call{fetch: telling(fetch), told: true} }))
}

// telling is a fetch for the engine that is told more and may say more.
func telling[V any](fetch func(context.Context, *Fill[V]) (V, error)) fetchFunc {
	return func(ctx context.Context, fills []*fill) {
		if fetch == nil {
			panic(errNoFetch)
		}
		f := fillOf[V](fills[0])
		v, err := fetch(ctx, f)
		f.into(fills[0])
		fills[0].value, fills[0].err = &v, err
	}
}

// Refresh is Get with MaxAge(0).
func (g *Guard[V]) Refresh(ctx context.Context, key string, fetch FetchFunc[V]) (V, error) {
	return g.Get(ctx, key, fetch, MaxAge(0))
}

// Reload is Load with MaxAge(0).
func (g *Guard[V]) Reload(ctx context.Context, key string, fetch func(context.Context, *Fill[V]) (V, error)) (Result[V], error) {
	return g.Load(ctx, key, fetch, MaxAge(0))
}

// Peek returns what is stored, fresh or stale, and never fetches. Errors:
// [ErrMiss]; [ErrNotFound] if that is what is stored; [ErrUnavailable];
// [ErrClosed]; the cause of ctx's end.
func (g *Guard[V]) Peek(ctx context.Context, key string) (Result[V], error) {
	e := g.engine
	r, err := e.store.Read(ctx, e.storeKey(key))
	if o := e.endedFor(ctx, err); o != nil {
		return Result[V]{}, o.err
	}
	if err != nil {
		return Result[V]{}, unavailable(err)
	}
	if r.Found && r.Entry.Kind == cache.Negative && r.Fresh() {
		return Result[V]{}, ErrNotFound
	}
	if !r.Found || r.Entry.Kind != cache.Value {
		return Result[V]{}, ErrMiss
	}
	value, err := e.packer.unpack(key, r)
	if err != nil {
		return Result[V]{}, ErrMiss
	}
	o := &outcome{value: value, source: FromRedis, stored: true, entry: r}
	if !r.Fresh() {
		o.source = Stale
	}
	return g.resultOf(o)
}

// Set stores a value under the policy's terms. A fetch that is under way will
// not overwrite it, and a Get that starts after Set returned does not return
// what Set replaced. It carries the given tags and the policy's.
//
// Errors: [ErrTooLarge]; too many tags, or one that is empty or too long; the
// codec's; [ErrUnavailable], which says whether the value may be stored later all
// the same; [ErrClosed]; the cause of ctx's end.
func (g *Guard[V]) Set(ctx context.Context, key string, value V, tags ...string) error {
	e := g.engine
	tags = slices.Concat(e.policy.Tags, tags, e.tagsOfValue(key, &value))
	if err := checkTags(tags); err != nil {
		return fmt.Errorf("guard: Set: %w", err)
	}
	entry, err := e.packer.pack(&value)
	if err != nil {
		return err
	}
	if n := len(entry.Payload); n > e.policy.MaxBytes {
		return fmt.Errorf("%w: %d bytes encoded, Policy.MaxBytes is %d", ErrTooLarge, n, e.policy.MaxBytes)
	}
	entry.FreshFor, entry.TTL = lifetime(&fill{ttl: e.policy.TTL, staleFor: e.policy.Stale}, &e.policy)
	entry.Tags = e.storeTags(tags)
	return g.changeKey(ctx, key, func() error { return e.store.Set(ctx, e.storeKey(key), entry) })
}

// Delete removes the value. A fetch that is under way will not bring it back,
// and a Get that starts after Delete returned does not return a value whose
// fetch started before.
//
// Errors: [ErrUnavailable], which says whether the value may be deleted later
// all the same; [ErrClosed]; the cause of ctx's end.
func (g *Guard[V]) Delete(ctx context.Context, key string) error {
	return g.changeKey(ctx, key, func() error { return g.engine.store.Delete(ctx, g.engine.storeKey(key)) })
}

// Expire marks the value stale and keeps it: it is refreshed at its next use,
// and served until then if the policy has Stale. A fetch that is under way will
// not be stored. Errors as of Delete.
func (g *Guard[V]) Expire(ctx context.Context, key string) error {
	return g.changeKey(ctx, key, func() error { return g.engine.store.Expire(ctx, g.engine.storeKey(key)) })
}

// Reset is the operator's: it ends a quarantine of the key, and a pause, whether a
// fetch asked for it or Policy.ErrorPause. Errors as of Delete.
func (g *Guard[V]) Reset(ctx context.Context, key string) error {
	return g.changeKey(ctx, key, func() error { return g.engine.store.Reset(ctx, g.engine.storeKey(key)) })
}

func (g *Guard[V]) changeKey(ctx context.Context, key string, do func() error) error {
	return g.change(ctx, do, func(n *near) { n.forget(key) })
}

// change makes a change, and has the near cache forget what it is about.
func (g *Guard[V]) change(ctx context.Context, do func() error, forget func(*near)) error {
	if o := g.engine.endedFor(ctx, nil); o != nil {
		return o.err
	}
	err := do()
	if g.near != nil {
		// This process need not wait to hear of its own change, nor rely on it.
		forget(g.near)
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return err
	}
	return unavailable(err)
}

// Close ends the guard's fetches, whose contexts are cancelled, and releases
// their leases, so that other processes go on at once. Callers get ErrClosed.
// The store stays open. Close returns when the leases have been released; it
// does not wait for fetches that don't heed their context.
func (g *Guard[V]) Close() error {
	g.engine.close()
	return nil
}

func (g *Guard[V]) resultOf(o *outcome) (Result[V], error) {
	if o.err != nil {
		return Result[V]{}, o.err
	}
	r := Result[V]{Value: g.shared(o.value), Source: o.source, Stored: o.stored}
	if o.entry != nil {
		r.Age = o.entry.Age
		r.TTL = max(0, min(o.entry.Entry.FreshFor-o.entry.Age, cache.MaxTTL))
		if o.source == Stale || !o.entry.Fresh() { // a tag may have been expired while it was fetched
			r.TTL = 0
		}
	}
	return r, nil
}
