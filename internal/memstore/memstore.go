// Package memstore keeps entries and leases in one process, for tests, tools and
// services that run as a single process. It keeps the whole contract of package store:
// leases, wake-ups, attempts, pauses, tags. All time is monotonic, and the fake time of a
// testing/synctest bubble if the store is used in one.
package memstore

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// Options bound a store.
type Options struct {
	MaxBytes   int64 // of entries, with their keys and 256 bytes each
	MaxEntries int
}

// A Store is a process on some data, which others may share. A renewal can't fail here,
// so a lease is held until it is returned or until Request.RenewFor and Request.TTL have
// both passed. It keeps no goroutine: an expired part is dropped at its next use,
// and each write looks at a few other keys besides.
type Store struct {
	data   *data
	minter *store.Minter
	timers sync.WaitGroup // the timers of leases: Close waits for those that fire

	// Guarded by data.mu.
	closed  bool
	leases  map[store.Token]*lease  // granted and not returned, the lost ones too
	watches map[*store.Watch]string // the key of each

	feeds store.Feeds // has a lock of its own
}

var _ store.Store = (*Store)(nil)

// New returns a store on new data.
func New(opts Options) (*Store, error) {
	d, err := newData(opts)
	if err != nil {
		return nil, err
	}
	return d.open(), nil
}

// Join returns another store on the same data, with a process name of its own: the two
// behave as the stores of two processes on one Redis. Each is closed by itself, and the
// data outlive both.
func (m *Store) Join() *Store { return m.data.open() }

func (d *data) open() *Store {
	m := &Store{
		data: d, minter: store.NewMinter(), leases: map[store.Token]*lease{}, watches: map[*store.Watch]string{},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alive[m.minter.Process()] = m
	m.feeds.Up(0)
	return m
}

// Close implements [store.Store]. It never returns an error. Calling it again waits for
// the first call.
func (m *Store) Close() error {
	m.data.mu.Lock()
	now := time.Now()
	// While the process counts as alive, so that an orderly shutdown is never mistaken for
	// a death.
	for token, l := range m.leases {
		m.giveUp(l.lease.Key, token, now)
	}
	m.leaveLocked()
	m.data.mu.Unlock()
	m.timers.Wait()
	return nil
}

// leaveLocked ends the process: no other sees it from now on.
func (m *Store) leaveLocked() {
	m.closed = true
	delete(m.data.alive, m.minter.Process())
	for w := range m.watches {
		m.unwatchLocked(w)
	}
	m.feeds.Down()
}

// readyLocked reports why a call can't be carried out, if so.
func (m *Store) readyLocked(ctx context.Context) error {
	if m.closed {
		return store.ErrClosed
	}
	return store.Ended(ctx)
}

// Read implements [store.Store].
func (m *Store) Read(_ context.Context, prefix, key string, to store.Reader) {
	to.Sending()
	to.Answered(m.read(context.Background(), prefix+key))
}

// ReadMany implements [store.Store].
func (m *Store) ReadMany(ctx context.Context, prefix string, keys []string, each func(i int, r *store.Reading, err error)) {
	for i, key := range keys {
		r, err := m.read(ctx, prefix+key)
		each(i, r, err)
	}
}

func (m *Store) read(ctx context.Context, key string) (*store.Reading, error) {
	d := m.data
	d.mu.Lock()
	err := m.readyLocked(ctx)
	r := &store.Reading{}
	if k := d.find(key, time.Now()); err == nil && k != nil && k.entry != nil {
		d.lru.Get(key) // it was used
		r = d.readingLocked(k)
	}
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return unshared(r), nil
}

// readingLocked is the state of a key's entry.
func (d *data) readingLocked(k *key) *store.Reading {
	r := &store.Reading{}
	r.Parse(k.entry, d.instant())
	if r.Tagged() {
		r.Heed(d.tags.judge(&r.Entry, time.Now()))
	}
	return r
}

// unshared copies the payload, so that a caller that changes it harms no other. The bytes
// of an entry never change, so this needs no lock.
func unshared(r *store.Reading) *store.Reading {
	r.Entry.Payload = bytes.Clone(r.Entry.Payload)
	return r
}

// Change implements [store.Store].
func (m *Store) Change(ctx context.Context, changes []store.Change) []error {
	errs := make([]error, len(changes))
	for i := range changes {
		errs[i] = m.change(ctx, &changes[i])
	}
	return errs
}

func (m *Store) change(ctx context.Context, c *store.Change) error {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.readyLocked(ctx); err != nil {
		return err
	}
	now := time.Now()
	k := d.make(c.Key, now)
	defer d.tidy(k)
	switch c.Kind {
	case store.Set:
		if err := m.setLocked(k, c.Entry, now); err != nil {
			return err
		}
	case store.Delete:
		k.endLease(now)
		d.drop(k)
		k.publish(store.Message{Signal: store.Deleted, Token: m.minter.Token()})
	case store.Expire:
		k.endLease(now)
		var e store.Entry
		if e.Parse(k.entry) == nil {
			e.Flags |= store.FlagExpired
			k.entry = e.Encode() // a copy: a reader may be at the old bytes
		}
		k.publish(store.Message{Signal: store.Deleted, Token: m.minter.Token()})
	case store.Reset:
		k.forgive()
		k.publish(store.Message{Signal: store.Released, Token: m.minter.Token()})
		return nil
	}
	d.invalidate(store.Invalidation{Key: c.Key})
	return nil
}

func (m *Store) setLocked(k *key, e *store.Entry, now time.Time) error {
	if err := e.Storable(); err != nil {
		return err
	}
	e.Version = m.minter.Token()
	m.data.tags.stampAndTie(e, now)
	b, err := m.data.encode(k.name, e)
	if err != nil {
		return err
	}
	k.endLease(now)
	k.forgive()
	m.data.put(k, b, now.Add(entryTTL(e)))
	k.publishFilled(e.Version, b)
	return nil
}

// Watch implements [store.Store]. Its first Confirmed message is there at once.
func (m *Store) Watch(name string) *store.Watch {
	d := m.data
	var w *store.Watch
	w = store.NewWatch(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		m.unwatchLocked(w)
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.closed {
		return w // nothing will arrive
	}
	k := d.make(name, time.Now())
	if k.watches == nil {
		k.watches = map[*store.Watch]struct{}{}
	}
	k.watches[w] = struct{}{}
	m.watches[w] = name
	w.Push(store.Message{Signal: store.Confirmed})
	return w
}

// unwatchLocked ends a watch, if it has not ended yet.
func (m *Store) unwatchLocked(w *store.Watch) {
	name, ok := m.watches[w]
	if !ok {
		return
	}
	delete(m.watches, w)
	k := m.data.keys[name]
	delete(k.watches, w)
	m.data.tidy(k)
}

// Follow implements [store.Store]. The feed is up until the store is closed.
func (m *Store) Follow(forget func(store.Invalidation)) *store.Feed {
	f, _ := m.feeds.Open(forget)
	return f
}

// invalidate tells the feeds of all processes.
func (d *data) invalidate(what store.Invalidation) {
	for _, m := range d.alive {
		m.feeds.Forget(what)
	}
}
