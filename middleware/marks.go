package middleware

import (
	"hash/maphash"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
)

// marks are notes of this process about keys. They spare runs and reads. An outdated or a
// lost one costs runs that might have been shared, and never shows a page to the wrong
// client.
//
// A key whose responses can't be shared is marked in the store. Requests for it then run the
// handler side by side. The process remembers a mark for a moment, so that not every
// request for a private page asks Redis.
type marks struct {
	seed maphash.Seed

	mu    sync.Mutex
	notes *lru.LRU[uint64, note] // by digest: clients choose keys, and their length
}

// A note is about one key.
type note struct {
	until   time.Time // the end of the key's mark, as far as it is remembered
	lifted  time.Time // the last time of lift
	trusted bool      // responses of the key could be shared
	strikes int       // responses in a row since that could not
	used    time.Time // the last time that a variant was served from a full index
}

const (
	rememberMark = time.Second
	maxNotes     = 8192 // the most recently used
)

func newMarks() *marks {
	notes, _ := lru.NewLRU[uint64, note](maxNotes, nil) // an error means a size below 1
	return &marks{seed: maphash.MakeSeed(), notes: notes}
}

// change changes the note of a key.
func (m *marks) change(key string, do func(*note)) {
	id := maphash.String(m.seed, key)
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _ := m.notes.Get(id)
	do(&n)
	m.notes.Add(id, n)
}

// get returns the note of a key.
func (m *marks) get(key string) note {
	id := maphash.String(m.seed, key)
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _ := m.notes.Get(id)
	return n
}

// remember notes that a request which came at a time has found the key marked, for the rest
// of the mark's time.
func (m *marks) remember(key string, came time.Time, left time.Duration) {
	if left = min(left, rememberMark); left <= 0 {
		return
	}
	m.change(key, func(n *note) {
		if n.lifted.IsZero() || came.After(n.lifted) {
			n.until = time.Now().Add(left)
		}
	})
}

// has reports whether the key is known to be marked.
func (m *marks) has(key string) bool { return time.Now().Before(m.get(key).until) }

// remove removes the note that the key is marked.
func (m *marks) remove(key string) {
	if !m.get(key).until.IsZero() {
		m.change(key, func(n *note) { n.until = time.Time{} })
	}
}

// toLift reports whether a run that began at a time, and whose response could be shared, is
// to lift the key's mark. The mark may have been lifted since.
func (m *marks) toLift(key string, began time.Time) (lift bool) {
	m.change(key, func(n *note) {
		if lift = n.lifted.IsZero() || began.After(n.lifted); lift {
			n.lifted = time.Now()
		}
	})
	return lift
}

// trust notes that a response of the key could be shared.
func (m *marks) trust(key string) {
	m.change(key, func(n *note) { n.trusted, n.strikes = true, 0 })
}

// strike notes that a response of the key could not be shared, and returns the note from
// before.
func (m *marks) strike(key string) (before note) {
	m.change(key, func(n *note) {
		before = *n
		if n.strikes++; n.strikes > 1 {
			n.trusted = false
		}
	})
	return before
}

// use notes that a variant of a page was served.
func (m *marks) use(page, variant string) {
	m.change(page+"\n"+variant, func(n *note) { n.used = time.Now() })
}

// used returns the times at which the variants of a page were served, as far as is known.
func (m *marks) used(page string) func(variant string) time.Time {
	return func(variant string) time.Time { return m.get(page + "\n" + variant).used }
}
