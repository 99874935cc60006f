package guard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A read is what a command showed of a key's entry, or why it showed nothing. Callers
// share it; its value is decoded once.
type read struct {
	reading *store.Reading // nil: none, because of err
	err     error
	at      time.Time // before the command was sent

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
	next     *lookup // collects callers; nil: none has come
	// callers that have not left. A miss stays known until the first of them has joined a
	// flight: a caller that comes in between has nothing to read.
	callers int
}

// read looks a key up. It waits for the answer, or for the end of ctx or of the guard.
func (ls *lookups) read(ctx context.Context, key string) *read {
	lk := ls.join(ctx, key, false)
	defer ls.leave(lk)
	return lk.wait(ctx)
}

// join returns a lookup for the caller to wait for and then to leave. useMiss allows one
// that has just found nothing.
func (ls *lookups) join(ctx context.Context, key string, useMiss bool) *lookup {
	ls.mu.Lock()
	lk := ls.of[key]
	fresh := false
	switch {
	case lk == nil || lk.answered && !useMiss:
		lk = ls.open(key)
		ls.of[key] = lk
		fresh = true
	case lk.answered, !lk.sent.Load():
	case lk.next == nil:
		lk.next = ls.open(key)
		lk = lk.next
	default:
		lk = lk.next
	}
	lk.callers++
	ls.mu.Unlock()
	if fresh {
		lk.send(ctx)
	}
	return lk
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
	}
	ls.mu.Lock()
	lk.answered = true
	next := lk.next
	switch missed := err == nil && !r.Found; {
	case next != nil:
		ls.of[lk.key] = next
	case !missed || lk.callers == 0:
		delete(ls.of, lk.key)
	}
	ls.mu.Unlock()
	close(lk.done)
	if next != nil {
		next.send(context.Background())
	}
}

// wait returns what the lookup has found, once it has. The error of a context's end is
// the caller's alone.
func (lk *lookup) wait(ctx context.Context) *read {
	select {
	case <-lk.done:
		return &lk.read
	case <-ctx.Done():
		return &read{err: context.Cause(ctx)}
	case <-lk.ls.e.ctx.Done():
		return &read{err: store.ErrClosed}
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
