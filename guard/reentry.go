package guard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stampedeguard/stampede/internal/callers"
)

// This file keeps fetches of one process from waiting for themselves: a fetch that asks
// for its own key, and fetches that ask for each other's.

// A frame marks a fetch in the context it runs on, so that calls made from within are
// known to be the fetch's. Frames and flights make a graph: the calls from within a
// fetch wait for flights, and a flight waits for the fetch that it runs.
type frame struct {
	engine *engine
	key    string
	batch  *fetchKeys // in place of key, for one of many
	outer  *frame
	shared bool        // flights wait for the fetch; else the code of outer does
	ended  atomic.Bool // the fetch returned; its context may live on

	waits []wait // guarded by waiting
}

// A wait is that of a call from within a fetch, for a flight of a key.
type wait struct {
	engine *engine
	key    string
	flight *flight
}

// waiting guards the waits of all fetches of the process: a cycle may go through
// several guards. Only calls from within a fetch take it. flights.mu may be taken with
// it held.
var waiting sync.Mutex

// framed is a context that a frame marks.
type framed struct {
	context.Context
	frame
}

// Value implements [context.Context].
func (c *framed) Value(key any) any {
	if key == (callers.FetchKey{}) {
		return &c.frame
	}
	return c.Context.Value(key)
}

// frameOf is the innermost fetch that ctx belongs to; nil: none.
func frameOf(ctx context.Context) *frame {
	f, _ := ctx.Value(callers.FetchKey{}).(*frame)
	return f
}

// enter marks the fetch that a flight runs, or, if that is nil, that a caller runs for
// itself.
func enter(ctx context.Context, e *engine, key string, fl *flight) (context.Context, *frame) {
	c := &framed{Context: ctx, frame: frame{engine: e, key: key, outer: frameOf(ctx), shared: fl != nil}}
	if fl != nil {
		fl.fetch.Store(&c.frame)
	}
	return c, &c.frame
}

// enterMany marks one fetch of a batch.
func enterMany(ctx context.Context, e *engine, keys *fetchKeys) (context.Context, *frame) {
	c := &framed{Context: ctx, frame: frame{engine: e, batch: keys, outer: frameOf(ctx), shared: len(keys.flights) > 0}}
	for _, fl := range keys.flights {
		fl.fetch.Store(&c.frame)
	}
	return c, &c.frame
}

// holds reports whether a call for key from within would wait for the fetch
// itself.
func (f *frame) holds(key string) bool {
	if f.batch != nil {
		return f.batch.holds(key)
	}
	return f.key == key
}

// fetchKeys are the keys of a fetch that is one of several, which run one after
// the other: to wait for a key of a later one is to wait for oneself, too.
type fetchKeys struct {
	turn    map[string]int // of each key
	now     int
	flights []*flight // of this turn's keys and later ones; none: the caller's own fetch
}

func (k *fetchKeys) holds(key string) bool {
	turn, ok := k.turn[key]
	return ok && turn >= k.now
}

// within reports whether ctx belongs to a fetch of key.
func within(ctx context.Context, e *engine, key string) bool {
	for f := frameOf(ctx); f != nil; f = f.outer {
		if f.engine == e && f.holds(key) && !f.ended.Load() {
			return true
		}
	}
	return false
}

// await notes that the code of the fetch waits for a flight, until done is called. It
// answers false, and notes nothing, if that flight waits for the fetch.
func (f *frame) await(w wait) bool {
	waiting.Lock()
	defer waiting.Unlock()
	own := f.upToShared()
	if w.leadsTo(own, map[*frame]bool{}) {
		return false
	}
	for _, f := range own {
		f.waits = append(f.waits, w)
	}
	return true
}

// done takes back the note that await has made.
func (f *frame) done(w wait) {
	waiting.Lock()
	defer waiting.Unlock()
	for _, f := range f.upToShared() {
		if i := slices.Index(f.waits, w); i >= 0 {
			f.waits = slices.Delete(f.waits, i, i+1)
		}
	}
}

// upToShared are the fetches that wait while the code of f does: f, and as long as that
// is a caller's own fetch, the one that the caller is within.
func (f *frame) upToShared() (all []*frame) {
	for ; f != nil; f = f.outer {
		all = append(all, f)
		if f.shared {
			break
		}
	}
	return all
}

// leadsTo reports whether one of the fetches has to end before the wait does. waiting
// is held.
func (w wait) leadsTo(fetches []*frame, seen map[*frame]bool) bool {
	for _, f := range w.fetches() {
		if seen[f] || f.ended.Load() {
			continue
		}
		seen[f] = true
		if slices.Contains(fetches, f) {
			return true
		}
		if slices.ContainsFunc(f.waits, func(next wait) bool { return next.leadsTo(fetches, seen) }) {
			return true
		}
	}
	return false
}

// fetches are those that have to end before the flight does: its own, or if it has not
// begun one, those of the key's flights in other groups, which hold the lease.
func (w wait) fetches() (all []*frame) {
	if f := w.flight.fetch.Load(); f != nil {
		return []*frame{f}
	}
	for _, fs := range w.engine.allFlights() {
		if f := fs.fetchOf(w.key); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// fetchOf is the fetch of the key's flight; nil: none has begun.
func (fs *flights) fetchOf(key string) *frame {
	if fs.flying.Load() == 0 {
		return nil
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fl := fs.live[key]; fl != nil {
		return fl.fetch.Load()
	}
	return nil
}

func (e *engine) reentrant(key string) *outcome {
	return &outcome{err: fmt.Errorf("%w: it asks for %s, which it fetches", ErrReentrant, e.about(key)), own: true}
}

// deadlocked is the outcome for a call from within a fetch that the key's flight waits
// for.
func (e *engine) deadlocked(key string) *outcome {
	return &outcome{err: fmt.Errorf("%w: it asks for %s, whose fetch waits for this one", ErrReentrant, e.about(key)), own: true}
}
