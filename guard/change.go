package guard

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// Set stores a value under the policy's terms, with the given tags and the policy's. A fetch
// that is under way does not overwrite it. A Get that starts after Set returned does not
// return the replaced value.
//
// Errors: [ErrTooLarge]; too many tags, or one that is empty or too long; the
// codec's; [ErrUnavailable], which says whether the value may be stored later all
// the same; [ErrClosed]; the cause of ctx's end.
func (g *Guard[V]) Set(ctx context.Context, key string, value V, tags ...string) error {
	if ctx == nil {
		return g.engine.misused(ctx)
	}
	entry, err := entryFor(g.engine, "Set", key, &value, tags)
	if err != nil {
		return err
	}
	return g.change(ctx, store.Set, []string{key}, []*store.Entry{entry})[0]
}

// SetMany is Set for many values, with as few round trips as GetMany. They all carry the
// given tags. If some can't be set the error is a [*BatchError], and the others are.
func (g *Guard[V]) SetMany(ctx context.Context, values map[string]V, tags ...string) error {
	if ctx == nil {
		return g.engine.misused(ctx)
	}
	var keys, of []string
	var entries []*store.Entry
	var failed []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		entry, err := entryFor(g.engine, "SetMany", key, &value, tags)
		if err != nil {
			of, failed = append(of, key), append(failed, err)
			continue
		}
		keys, entries = append(keys, key), append(entries, entry)
	}
	errs := g.change(ctx, store.Set, keys, entries)
	return g.engine.events.batchError(append(of, keys...), append(failed, errs...))
}

// entryFor is the entry of a value that no fetch brought.
func entryFor(e *engine, op, key string, value any, tags []string) (*store.Entry, error) {
	tags = e.tags.ofValue(key, value, slices.Concat(e.tags.own, tags)...)
	if err := checkTags(tags); err != nil {
		return nil, fmt.Errorf("guard: %s: %w", op, err)
	}
	entry := &store.Entry{}
	if err := e.packer.pack(entry, value); err != nil {
		return nil, err
	}
	if n := len(entry.Payload); n > e.policy.MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes encoded, Policy.MaxBytes is %d", ErrTooLarge, n, e.policy.MaxBytes)
	}
	entry.FreshFor, entry.TTL = lifetime(&fill{ttl: e.policy.TTL, staleFor: e.policy.Stale}, &e.policy)
	entry.Tags = e.tags.stored(tags)
	return entry, nil
}

// Delete removes the value. A fetch that is under way does not bring it back. A Get that
// starts after Delete returned does not return a value from a fetch that started before.
//
// Errors: [ErrUnavailable], which says whether the value may be deleted later
// all the same; [ErrClosed]; the cause of ctx's end.
func (g *Guard[V]) Delete(ctx context.Context, key string) error {
	return g.change(ctx, store.Delete, []string{key}, nil)[0]
}

// DeleteMany is Delete for many keys, with as few round trips as GetMany. If some can't be
// deleted the error is a [*BatchError], and the others are.
func (g *Guard[V]) DeleteMany(ctx context.Context, keys []string) error {
	if ctx == nil {
		return g.engine.misused(ctx)
	}
	return g.engine.events.batchError(keys, g.change(ctx, store.Delete, keys, nil))
}

// Expire marks the value stale and keeps it: it is refreshed at its next use,
// and served until then if the policy has Stale. A fetch that is under way will
// not be stored. Errors as of Delete.
func (g *Guard[V]) Expire(ctx context.Context, key string) error {
	return g.change(ctx, store.Expire, []string{key}, nil)[0]
}

// ExpireMany is Expire for many keys. Errors as of DeleteMany.
func (g *Guard[V]) ExpireMany(ctx context.Context, keys []string) error {
	if ctx == nil {
		return g.engine.misused(ctx)
	}
	return g.engine.events.batchError(keys, g.change(ctx, store.Expire, keys, nil))
}

