package guard

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// lookMany serves the keys that are stored and fresh; their readings are only lent. It
// returns the others, each once, with the outcome that their read allows. A key that is asked
// for twice may be found once only: has reports whether it was served.
func (c *call) lookMany(keys []string, has func(key string) bool, serve func(key string, value any, r *store.Reading)) []*want {
	if len(keys) == 0 {
		return nil
	}
	e := c.e
	left := wants{}
	if o := e.endedFor(c.ctx, nil); o != nil {
		for _, key := range keys {
			left.add(&want{key: key, out: o})
		}
		return left.all
	}
	decode := e.packer.coder.many()
	if e.near != nil { // which would keep 64 values for the sake of one
		decode = e.packer.coder.decode
	}
	tickets := e.coherence.manyTickets(keys)
	if c.maxAge != anyAge {
		c.number = e.sequence.Add(1) // before the read, as in engine.get
	}
	at, hits := time.Now(), 0
	e.readHedged(c.ctx, keys, c.maxAge, c.readUnjoined, func(i int, r *store.Reading, err error, reserved *outcome) {
		if value := c.fresh(r, decode); value != nil {
			if hits++; hits == 1 {
				e.answered()
			}
			serve(keys[i], value, r)
			t := tickets.of(i)
			if e.near != nil {
				e.near.put(keys[i], t, value, r, dueAt(&r.Entry, e.policy.Beta), at)
			}
			if e.reserve != nil {
				e.reserve.put(keys[i], t, r, at)
			}
			return
		}
		left.add(&want{key: keys[i], rd: keep(r, err, at), ticket: tickets.of(i), out: reserved})
	})
	e.events.storeHits.Add(uint64(hits))
	left.all = slices.DeleteFunc(left.all, func(w *want) bool { return has(w.key) })
	for _, w := range left.all {
		if w.out != nil {
			continue
		}
		if w.rd == nil { // it has a flight
			w.out = toFetch
		} else {
			e.judgeFor(c.ctx, c.maxAge, w)
		}
	}
	return left.all
}

// wants are some keys of a call, each once.
type wants struct {
	all []*want
	has map[string]struct{}
}

func (ws *wants) add(w *want) {
	if _, twice := ws.has[w.key]; twice {
		return
	}
	if ws.has == nil {
		ws.has = map[string]struct{}{}
	}
	ws.has[w.key] = struct{}{}
	ws.all = append(ws.all, w)
}

// fresh decodes an entry that is fresh and not due to be refreshed; else it returns
// nil.
func (c *call) fresh(r *store.Reading, decode func([]byte) (any, error)) any {
	p := &c.e.policy
	if r == nil || c.e.backlog.size.Load() != 0 || decide(r, p) != serve || due(r, p.Beta) || c.maxAge == 0 || c.maxAge > 0 && r.Age > c.maxAge {
		return nil
	}
	value, err := c.e.packer.decode(r, decode)
	if err != nil {
		return nil
	}
	return value
}

// resolveMany takes the keys that could not be served to their outcomes. It serves those
// that have a value, and returns the errors of the others.
func (c *call) resolveMany(left []*want, serve func(*want)) error {
	if len(left) > 0 {
		c.resolve(left)
	}
	var of []string
	var failed []error
	for _, w := range left {
		switch {
		case w.out.err == nil:
			serve(w)
		case !errors.Is(w.out.err, ErrNotFound):
			of, failed = append(of, w.key), append(failed, c.e.errorFor(w.out))
		}
	}
	return c.e.events.batchError(of, failed)
}

// A readFunc reads keys, and lends each the reading.
type readFunc func(ctx context.Context, keys []string, each func(i int, r *store.Reading, err error))

// readHedged reads keys. If the store is silent for some time, keys that the reserve has are
// given to each with an outcome from there instead, and the others are read to the end.
func (e *engine) readHedged(ctx context.Context, keys []string, maxAge time.Duration, read readFunc, each func(i int, r *store.Reading, err error, reserved *outcome)) {
	if e.reserve == nil || maxAge == 0 {
		read(ctx, keys, func(i int, r *store.Reading, err error) { each(i, r, err, nil) })
		return
	}
	hedged, silent := context.WithCancelCause(ctx)
	defer silent(nil)
	begin, d := time.Now(), e.reserve.patience()
	var looking sync.WaitGroup
	looking.Add(1)
	hedge := time.AfterFunc(d, func() {
		defer looking.Done()
		for n := 1; !e.reserve.silent(begin, d, n); n++ {
			if begin = time.Now(); sleep(hedged, d) != nil {
				return
			}
		}
		if slices.ContainsFunc(keys, func(key string) bool { return e.reserve.get(key) != nil }) {
			silent(errSilent)
		}
	})
	var places []int
	read(hedged, keys, func(i int, r *store.Reading, err error) {
		if !errors.Is(err, errSilent) {
			each(i, r, err, nil)
		} else if o := e.fromReserve(keys[i], maxAge, err); o != nil {
			each(i, nil, err, o)
		} else {
			places = append(places, i)
		}
	})
	silent(nil)
	if hedge.Stop() {
		looking.Done()
	}
	looking.Wait() // keys belong to the caller
	if len(places) == 0 {
		return
	}
	again := make([]string, len(places))
	for j, i := range places {
		again[j] = keys[i]
	}
	read(ctx, again, func(j int, r *store.Reading, err error) { each(places[j], r, err, nil) })
}

// readUnjoined reads the keys that have no flight. The others are given to each without
// a reading.
func (c *call) readUnjoined(ctx context.Context, keys []string, each func(i int, r *store.Reading, err error)) {
	e := c.e
	if e.flights.flying[c.kind()].Load() == 0 {
		e.readMany(ctx, keys, each)
		return
	}
	var places []int
	var ask []string
	for i, key := range keys {
		if e.flights.has(c.kind(), key) {
			each(i, nil, nil)
		} else {
			places, ask = append(places, i), append(ask, key)
		}
	}
	if len(ask) > 0 {
		e.readMany(ctx, ask, func(j int, r *store.Reading, err error) { each(places[j], r, err) })
	}
}
