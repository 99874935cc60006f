package httpcache

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
)

// Notes are notes of this process about keys. They spare runs and reads. An outdated or a
// lost one costs runs that might have been shared, and never shows a page to the wrong
// client.
//
// If the responses of a key can't be shared, the store holds a mark for the key. Requests
// for it then run the handler side by side. The process remembers a mark for a moment, so
// that not every request for a private page asks Redis.
type Notes struct {
	seed   maphash.Seed
	latest atomic.Int64 // the end of the last mark, in ns since 1970; 0: there was none

	mu    sync.Mutex
	notes *lru.LRU[uint64, Note] // by digest: clients choose keys, and their length
}

// A Note is about one key.
type Note struct {
	until   time.Time // the end of the key's mark, as far as it is remembered
	lifted  time.Time // the last time of lift
	Trusted bool      // responses of the key could be shared
	Strikes int       // responses in a row since that could not
	used    time.Time // the last time that a variant was served from a full index
}

const (
	rememberMark = time.Second
	maxNotes     = 8192 // the most recently used
)

// NewNotes returns notes about no key.
func NewNotes() *Notes {
	notes, _ := lru.NewLRU[uint64, Note](maxNotes, nil) // an error means a size below 1
	return &Notes{seed: maphash.MakeSeed(), notes: notes}
}

// change changes the note of a key.
func (m *Notes) change(key string, do func(*Note)) {
	id := maphash.String(m.seed, key)
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _ := m.notes.Get(id)
	do(&n)
	m.notes.Add(id, n)
}

// Get returns the note of a key.
func (m *Notes) Get(key string) Note {
	id := maphash.String(m.seed, key)
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _ := m.notes.Get(id)
	return n
}

// Remember notes that a request which came at a time has found the key marked, for the rest
// of the mark's time.
func (m *Notes) Remember(key string, came time.Time, left time.Duration) {
	if left = min(left, rememberMark); left <= 0 {
		return
	}
	m.change(key, func(n *Note) {
		if n.lifted.IsZero() || came.After(n.lifted) {
			n.until = time.Now().Add(left)
			m.latest.Store(max(m.latest.Load(), n.until.UnixNano())) // under the lock
		}
	})
}

// Has reports whether the key is known to be marked. Each hit asks, and takes no lock unless
// some key is marked.
func (m *Notes) Has(key string) bool {
	latest := m.latest.Load()
	if latest == 0 {
		return false
	}
	now := time.Now()
	return now.UnixNano() < latest && now.Before(m.Get(key).until)
}

// Remove removes the note that the key is marked.
func (m *Notes) Remove(key string) {
	if !m.Get(key).until.IsZero() {
		m.change(key, func(n *Note) { n.until = time.Time{} })
	}
}

// ToLift reports whether a run with a response that could be shared is to lift the key's
// mark. began is the start of the run. The mark may have been lifted since.
func (m *Notes) ToLift(key string, began time.Time) (lift bool) {
	m.change(key, func(n *Note) {
		if lift = n.lifted.IsZero() || began.After(n.lifted); lift {
			n.lifted = time.Now()
		}
	})
	return lift
}

// Trust notes that a response of the key could be shared.
func (m *Notes) Trust(key string) {
	m.change(key, func(n *Note) { n.Trusted, n.Strikes = true, 0 })
}

// Hit notes that a response of the key is shared, which may be an old one.
func (m *Notes) Hit(key string) {
	m.change(key, func(n *Note) { n.Trusted = true })
}

// Strike notes that a response of the key could not be shared, and returns the note from
// before.
func (m *Notes) Strike(key string) (before Note) {
	m.change(key, func(n *Note) {
		before = *n
		if n.Strikes++; n.Strikes > 1 {
			n.Trusted = false
		}
	})
	return before
}

// Use notes that a variant of a page was served.
func (m *Notes) Use(page, variant string) {
	m.change(page+"\n"+variant, func(n *Note) { n.used = time.Now() })
}

// Used returns the times at which the variants of a page were served, as far as is known.
func (m *Notes) Used(page string) func(variant string) time.Time {
	return func(variant string) time.Time { return m.Get(page + "\n" + variant).used }
}
