package guard

import (
	"errors"

	"github.com/stampedeguard/stampede/cache"
)

type (
	// Event is that of package cache, whose stores report to the same kind of
	// observer.
	Event = cache.Event
	// Observer is that of package cache.
	Observer = cache.Observer
)

// Observers is that of package cache: an Observer that tells each of the given ones.
func Observers(all ...Observer) Observer { return cache.Observers(all...) }

// observe reports an event, if anybody wants to know.
func (e *engine) observe(ev Event) {
	e.counters.event(ev.Kind)
	if e.policy.Observer != nil {
		e.tell(ev)
	}
}

func (e *engine) observeAs(kind cache.EventKind, ev Event) {
	e.counters.event(kind)
	if e.policy.Observer != nil {
		ev.Kind = kind
		e.tell(ev)
	}
}

// endOfFetch is the kind of event that a fetch ends with.
func endOfFetch(err error) cache.EventKind {
	switch {
	case err == nil:
		return cache.FetchDone
	case errors.Is(err, ErrNotFound):
		return cache.FetchNotFound
	case errors.Is(err, ErrNotModified):
		return cache.FetchNotModified
	}
	return cache.FetchFailed
}

func (e *engine) tell(ev Event) {
	ev.Guard = e.name
	if e.policy.HideKeys {
		ev.Key = ""
	}
	e.policy.Observer.Observe(ev)
}
