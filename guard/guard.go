package guard

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// A Guard reads values of type V through a store, and fetches a missing value once for the
// whole fleet. It is safe for concurrent use; make one for each kind of value and keep it.
//
// A value is decoded once and shared by the callers of a flight: treat it as read-only, or
// see [Clone].
type Guard[V any] struct {
	engine *engine
	near   *near     // the engine's
	clone  func(V) V // nil: values are shared
}

// An Option is a part of a guard's policy that depends on the type of its values.
type Option[V any] func(*options[V])

type options[V any] struct {
	clone  func(V) V
	tagsOf func(string, V) []string
}

// Clone copies each shared value with f for each caller, for callers that change values. f is
// called for the zero value too, and its panics are the caller's.
func Clone[V any](f func(V) V) Option[V] { return func(o *options[V]) { o.clone = f } }

// TagsOf adds the tags that f returns to each value that is fetched or set. f is called from
// several goroutines.
func TagsOf[V any](f func(key string, value V) []string) Option[V] {
	return func(o *options[V]) { o.tagsOf = f }
}

// New returns a guard on the store. The name is the same in all processes that
// share the values: it stands in front of the keys (to the store, key k of guard g is
// "g:k") and labels the events; letters, digits and "._-".
//
// Errors: all errors of the store, the name and the policy, joined; or a type V that the
// codec cannot store, as far as the codec can tell from the type (its CheckType method).
//
// Several guards may share a store. Close the guards first, then the store, then
// the Redis client.
func New[V any](s cache.Store, name string, policy Policy, opts ...Option[V]) (*Guard[V], error) {
	var errs []error
	switch {
	case s == nil:
		errs = append(errs, errors.New("guard: New: nil store (make one with cache.NewRedis or cache.NewMemory)"))
	case nils.Is(s):
		errs = append(errs, fmt.Errorf("guard: New: the store is a nil %T (check the error of the call that made it)", s))
	}
	policy = policy.withDefaults()
	errs = append(errs, checkName(name), policy.validate())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	codec := policy.Codec
	if codec == nil {
		codec = cache.CodecFor[V]()
	}
	if c, ok := codec.(interface{ CheckType(t reflect.Type) error }); ok {
		if err := c.CheckType(reflect.TypeFor[V]()); err != nil {
			return nil, fmt.Errorf("guard: New: values of type %v can't be stored: %w", reflect.TypeFor[V](), err)
		}
	}
	var o options[V]
	for _, set := range opts {
		set(&o)
	}
	e := newEngine(s.Unwrap(), name, policy, coderOf[V]{codec}, codec)
	if o.tagsOf != nil {
		e.tags.of = func(key string, value any) []string { return o.tagsOf(key, *value.(*V)) }
	}
	if err := e.keepValues(coderOf[V]{codec}.raw()); err != nil {
		return nil, err
	}
	g := &Guard[V]{engine: e, near: e.near, clone: o.clone}
	e.detach = telemetry.Attach(policy.Observer, name, g)
	return g, nil
}

// Close cancels the contexts of the guard's fetches, ends the fetches and releases
// their leases, so that other processes go on at once. Callers get ErrClosed.
// The store stays open. Close returns when the leases have been released; it
// does not wait for fetches that don't heed their context.
//
// It tries once more to carry out queued invalidations (ErrQueued). If Redis does not
// acknowledge them, its error says how many are lost, and wraps cache.ErrUnavailable.
func (g *Guard[V]) Close() error { return g.engine.close() }

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

// shared is a value for one of the callers that share it.
func (g *Guard[V]) shared(value any) V {
	v := *value.(*V)
	if g.clone != nil {
		v = g.clone(v)
	}
	return v
}

func (g *Guard[V]) nearResult(n *nearValue) Result[V] {
	age := n.age()
	return Result[V]{Value: g.shared(n.value), Source: FromNear, Age: age, TTL: max(0, n.entry.Entry.FreshFor-age), Stored: true}
}

func (g *Guard[V]) resultOf(o *outcome) (Result[V], error) {
	if o.err != nil {
		return Result[V]{}, g.engine.errorFor(o)
	}
	r := Result[V]{Value: g.shared(o.value), Source: o.source, Stored: o.stored}
	if o.entry != nil {
		r.Age = o.entry.Age
		r.TTL = max(0, min(o.entry.Entry.FreshFor-o.entry.Age, store.MaxTTL))
		if o.source == Stale || !o.entry.Fresh() { // a tag may have been expired while it was fetched
			r.TTL = 0
		}
	}
	return r, nil
}

// Stats returns a snapshot. It is cheap but for InFlight, which takes a lock for
// as long as it takes to list the flights.
func (g *Guard[V]) Stats() Stats {
	s := g.Counters()
	s.InFlight = g.engine.flights.list(g.engine.policy.HideKeys)
	return s
}

// Counters is Stats without InFlight. It takes no lock of the guard's.
func (g *Guard[V]) Counters() Stats { return statsOf(g.engine) }

// A KeyState is the state of a key that all processes share, without its value.
type KeyState struct {
	Holder      cache.Token   // of the lease; zero: no process fetches the key
	Lease       time.Duration // left of the lease
	Pause       time.Duration // left of a pause; 0: none
	Attempts    int           // attempts that are under way, or that died with their process
	Quarantined bool          // there is no lease, and as many attempts as Policy.MaxAttempts
	Remembered  time.Duration // for how long the attempts are remembered
}

// Inspect asks the store for a key's lease, pause and quarantine. It changes nothing.
// Attempts of one process count one by one. So Quarantined may be reported too early if few
// processes made the attempts. Errors as of Peek.
func (g *Guard[V]) Inspect(ctx context.Context, key string) (KeyState, error) {
	e := g.engine
	if ctx == nil {
		return KeyState{}, e.misused(ctx)
	}
	if o := e.endedFor(ctx, nil); o != nil {
		return KeyState{}, e.errorFor(o)
	}
	in, ok := e.store.(store.Inspector)
	if !ok {
		return KeyState{}, fmt.Errorf("guard: Inspect: a %T cannot tell: %w", e.store, errors.ErrUnsupported)
	}
	s, err := in.Inspect(ctx, e.storeKey(key))
	if err != nil {
		return KeyState{}, e.changeError(ctx, err)
	}
	return KeyState{
		Holder: cache.Token(s.Holder), Lease: s.Lease, Pause: s.Pause, Attempts: s.Attempts, Remembered: s.Remembered,
		Quarantined: s.Holder.IsZero() && e.policy.MaxAttempts > 0 && s.Attempts >= e.policy.MaxAttempts,
	}, nil
}

// InFlight lists at most max of the flights that are under way, in no order, and returns
// how many there are.
func (g *Guard[V]) InFlight(max int) (some []Flight, total int) {
	return g.engine.flights.some(max, g.engine.policy.HideKeys)
}
