package lock

import (
	"slices"
	"sync"
)

// lines are the waiters of one process by name. The first of a line asks the backends; the
// others wait for their turn, in the order in which they came.
type lines struct {
	mu  sync.Mutex // guards memory only
	all map[string][]*waiter
}

// A waiter's fields are guarded by the lock of its lines.
type waiter struct {
	first  bool
	nudged bool          // a lock of this name was released in this process
	woken  chan struct{} // room for one; nil until the waiter has something to wait for
}

// join enters the line for a name, and reports whether the waiter is the first.
func (ls *lines) join(name string, w *waiter) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.first = len(ls.all[name]) == 0
	ls.all[name] = append(ls.all[name], w)
	return w.first
}

// leave leaves the line; the next waiter has its turn.
func (ls *lines) leave(name string, w *waiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	line := ls.all[name]
	i := slices.Index(line, w)
	if line = slices.Delete(line, i, i+1); len(line) == 0 {
		delete(ls.all, name)
		return
	}
	ls.all[name] = line
	if i == 0 {
		line[0].first = true
		line[0].wakeLocked()
	}
}

// nudge has the first waiter for a name ask again.
func (ls *lines) nudge(name string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if line := ls.all[name]; len(line) > 0 {
		line[0].wakeLocked()
	}
}

func (w *waiter) wakeLocked() {
	if w.nudged = true; w.woken != nil {
		wake(w.woken)
	}
}

// channel tells the waiter of its turn and of nudges, also of those since it joined.
func (ls *lines) channel(w *waiter) <-chan struct{} {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.woken == nil {
		w.woken = make(chan struct{}, 1)
		if w.nudged {
			wake(w.woken)
		}
	}
	return w.woken
}

func (ls *lines) isFirst(w *waiter) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return w.first
}
