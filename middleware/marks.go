package middleware

import (
	"context"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// marks remembers for a moment which keys are marked, so that requests for what
// is private don't each ask Redis to be told so. To be late here costs runs that
// might have been shared, for rememberMark at the most, and never shows anybody
// anything.
type marks struct {
	until *lru.Cache[string, time.Time]

	mu     sync.Mutex
	lifted *lru.Cache[string, time.Time] // when, last: see lift
}

const (
	rememberMark = time.Second
	maxMarks     = 4096 // of those that are in use
)

func newMarks() *marks {
	m := &marks{}
	m.until, _ = lru.New[string, time.Time](maxMarks) // an error means a size below 1
	m.lifted, _ = lru.New[string, time.Time](maxMarks)
	return m
}

// remember that a request which came at a time has found the key marked, for as
// long as is left of the mark.
func (m *marks) remember(key string, came time.Time, left time.Duration) {
	if left = min(left, rememberMark); left <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, ok := m.lifted.Get(key); !ok || came.After(last) {
		m.until.Add(key, time.Now().Add(left))
	}
}

// has reports whether the key is known to be marked.
func (m *marks) has(key string) bool {
	until, ok := m.until.Get(key)
	return ok && time.Now().Before(until)
}

// forget that the key is marked.
func (m *marks) forget(key string) { m.until.Remove(key) }

// toLift reports whether a run that began at a time, and brought what may be
// shared, is to lift the key's mark: it may have been lifted since.
func (m *marks) toLift(key string, began time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, ok := m.lifted.Get(key); ok && !began.After(last) {
		return false
	}
	m.lifted.Add(key, time.Now())
	return true
}

// lift ends the time in which a page's requests run side by side, as one of them
// was given what may be shared: the next one's run is stored. That run itself
// can't be, as it held no lease, and a purge might have come between.
func (m *Middleware) lift(ctx context.Context, key string, began time.Time) {
	if m.marks.toLift(key, began) {
		_ = m.guard.Delete(context.WithoutCancel(ctx), key)
		m.marks.forget(key)
	}
}
