package cache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// MemoryOptions configure [NewMemory]. The zero value of each field means its
// default.
type MemoryOptions struct {
	// MaxBytes bounds what the entries take up, their keys and an allowance of
	// 256 bytes each included: the least recently used go first. An entry that is
	// larger by itself is refused ([ErrRefused]). Default 64 MiB.
	//
	// Leases, pauses and the records of failures and attempts are neither counted
	// nor evicted: their own expiry bounds them.
	MaxBytes int64

	// MaxEntries bounds the number of entries in the same way. Default: only
	// MaxBytes bounds it.
	MaxEntries int
}

func (o MemoryOptions) withDefaults() MemoryOptions {
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	if o.MaxEntries == 0 {
		o.MaxEntries = math.MaxInt
	}
	return o
}

func (o MemoryOptions) validate() error {
	var errs []error
	if o.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("cache: MemoryOptions.MaxBytes is %d, must not be negative", o.MaxBytes))
	}
	if o.MaxEntries < 0 {
		errs = append(errs, fmt.Errorf("cache: MemoryOptions.MaxEntries is %d, must not be negative", o.MaxEntries))
	}
	return errors.Join(errs...)
}

// Memory is a [Store] inside one process, for tests, tools and services that
// run as a single process. It is safe for concurrent use, and several guards may
// share one.
//
// It keeps the whole contract: leases, wake-ups, attempts, pauses. A renewal
// can't fail here, so a lease is held until it is given back or until
// Ask.RenewFor and Ask.TTL have both passed. It keeps no goroutine: what has
// expired is dropped when it is next met, and each write looks at a few other
// keys besides. All time is monotonic, and the fake time of a testing/synctest
// bubble if the Memory is used in one.
type Memory struct {
	data   *memoryData
	minter *Minter
	timers sync.WaitGroup // the timers of leases: Close waits for those that fire

	// Guarded by data.mu.
	closed  bool
	leases  map[Token]*memoryLease // granted and not given back, the lost ones too
	watches map[*Watch]string      // the key of each
	feeds   map[*Feed]struct{}
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory(opts MemoryOptions) (*Memory, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	data, err := newMemoryData(opts.withDefaults())
	if err != nil {
		return nil, err
	}
	return data.open(), nil
}

// Join returns another store on the same data, with a process name of its own:
// the two behave as the stores of two processes on one Redis. It is meant for
// tests. Each is closed by itself, and what is stored outlives both.
func (m *Memory) Join() *Memory { return m.data.open() }

func (d *memoryData) open() *Memory {
	m := &Memory{
		data:    d,
		minter:  NewMinter(),
		leases:  map[Token]*memoryLease{},
		watches: map[*Watch]string{},
		feeds:   map[*Feed]struct{}{},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alive[m.minter.Process()] = struct{}{}
	return m
}

// Close implements [Store]. It never returns an error. Calling it again waits
// for the first call.
func (m *Memory) Close() error {
	m.data.mu.Lock()
	now := time.Now()
	// While the process counts as alive, so that an orderly shutdown is never
	// mistaken for a death.
	for token, ml := range m.leases {
		m.giveUp(ml.lease.Key, token, now)
	}
	m.leave()
	m.data.mu.Unlock()
	m.timers.Wait()
	return nil
}

// leave makes the process one that nobody watches. data.mu is held.
func (m *Memory) leave() {
	m.closed = true
	delete(m.data.alive, m.minter.Process())
	for w := range m.watches {
		m.unwatch(w)
	}
	for f := range m.feeds {
		m.data.feeds.remove(f)
		f.Down()
	}
}

// ready reports why a call can't be carried out, if so. data.mu is held.
func (m *Memory) ready(ctx context.Context) error {
	if m.closed {
		return ErrClosed
	}
	return ended(ctx)
}

// Read implements [Store].
func (m *Memory) Read(ctx context.Context, key string) (*Reading, error) {
	d := m.data
	d.mu.Lock()
	if err := m.ready(ctx); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	var stored []byte
	var pttl int64
	if k := d.find(key, time.Now()); k != nil && k.entry != nil {
		stored, pttl = k.entry, pttlAt(k.entryEnds, time.Now())
		d.lru.Get(key) // it was used
	}
	d.mu.Unlock()
	return m.checked(readingOf(stored, pttl)), nil
}

// readingOf copies what is stored, so that whoever changes a payload harms
// nobody but himself. Stored bytes are never changed in place, so that this
// needs no lock.
func readingOf(stored []byte, pttl int64) *Reading {
	return newReading(append([]byte(nil), stored...), pttl)
}

// Set implements [Store].
func (m *Memory) Set(ctx context.Context, key string, e *Entry) error {
	e.Version = m.minter.Token()
	return m.change(ctx, key, func(k *memoryKey, now time.Time) error {
		if err := storableTags(e); err != nil {
			return err
		}
		m.data.tags.stampAndTie(e, now)
		b := e.Encode()
		if err := m.data.storable(key, e, b); err != nil {
			return err
		}
		k.endLease(now)
		k.forgive()
		m.data.put(k, b, now.Add(entryTTL(e)))
		k.publishFilled(e.Version, b)
		m.data.feeds.forget(Invalidation{Key: key})
		return nil
	})
}

// Delete implements [Store].
func (m *Memory) Delete(ctx context.Context, key string) error {
	return m.change(ctx, key, func(k *memoryKey, now time.Time) error {
		k.endLease(now)
		m.data.drop(k)
		k.publish(Message{Signal: Deleted, Token: m.minter.Token()})
		m.data.feeds.forget(Invalidation{Key: key})
		return nil
	})
}

// Expire implements [Store].
func (m *Memory) Expire(ctx context.Context, key string) error {
	return m.change(ctx, key, func(k *memoryKey, now time.Time) error {
		k.endLease(now)
		if e, err := ParseEntry(k.entry); err == nil {
			e.Flags |= FlagExpired
			k.entry = e.Encode() // a copy: a reader may be at the old bytes
		}
		k.publish(Message{Signal: Deleted, Token: m.minter.Token()})
		m.data.feeds.forget(Invalidation{Key: key})
		return nil
	})
}

// Reset implements [Store].
func (m *Memory) Reset(ctx context.Context, key string) error {
	return m.change(ctx, key, func(k *memoryKey, _ time.Time) error {
		k.forgive()
		k.publish(Message{Signal: Released, Token: m.minter.Token()})
		return nil
	})
}

// change runs f on a key, with data.mu held.
func (m *Memory) change(ctx context.Context, key string, f func(*memoryKey, time.Time) error) error {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	now := time.Now()
	k := d.make(key, now)
	defer d.tidy(k)
	return f(k, now)
}

// Watch implements [Store]. Its first Confirmed message is there at once.
func (m *Memory) Watch(key string) *Watch {
	d := m.data
	var w *Watch
	w = NewWatch(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		m.unwatch(w)
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.closed {
		return w // nothing will arrive
	}
	k := d.make(key, time.Now())
	if k.watches == nil {
		k.watches = map[*Watch]struct{}{}
	}
	k.watches[w] = struct{}{}
	m.watches[w] = key
	w.Push(Message{Signal: Confirmed})
	return w
}

// Follow implements [Store]. The feed is live until the store is closed.
func (m *Memory) Follow(forget func(Invalidation)) *Feed {
	d := m.data
	var f *Feed
	f = NewFeed(forget, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.feeds.remove(f)
		delete(m.feeds, f)
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.closed {
		return f
	}
	d.feeds.add(f)
	d.feeds.up(0)
	m.feeds[f] = struct{}{}
	return f
}

// unwatch ends a watch, if it hasn't ended yet. data.mu is held.
func (m *Memory) unwatch(w *Watch) {
	key, ok := m.watches[w]
	if !ok {
		return
	}
	delete(m.watches, w)
	k := m.data.keys[key]
	delete(k.watches, w)
	m.data.tidy(k)
}
