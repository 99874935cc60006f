package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// A backlog keeps the invalidations of this process that the store has not acknowledged, the
// newest of each key and tag, and carries them out when the store answers again. Until
// then this process serves no stored value of those keys and tags.
//
// A Set is carried out as a Delete. Another process may have stored a newer value since,
// and to store the older one would undo that.
type backlog struct {
	e     *engine
	limit int          // 0: nothing is kept
	size  atomic.Int32 // len(keys) + len(tags), readable without mu
	left  atomic.Int32 // those of them that are not done
	kick  chan struct{}

	mu      sync.Mutex // guards memory only
	keys    map[string]queuedKey
	tags    map[string]queuedTag // as the store names them
	since   time.Time            // the oldest was queued
	running bool
	closed  bool
	wg      sync.WaitGroup
}

// The numbers tell a queued change from a newer one. A change that is done is kept for a
// while: an answer to a read that was sent before is not to be served either.
type queuedKey struct {
	kind   store.ChangeKind // Delete or Expire
	number uint64
	done   time.Time // zero: it is not
}

type queuedTag struct {
	change store.TagChange
	number uint64
	done   time.Time
}

func newBacklog(e *engine, limit int) *backlog {
	return &backlog{e: e, limit: max(limit, 0), kick: make(chan struct{}, 1), keys: map[string]queuedKey{}, tags: map[string]queuedTag{}}
}

// takeKey takes in the store's answer to a change of a key, which was begun with the given
// number. It reports whether the change is queued.
func (b *backlog) takeKey(key string, kind store.ChangeKind, number uint64, err error) bool {
	if kind == store.Reset || b.limit == 0 || err == nil && b.size.Load() == 0 {
		return false
	}
	if kind == store.Set {
		kind = store.Delete
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, has := b.keys[key]
	switch {
	case err == nil:
		if has && old.done.IsZero() && old.number < number && (kind == store.Delete || old.kind == store.Expire) {
			old.done = time.Now()
			b.setKeyLocked(key, old)
		}
		return false
	case !b.keepsLocked(err, has):
		return false
	case has && old.done.IsZero() && old.kind == store.Delete:
		kind = store.Delete // it does more than an Expire
	}
	b.setKeyLocked(key, queuedKey{kind: kind, number: number})
	b.addedLocked()
	return true
}

// takeTag is takeKey for a tag.
func (b *backlog) takeTag(tag string, change store.TagChange, number uint64, err error) bool {
	if b.limit == 0 || err == nil && b.size.Load() == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, has := b.tags[tag]
	switch {
	case err == nil:
		if has && old.done.IsZero() && old.number < number && (change == store.DeleteTag || old.change == store.ExpireTag) {
			old.done = time.Now()
			b.setTagLocked(tag, old)
		}
		return false
	case !b.keepsLocked(err, has):
		return false
	case has && old.done.IsZero() && old.change == store.DeleteTag:
		change = store.DeleteTag
	}
	b.setTagLocked(tag, queuedTag{change: change, number: number})
	b.addedLocked()
	return true
}

// keepsLocked reports whether a change that failed is to be queued: if no answer came, be it
// that the caller did not wait for it, and there is room.
func (b *backlog) keepsLocked(err error, has bool) bool {
	if b.closed || errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrClosed) {
		return false
	}
	return has || len(b.keys)+len(b.tags) < b.limit
}

func (b *backlog) addedLocked() {
	if !b.running {
		b.running, b.since = true, time.Now()
		b.wg.Go(b.run)
	}
}

// setKeyLocked and setTagLocked keep the counts.
func (b *backlog) setKeyLocked(key string, q queuedKey) {
	old, has := b.keys[key]
	b.keys[key] = q
	b.countLocked(has && old.done.IsZero(), q.done.IsZero())
}

func (b *backlog) setTagLocked(tag string, q queuedTag) {
	old, has := b.tags[tag]
	b.tags[tag] = q
	b.countLocked(has && old.done.IsZero(), q.done.IsZero())
}

func (b *backlog) countLocked(was, is bool) {
	switch {
	case is && !was:
		b.left.Add(1)
	case was && !is:
		b.left.Add(-1)
	}
	b.size.Store(int32(len(b.keys) + len(b.tags)))
}

// covers reports whether the entry, which a command of the given time showed, is not to be
// served, as its invalidation was queued then. If it still is, covers has the queued changes
// carried out: the store answers.
func (b *backlog) covers(key string, entry *store.Entry, sent time.Time) bool {
	if b.size.Load() == 0 {
		return false
	}
	found, waits := false, false
	see := func(done time.Time) {
		found = found || done.IsZero() || !sent.After(done)
		waits = waits || done.IsZero()
	}
	b.mu.Lock()
	if q, has := b.keys[key]; has {
		see(q.done)
	}
	for _, tag := range entry.Tags {
		if q, has := b.tags[tag]; has {
			see(q.done)
		}
	}
	b.mu.Unlock()
	if waits {
		select {
		case b.kick <- struct{}{}:
		default:
		}
	}
	return found
}

