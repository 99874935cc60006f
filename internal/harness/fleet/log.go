package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/stampedeguard/stampede/cache"
)

// A Log has the events of a fleet in the order in which they arrived. Those of
// one process are in their own order; for those of different processes, see
// their times. Its methods may be called from any goroutine.
type Log struct {
	mu     sync.Mutex
	events []Event
	grown  chan struct{} // closed with the next event
}

func newLog() *Log { return &Log{grown: make(chan struct{})} }

func (l *Log) add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	close(l.grown)
	l.grown = make(chan struct{})
}

// All returns the events that match.
func (l *Log) All(match func(Event) bool) []Event {
	all, _ := l.look(match)
	return all
}

// Forget empties the log.
func (l *Log) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = nil
}

// Await returns the first event that matches, as soon as there is one.
func (l *Log) Await(ctx context.Context, match func(Event) bool) (Event, error) {
	for {
		all, grown := l.look(match)
		if len(all) > 0 {
			return all[0], nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("fleet: awaiting an event: %w", context.Cause(ctx))
		}
	}
}

func (l *Log) look(match func(Event) bool) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Event
	for _, e := range l.events {
		if match(e) {
			all = append(all, e)
		}
	}
	return all, l.grown
}

// Of matches events of the given key and kinds; all kinds, if none is given.
func Of(key string, kinds ...cache.EventKind) func(Event) bool {
	return func(e Event) bool {
		return e.Key == key && (len(kinds) == 0 || slices.Contains(kinds, e.Kind))
	}
}
