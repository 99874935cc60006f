package store

import "sync"

// A Lease is the right to fetch one key, as granted. It is returned once, to the store
// that granted it.
type Lease struct {
	Key       string
	Token     Token
	TakenOver bool // from a holder that died
	Attempt   int  // 1 for the first attempt since the last outcome, fleet-wide
	Failures  int  // failures in a row, fleet-wide, that asked for a pause

	Names any // the store's own

	mu     sync.Mutex
	lost   bool
	onLost func()
	gone   chan struct{} // closed when the lease is lost; nil until it is asked for
}

// IsLost reports whether the store has learned that the lease is gone while it should
// still be held: it expired, was taken over, or ended by a change. News of it may come
// late; only the answer of Return is certain.
func (l *Lease) IsLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// OnLost has f called when the lease is lost, on a goroutine of its own. It is called
// once at most, and at once if the lease is lost already.
func (l *Lease) OnLost(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		go f()
		return
	}
	l.onLost = f
}

// Lost is closed when the lease is lost.
func (l *Lease) Lost() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone == nil {
		l.gone = make(chan struct{})
		if l.lost {
			close(l.gone)
		}
	}
	return l.gone
}

// Lose marks the lease as lost. The store calls it, or a guard that the store has told so,
// once or more.
func (l *Lease) Lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lost && l.onLost != nil {
		go l.onLost()
	}
	if !l.lost && l.gone != nil {
		close(l.gone)
	}
	l.lost = true
}