// Reset is the operator's: it ends a quarantine of the key, and a pause, whether a
// fetch asked for it or Policy.ErrorPause. Errors as of Delete.
func (g *Guard[V]) Reset(ctx context.Context, key string) error {
	return g.change(ctx, store.Reset, []string{key}, nil)[0]
}

// change changes keys, and drops their values from the near cache and the reserve, whether
// the store answers or not. There are entries for Set only.
func (g *Guard[V]) change(ctx context.Context, kind store.ChangeKind, keys []string, entries []*store.Entry) []error {
	e := g.engine
	if ctx == nil {
		err := e.misused(ctx)
		return slices.Repeat([]error{err}, len(keys))
	}
	if o := e.endedFor(ctx, nil); o != nil {
		return slices.Repeat([]error{e.errorFor(o)}, len(keys))
	}
	if len(keys) == 0 {
		return nil
	}
	changes := make([]store.Change, len(keys))
	for i, key := range keys {
		changes[i] = store.Change{Kind: kind, Key: e.storeKey(key)}
		if entries != nil {
			changes[i].Entry = entries[i]
		}
	}
	number := e.sequence.Add(1)
	errs := e.store.Change(ctx, changes)
	for i, key := range keys {
		queued := e.backlog.takeKey(key, kind, number, errs[i])
		if e.coherence != nil && kind != store.Reset {
			e.coherence.forget(key)
		}
		if errs[i] = e.changeError(ctx, errs[i]); queued {
			e.events.report(ctx, cache.ChangeQueued, cache.Event{Key: key, Err: errs[i]})
			errs[i] = &queuedError{errs[i]}
		}
		e.events.report(ctx, cache.KeyChanged, cache.Event{Key: key, Operation: kind.String(), Err: errs[i]})
	}
	return errs
}

// DeleteTag removes all values that carry one of the tags, at a cost that does not depend
// on their number. A Get that starts after DeleteTag returned does not return such a value
// from a fetch that started before. A fetch under way goes on; its value is not stored if
// it carries one of the tags. No tags are no error. Each guard has its own tags.
//
// Errors as of Delete. One that is about some of the tags names them; the others
// are done.
func (g *Guard[V]) DeleteTag(ctx context.Context, tags ...string) error {
	return g.changeTags(ctx, "DeleteTag", store.DeleteTag, tags)
}

// ExpireTag marks all values stale that carry one of the tags, as Expire does for a key. The
// value of a fetch under way is stored, and is stale if it carries one of the tags. Errors
// as of DeleteTag.
func (g *Guard[V]) ExpireTag(ctx context.Context, tags ...string) error {
	return g.changeTags(ctx, "ExpireTag", store.ExpireTag, tags)
}

func (g *Guard[V]) changeTags(ctx context.Context, op string, what store.TagChange, tags []string) error {
	e := g.engine
	if ctx == nil {
		return e.misused(ctx)
	}
	if err := checkTagSizes(tags); err != nil {
		return fmt.Errorf("guard: %s: %w", op, err)
	}
	if len(tags) == 0 {
		return nil
	}
	if o := e.endedFor(ctx, nil); o != nil {
		return e.errorFor(o)
	}
	stored := e.tags.stored(tags)
	number := e.sequence.Add(1)
	err := e.store.ChangeTags(ctx, what, stored)
	queued := len(stored)
	for _, t := range stored {
		if !e.backlog.takeTag(t, what, number, err) {
			queued--
		}
		if e.coherence != nil {
			e.coherence.forgetTag(t)
		}
	}
	err = e.changeError(ctx, err)
	for _, t := range tags {
		e.events.report(ctx, cache.KeyChanged, cache.Event{Key: t, Operation: what.String(), Err: err})
	}
	if queued == len(stored) {
		e.events.report(ctx, cache.ChangeQueued, cache.Event{Err: err})
		err = &queuedError{err}
	}
	return err
}
