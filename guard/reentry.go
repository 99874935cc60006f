package guard

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
)

// This file keeps fetches of one process from waiting for themselves: a fetch that asks
// for its own key, and fetches that ask for each other's.

// A frame marks a fetch in the context it runs on, so that calls made from within are
// known to be the fetch's. Frames and flights make a graph: the calls from within a
// fetch wait for flights, and a flight waits for the fetch that it runs.
type frame struct {
	engine *engine
	keys   *fetchKeys
	outer  *frame
	ended  atomic.Bool // the fetch returned; its context may live on

	waits []*flight // of calls from within; guarded by waiting
}

// fetchKeys are the keys of a call's or a leader's fetches, which run one after the other,
// as one of them is made: to wait for a key of a later one is to wait for oneself, too.
type fetchKeys struct {
	first string
	fetch map[string]int // of each key: which fetch; nil: there is one key
	now   int
	turns []*turn // of this fetch's keys and later ones; none: the caller's own fetch
}

func (k *fetchKeys) holds(key string) bool {
	if k.fetch == nil {
		return key == k.first
	}
	fetch, ok := k.fetch[key]
	return ok && fetch >= k.now
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

// Value implements [context.Context]. The context has the labels of its guard.
func (c *framed) Value(key any) any {
	if key == (frameKey{}) {
		return &c.frame
	}
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.engine.labeled.Value(key)
}

// frameKey is the key of a context's frame.
type frameKey struct{}

// apart returns a context for work that a fetch starts and does not wait for. Calls of a
// guard that are made with it do not count as the fetch's.
func apart(ctx context.Context) context.Context {
	return context.WithValue(ctx, frameKey{}, nil)
}

// frameOf is the innermost fetch that ctx belongs to; nil: none.
func frameOf(ctx context.Context) *frame {
	f, _ := ctx.Value(frameKey{}).(*frame)
	return f
}

// enter marks the context of a fetch, and labels it for profiles: stampede.guard is the guard.
func enter(ctx context.Context, e *engine, keys *fetchKeys) (context.Context, *frame) {
	pprof.ForLabels(ctx, func(string, string) bool { // the caller has labels: they stay
		ctx = pprof.WithLabels(ctx, e.labels)
		return false
	})
	c := &framed{Context: ctx, frame: frame{engine: e, keys: keys, outer: frameOf(ctx)}}
	for _, t := range keys.turns {
		t.f.fetch.Store(&c.frame)
	}
	return c, &c.frame
}

// within reports whether ctx belongs to a fetch of key.
func within(ctx context.Context, e *engine, key string) bool {
	for f := frameOf(ctx); f != nil; f = f.outer {
		if f.engine == e && f.keys.holds(key) && !f.ended.Load() {
			return true
		}
	}
	return false
}

// await notes that the code of the fetch waits for a flight, until done is called. It
// answers false, and notes nothing, if that flight waits for the fetch.
func (f *frame) await(w *flight) bool {
	waiting.Lock()
	defer waiting.Unlock()
	own := f.upToShared()
	if leadsTo(w, own, map[*frame]bool{}) {
		return false
	}
	for _, f := range own {
		f.waits = append(f.waits, w)
	}
	return true
}

// done takes back the note that await has made.
func (f *frame) done(w *flight) {
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
		if len(f.keys.turns) > 0 {
			break
		}
	}
	return all
}

// leadsTo reports whether one of the fetches has to end before the flight does. waiting is
// held.
func leadsTo(w *flight, fetches []*frame, seen map[*frame]bool) bool {
	for _, f := range fetchesOf(w) {
		if seen[f] || f.ended.Load() {
			continue
		}
		seen[f] = true
		if slices.Contains(fetches, f) {
			return true
		}
		if slices.ContainsFunc(f.waits, func(next *flight) bool { return leadsTo(next, fetches, seen) }) {
			return true
		}
	}
	return false
}

// fetchesOf are those that have to end before the flight does: its own, or if it has not
// begun one, those of the key's flights of other kinds, which hold the lease.
func fetchesOf(w *flight) []*frame {
	if f := w.fetch.Load(); f != nil {
		return []*frame{f}
	}
	return w.e.flights.fetchesOf(w.key)
}

// reentrant is the outcome for a call from within a fetch of the key.
func reentrant(e *engine, key string) *outcome {
	return &outcome{err: fmt.Errorf("%w: it asks for %s, which it fetches", ErrReentrant, e.events.quote(key)), own: true}
}

// deadlocked is the outcome for a call from within a fetch that the key's flight waits
// for.
func deadlocked(e *engine, key string) *outcome {
	return &outcome{err: fmt.Errorf("%w: it asks for %s, whose fetch waits for this one", ErrReentrant, e.events.quote(key)), own: true}
}
