package lock

import "slices"

// A line is the waiters of one process for one name. The first asks the backends; the
// others wait for their turn, in the order in which they came.
type line struct{ waiters []*waiter }

type waiter struct {
	turn  chan struct{} // closed when it is the first
	nudge chan struct{} // a lock of this name was released in this process; room for one
}

// join enters the line for a name.
func (l *Locker) join(name string) *waiter {
	w := &waiter{turn: make(chan struct{}), nudge: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lines[name]
	if ln == nil {
		ln = &line{}
		l.lines[name] = ln
	}
	if ln.waiters = append(ln.waiters, w); len(ln.waiters) == 1 {
		close(w.turn)
	}
	return w
}

// leave leaves the line; the next one has its turn.
func (l *Locker) leave(name string, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lines[name]
	i := slices.Index(ln.waiters, w)
	ln.waiters = slices.Delete(ln.waiters, i, i+1)
	switch {
	case len(ln.waiters) == 0:
		delete(l.lines, name)
	case i == 0:
		close(ln.waiters[0].turn)
	}
}

// nudge has the first waiter for a name ask again.
func (l *Locker) nudge(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln := l.lines[name]; ln != nil {
		wake(ln.waiters[0].nudge)
	}
}