// The store is tried after these times, each half as long again as the one before.
const (
	firstCarry = 100 * time.Millisecond
	lastCarry  = time.Second
	carryBatch = 1000
	// doneFor is how long a change is kept that is done: longer than a read is under way.
	doneFor = 10 * time.Second
)

// run ends when nothing is queued, or with the guard.
func (b *backlog) run() {
	for wait := firstCarry; ; wait = min(wait*3/2, lastCarry) {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-b.kick:
		case <-b.e.ctx.Done():
		}
		t.Stop()
		if b.e.ctx.Err() != nil {
			return
		}
		left, err := b.carryOut(b.e.ctx)
		switch {
		case b.sweep() == 0:
			return
		case left == 0:
			wait = doneFor
		case err == nil:
			wait = firstCarry
		}
	}
}

// sweep drops the changes that have been done for some time, and returns how many are left.
func (b *backlog) sweep() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	past := func(done time.Time) bool { return !done.IsZero() && time.Since(done) >= doneFor }
	maps.DeleteFunc(b.keys, func(_ string, q queuedKey) bool { return past(q.done) })
	maps.DeleteFunc(b.tags, func(_ string, q queuedTag) bool { return past(q.done) })
	b.size.Store(int32(len(b.keys) + len(b.tags)))
	n := len(b.keys) + len(b.tags)
	b.running = n > 0
	return n
}

// carryOut sends the queued changes in batches until one of them is not acknowledged. It
// returns how many are left. A refused change stays queued: its caller was told that it
// will be carried out, and Redis may accept it later.
func (b *backlog) carryOut(ctx context.Context) (left int, err error) {
	for b.left.Load() > 0 {
		keys, changes, numbers := b.batchOfKeys()
		done := 0
		for i, e := range b.e.store.Change(ctx, changes) {
			if e != nil {
				err = e
				continue
			}
			b.doneKey(keys[i], numbers[i])
			done++
		}
		for _, change := range []store.TagChange{store.DeleteTag, store.ExpireTag} {
			tags, numbers := b.batchOfTags(change)
			if e := b.e.store.ChangeTags(ctx, change, tags); e != nil {
				err = e
				continue
			}
			for i, tag := range tags {
				b.doneTag(tag, numbers[i])
			}
			done += len(tags)
		}
		if done > 0 {
			b.mu.Lock()
			since := b.since
			b.mu.Unlock()
			b.e.events.report(ctx, cache.QueueCarriedOut, cache.Event{Size: done, Duration: time.Since(since)})
		}
		if err != nil || done == 0 {
			break
		}
	}
	return int(b.left.Load()), err
}

func (b *backlog) batchOfKeys() (keys []string, changes []store.Change, numbers []uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, q := range b.keys {
		if len(keys) == carryBatch {
			break
		}
		if q.done.IsZero() {
			keys, numbers = append(keys, key), append(numbers, q.number)
			changes = append(changes, store.Change{Kind: q.kind, Key: b.e.storeKey(key)})
		}
	}
	return keys, changes, numbers
}

func (b *backlog) batchOfTags(change store.TagChange) (tags []string, numbers []uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for tag, q := range b.tags {
		if len(tags) == carryBatch {
			break
		}
		if q.done.IsZero() && q.change == change {
			tags, numbers = append(tags, tag), append(numbers, q.number)
		}
	}
	return tags, numbers
}

func (b *backlog) doneKey(key string, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.keys[key]; q.number == number && q.done.IsZero() {
		q.done = time.Now()
		b.setKeyLocked(key, q)
	}
}

func (b *backlog) doneTag(tag string, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.tags[tag]; q.number == number && q.done.IsZero() {
		q.done = time.Now()
		b.setTagLocked(tag, q)
	}
}

// close tries once to carry out the queued changes. Its error says how many are left.
func (b *backlog) close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	left := 0
	if b.left.Load() > 0 {
		left, _ = b.carryOut(context.WithoutCancel(b.e.ctx))
	}
	if left == 0 {
		return nil
	}
	return fmt.Errorf("guard: Close: %d invalidations of guard %q are lost, as Redis did not acknowledge them: %w", left, b.e.name, store.ErrUnavailable)
}

// errQueuedChange is why a stored value is not served: it is known to be invalid.
var errQueuedChange = fmt.Errorf("%w: an invalidation of the key is queued", store.ErrUnavailable)

// A queuedError is that of a change that is queued.
type queuedError struct{ cause error }

func (e *queuedError) Error() string {
	return fmt.Sprintf("%v (the invalidation is queued: it is carried out when Redis answers)", e.cause)
}

// Unwrap is for errors.Is and errors.As.
func (e *queuedError) Unwrap() []error { return []error{ErrQueued, e.cause} }
