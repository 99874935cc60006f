package store

import (
	"sync"
	"sync/atomic"
)

// A Feed tells a near cache what to forget, and whether it can be relied on.
// Make one with Store.Follow, and close it when done.
type Feed struct {
	current atomic.Uint64
	forget  func(Invalidation)
	close   func()
}

// NewFeed returns a feed that is not live, for authors of stores.
func NewFeed(forget func(Invalidation), closer func()) *Feed {
	return &Feed{forget: forget, close: closer}
}

// Epoch is zero while invalidations may be missed, and otherwise a number that
// stays the same for as long as none has been: what was put into a near cache in
// one epoch may be used in that epoch alone. It costs an atomic load.
func (f *Feed) Epoch() uint64 { return f.current.Load() }

// Close ends the feed. Call it once.
func (f *Feed) Close() {
	f.current.Store(0)
	f.close()
}

// Up and Down say whether invalidations arrive; an epoch is used once. Forget
// passes one on. For authors of stores.
func (f *Feed) Up(epoch uint64) { f.current.Store(epoch) }

// Down says that invalidations may be missed from now on.
func (f *Feed) Down() { f.current.Store(0) }

// Forget passes an invalidation on.
func (f *Feed) Forget(what Invalidation) { f.forget(what) }

// feeds are those of one store.
type feeds struct {
	mu    sync.Mutex
	all   map[*Feed]struct{}
	live  bool
	epoch uint64 // the last one used
	downs uint64 // counts reasons to be down, for who has looked meanwhile
}

// add takes a feed in; first reports whether it is the only one.
func (f *feeds) add(feed *Feed) (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[*Feed]struct{}{}
	}
	f.all[feed] = struct{}{}
	if f.live {
		feed.Up(f.epoch)
	}
	return len(f.all) == 1
}

func (f *feeds) remove(feed *Feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, feed)
}

func (f *feeds) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all) > 0
}

func (f *feeds) forget(what Invalidation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for feed := range f.all {
		feed.Forget(what)
	}
}

// down puts all feeds down at once.
func (f *feeds) down() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.downs++
	f.live = false
	for feed := range f.all {
		feed.Down()
	}
}

// reasons is to be asked for before looking whether all nodes are heard of.
func (f *feeds) reasons() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.downs
}

// up puts all feeds up, unless there has been a reason not to since reasons was
// asked for.
func (f *feeds) up(reasons uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live || f.downs != reasons {
		return
	}
	f.live = true
	f.epoch++
	for feed := range f.all {
		feed.Up(f.epoch)
	}
}
