package guard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A read is the answer to a command that reads a key's entry. Callers share it; its value is
// decoded once.
type read struct {
	reading *store.Reading // nil: none, because of err
	err     error
	at      time.Time // before the command was sent

	reserved bool // the reserve's: the store does not answer

	decoding sync.Once
	value    any
	damage   error // the value can't be decoded
}

// found returns the reading of a stored value, or nil.
func (rd *read) found() *store.Reading {
	if rd == nil || rd.reading == nil || !rd.reading.Found || rd.reading.Entry.Kind != store.Value {
		return nil
	}
	return rd.reading
}

// waited is how old the reading is by now.
func (rd *read) waited() time.Duration {
	if rd == nil {
		return 0
	}
	return time.Since(rd.at)
}

// keep makes a read of a reading that was only lent; nil if there is neither that nor an
// error.
func keep(r *store.Reading, err error, at time.Time) *read {
	switch {
	case err != nil:
		return &read{err: err, at: at}
	case r == nil:
		return nil
	}
	return &read{reading: r.Keep(), at: at}
}

// lookups shares the reads of a key among its callers in this process. A caller joins a
// read that has not been sent: its answer is not older than the call. While a read is
// under way another one collects the callers that came too late for it, and is sent when
// that is answered. So a key costs one read in each round trip, however many callers it
// has.
type lookups struct {
	e  *engine
	mu sync.Mutex
	of map[string]*lookup // the read of a key that is under way, or a miss: see lookup.callers
}

// A lookup is one shared read. It is a [store.Reader].
type lookup struct {
	read // written before done is closed
	ls   *lookups
	key  string
	sent atomic.Bool
	done chan struct{}

	// lookups.mu guards the rest.
	answered bool
	strict   bool    // a caller needs an entry, or to know that there is none
	skipped  bool    // not sent: its callers fetch anyway
	next     *lookup // collects callers; nil: none has come
	// The callers that have not left. The lookup of a key that has to be fetched stays known
	// until the first of them has joined a flight: a caller that comes in between joins it
	// unread, as it would join the flight. Else a cold key would be read once per caller.
	callers int
}

// read looks a key up. It waits for the answer, or for the end of ctx or of the guard.
func (ls *lookups) read(ctx context.Context, key string) *read {
	ls.mu.Lock()
	lk, opened := ls.joinLocked(key, true)
	ls.mu.Unlock()
	if opened {
		lk.send(ctx)
	}
	defer ls.leave(lk)
	return lk.wait(ctx)
}

// readHedged is read for a caller that may be served from the reserve.
func (ls *lookups) readHedged(ctx context.Context, key string, instead func(why error) *outcome) (*read, *outcome) {
	ls.mu.Lock()
	lk, opened := ls.joinLocked(key, true)
	ls.mu.Unlock()
	if opened {
		lk.send(ctx)
	}
	defer ls.leave(lk)
	rd, o := lk.waitHedged(ctx, instead)
	if o == nil && rd.err != nil {
		o = instead(rd.err)
	}
	return rd, o
}

// join returns a lookup for the caller to wait for, if there is one to be waited for, and
// then to leave. Nil: the key has a flight of that kind, or is about to have one, and the
// caller joins it unread. The sharing rule decides whether its outcome will do, and
// commands do not grow with callers.
func (ls *lookups) join(ctx context.Context, key string, kind flightKind) *lookup {
	ls.mu.Lock()
	// The check needs ls.mu: the first caller of a lookup joins the flight, then leaves.
	if ls.e.flights.has(kind, key) {
		ls.mu.Unlock()
		return nil
	}
	lk, opened := ls.joinLocked(key, kind != foreground)
	ls.mu.Unlock()
	if opened {
		lk.send(ctx)
	}
	return lk
}

// joinLocked returns nil only to a caller that is not strict.
func (ls *lookups) joinLocked(key string, strict bool) (lk *lookup, opened bool) {
	lk = ls.of[key]
	switch {
	case lk != nil && lk.answered && !strict:
		return nil, false
	case lk == nil || lk.answered:
		lk = ls.open(key)
		ls.of[key] = lk
		opened = true
	case !lk.sent.Load():
	case lk.next == nil:
		lk.next = ls.open(key)
		lk = lk.next
	default:
		lk = lk.next
	}
	lk.callers++
	lk.strict = lk.strict || strict
	return lk, opened
}

func (ls *lookups) open(key string) *lookup {
	return &lookup{ls: ls, key: key, done: make(chan struct{})}
}

func (lk *lookup) send(ctx context.Context) {
	lk.at = time.Now()
	lk.ls.e.store.Read(ctx, lk.ls.e.storeKey(lk.key), lk)
}

// Sending implements [store.Reader].
func (lk *lookup) Sending() { lk.sent.Store(true) }

// Answered implements [store.Reader].
func (lk *lookup) Answered(r *store.Reading, err error) {
	ls := lk.ls
	if err != nil {
		lk.err = err
	} else {
		lk.reading = r
		if s := ls.e.reserve; s != nil {
			s.took(lk.at)
		}
	}
	ls.mu.Lock()
	lk.answered = true
	next := lk.next
	fetched := err == nil && decide(r, &ls.e.policy) == fetch
	if fetched && next != nil && !next.strict {
		next.answered, next.skipped = true, true
		close(next.done)
		next = nil
	}
	switch {
	case next != nil:
		ls.of[lk.key] = next
	case !fetched || lk.callers == 0:
		delete(ls.of, lk.key)
	}
	ls.mu.Unlock()
	close(lk.done)
	if next != nil {
		next.send(context.Background())
	}
}

// wait returns the shared read once it is answered, or nil if it was skipped. The error of
// a context's end is the caller's alone.
func (lk *lookup) wait(ctx context.Context) *read {
	select {
	case <-lk.done:
		if lk.skipped {
			return nil
		}
		return &lk.read
	case <-ctx.Done():
		return &read{err: context.Cause(ctx)}
	case <-lk.ls.e.ctx.Done():
		return &read{err: store.ErrClosed}
	}
}

// waitHedged is wait, but for a key that the reserve has: if the store is silent for some
// time, the outcome is instead returned. Then the read goes on for later callers.
func (lk *lookup) waitHedged(ctx context.Context, instead func(why error) *outcome) (*read, *outcome) {
	s := lk.ls.e.reserve
	if s == nil {
		return lk.wait(ctx), nil
	}
	select {
	case <-lk.done:
		return lk.wait(ctx), nil
	default:
	}
	t := s.timer()
	defer func() {
		t.Stop()
		s.timers.Put(t)
	}()
	for n := 1; ; n++ {
		d := s.patience()
		begin := time.Now()
		t.Reset(d)
		select {
		case <-lk.done:
			return lk.wait(ctx), nil
		case <-ctx.Done():
			return lk.wait(ctx), nil
		case <-lk.ls.e.ctx.Done():
			return lk.wait(ctx), nil
		case <-t.C:
		}
		if !s.silent(begin, d, n) {
			continue
		}
		if o := instead(errSilent); o != nil {
			return nil, o
		}
		return lk.wait(ctx), nil
	}
}

// leave is called once by each caller: when it has joined a flight, or has no use for
// one.
func (ls *lookups) leave(lk *lookup) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	lk.callers--
	if lk.answered && ls.of[lk.key] == lk {
		delete(ls.of, lk.key)
	}
}
