package store

import (
	"sync"
	"sync/atomic"
)

// An Invalidation is a change that near caches hear of: of a key, or of all entries
// that carry a tag.
type Invalidation struct {
	Key string
	Tag string // empty: it is of the key
}

// A Feed tells a near cache which values to drop, and whether it can be relied on.
type Feed struct {
	epoch   atomic.Uint64
	last    atomic.Uint64
	relaxed atomic.Bool
	forget  func(Invalidation)
	close   func()
}

// Epoch is zero while invalidations may be missed, and otherwise a number that stays the
// same for as long as none has been: a value put into a near cache in one epoch may be
// used in that epoch alone. It costs an atomic load.
func (f *Feed) Epoch() uint64 { return f.epoch.Load() }

// Last is the epoch now or, while invalidations may be missed, the one before.
func (f *Feed) Last() uint64 { return f.last.Load() }

// Relax says that it does no harm if the store notices late that invalidations are missed.
func (f *Feed) Relax() { f.relaxed.Store(true) }

// Close ends the feed. Call it once.
func (f *Feed) Close() { f.close() }

// Feeds are the feeds of one store. The zero Feeds are ready for use and down.
type Feeds struct {
	mu    sync.Mutex
	all   map[*Feed]struct{}
	up    bool
	epoch uint64 // the last one used
	downs uint64 // counts the calls of Down
}

// Open adds a feed. first reports whether it is the only one.
func (fs *Feeds) Open(forget func(Invalidation)) (f *Feed, first bool) {
	f = &Feed{forget: forget}
	f.close = func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		delete(fs.all, f)
		f.epoch.Store(0)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.all == nil {
		fs.all = map[*Feed]struct{}{}
	}
	fs.all[f] = struct{}{}
	f.last.Store(fs.epoch)
	if fs.up {
		f.epoch.Store(fs.epoch)
	}
	return f, len(fs.all) == 1
}

// Any reports whether there is a feed.
func (fs *Feeds) Any() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.all) > 0
}

// Strict reports whether there is a feed that is not relaxed.
func (fs *Feeds) Strict() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for f := range fs.all {
		if !f.relaxed.Load() {
			return true
		}
	}
	return false
}

// Forget passes an invalidation on to all feeds.
func (fs *Feeds) Forget(what Invalidation) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for f := range fs.all {
		f.forget(what)
	}
}

// Down says that invalidations may be missed from now on.
func (fs *Feeds) Down() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.downs++
	fs.up = false
	for f := range fs.all {
		f.epoch.Store(0)
	}
}

// Downs counts the calls of Down. Ask before looking whether all nodes are heard.
func (fs *Feeds) Downs() uint64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.downs
}

// Up says that all invalidations are heard from now on, in a new epoch: unless Down was
// called since Downs returned the given number.
func (fs *Feeds) Up(downs uint64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.up || fs.downs != downs {
		return
	}
	fs.up = true
	fs.epoch++
	for f := range fs.all {
		f.last.Store(fs.epoch)
		f.epoch.Store(fs.epoch)
	}
}
