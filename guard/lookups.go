package guard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// lookups shares the reads of a key among its callers in this process. A caller joins a
// read that has not been sent: its answer is not older than the call. While a read is
// under way another one collects the callers that came too late for it. It is sent when that
// is answered and most of its callers are awake. So a key costs one read in each round trip,
// however many callers it has.
type lookups struct {
	e      *engine
	mu     sync.Mutex
	of     map[string]*lookup // the read of a key that is under way, whose callers wake, or a miss: see lookup.callers
	closed bool
	hedge  hedge
}

// A lookup is one shared read. It is a [store.Reader].
type lookup struct {
	read     // written before answered
	ls       *lookups
	key      string
	sent     atomic.Bool
	answered atomic.Bool // written with lookups.mu held
	missed   bool        // the lookup stays known after its answer; written before answered
	rest     int32       // the next read is sent when so many callers are still asleep; as missed

	// done is closed by the answer, or when the store has been silent for so long that the
	// reserve is looked into. late is made then, and closed by the answer.
	done, late chan struct{}

	asleep  atomic.Int32 // callers that wait for the answer; grows with lookups.mu held
	judging sync.Once
	verdict outcome // that the read alone allows; its memory is shared, as the read's is

	// lookups.mu guards the rest.
	patience
	strict  bool    // a caller needs an entry, or to know that there is none
	skipped bool    // not sent: its callers fetch anyway
	next    *lookup // collects callers; nil: none has come
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
	case lk != nil && lk.missed && !strict:
		return nil, false
	case lk == nil || lk.missed:
		lk = ls.openLocked(key)
		ls.of[key] = lk
		opened = !ls.closed
	case !lk.sent.Load():
	case lk.next == nil:
		lk.next = ls.openLocked(key)
		lk = lk.next
	default:
		lk = lk.next
	}
	lk.callers++
	lk.asleep.Add(1)
	lk.strict = lk.strict || strict
	return lk, opened
}

func (ls *lookups) openLocked(key string) *lookup {
	lk := &lookup{ls: ls, key: key, done: make(chan struct{})}
	if ls.closed {
		close(lk.endLocked(nil, store.ErrClosed))
	} else {
		ls.hedge.startLocked(ls, lk)
	}
	return lk
}

// endLocked takes in the answer. The returned channel is then to be closed, which wakes the
// callers: without the lock, as they need it.
func (lk *lookup) endLocked(r *store.Reading, err error) (wake chan struct{}) {
	lk.reading, lk.err = r, err
	lk.sent.Store(true) // also if it was refused unsent: later callers share the next one
	lk.answered.Store(true)
	if lk.late != nil {
		return lk.late
	}
	return lk.done
}

// close ends the lookups that are under way, and all later ones.
func (ls *lookups) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	for lk := range ls.underWayLocked {
		close(lk.endLocked(nil, store.ErrClosed))
	}
	ls.of = map[string]*lookup{}
	ls.hedge.stop()
}

// underWayLocked calls each for the lookups that have no answer yet.
func (ls *lookups) underWayLocked(each func(*lookup) bool) {
	for _, lk := range ls.of {
		for ; lk != nil; lk = lk.next {
			if !lk.answered.Load() && !each(lk) {
				return
			}
		}
	}
}

func (lk *lookup) send(ctx context.Context) {
	lk.at = time.Now()
	lk.ls.e.store.Read(ctx, lk.ls.e.prefix, lk.key, lk)
}

// Sending implements [store.Reader].
func (lk *lookup) Sending() { lk.sent.Store(true) }

// Answered implements [store.Reader].
func (lk *lookup) Answered(r *store.Reading, err error) {
	ls := lk.ls
	fetched := err == nil && decide(r, &ls.e.policy) == fetch
	if s := ls.e.reserve; s != nil && err == nil {
		s.took(lk.at)
		fetched = fetched && s.beforeOutage(lk.key) == nil // it may be served: see recovering
	}
	ls.mu.Lock()
	if lk.answered.Load() { // by close
		ls.mu.Unlock()
		return
	}
	if s := ls.e.reserve; lk.late != nil && errors.Is(err, store.ErrUnavailable) {
		s.lastAway.Store(int64(time.Since(s.began))) // callers that did not wait for the answer were told of silence
	}
	if next := lk.next; fetched && next != nil && !next.strict {
		next.skipped = true
		close(next.endLocked(nil, nil))
		lk.next = nil
	}
	lk.missed = fetched && lk.next == nil && lk.callers > 0
	lk.rest = max(0, lk.asleep.Load()-fewCallers) / 2
	wake := lk.endLocked(r, err)
	var next *lookup
	if !lk.missed && (fetched || lk.asleep.Load() <= 1) {
		next = ls.followLocked(lk)
	}
	ls.mu.Unlock()
	close(wake)
	if next != nil {
		next.send(context.Background())
	}
}

// followLocked forgets an answered lookup, and returns the next one, which is to be sent.
func (ls *lookups) followLocked(lk *lookup) (next *lookup) {
	if ls.of[lk.key] != lk {
		return nil // it is done, or all were closed
	}
	if next = lk.next; next != nil {
		ls.of[lk.key] = next
	} else {
		delete(ls.of, lk.key)
	}
	return next
}

// fewCallers are those that wake in less time than a read takes.
const fewCallers = 64

// woke is called once by each caller that has waited. Several callers of a hit wake before
// the next read is sent: those that call again at once share it. If there are many, the read
// is under way while the rest of them wake.
func (lk *lookup) woke() {
	asleep := lk.asleep.Add(-1)
	if !lk.answered.Load() || lk.missed || asleep != lk.rest && asleep != 0 { // 0: a caller may have left just before the answer
		return
	}
	ls := lk.ls
	ls.mu.Lock()
	next := ls.followLocked(lk)
	ls.mu.Unlock()
	if next != nil {
		next.send(context.Background())
	}
}

// wait returns the shared read once it is answered, or nil if it was skipped. The error of
// a context's end is the caller's alone.
func (lk *lookup) wait(ctx context.Context) *read {
	defer lk.woke()
	return lk.shared(ctx)
}

func (lk *lookup) shared(ctx context.Context) *read {
	if ended := await(ctx, lk.done); ended != nil {
		return ended
	}
	if !lk.answered.Load() {
		if ended := await(ctx, lk.late); ended != nil {
			return ended
		}
	}
	return lk.answer()
}

// answer is the shared read once it is answered, or nil if it was skipped.
func (lk *lookup) answer() *read {
	if lk.skipped {
		return nil
	}
	return &lk.read
}

// await returns nil when done is closed, or a read without an answer when ctx has ended.
func await(ctx context.Context, done <-chan struct{}) *read {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return &read{err: context.Cause(ctx)}
	}
}

// leave is called once by each caller: when it has joined a flight, or has no use for
// one.
func (ls *lookups) leave(lk *lookup) {
	if lk.answered.Load() && !lk.missed {
		return // it is not known any more
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	lk.callers--
	if lk.missed && ls.of[lk.key] == lk { // a hit's callers may still be waking: see woke
		delete(ls.of, lk.key)
	}
}

// A hedge watches the lookups of a guard: where the store is silent for some time, callers
// may be served from the reserve. One timer serves all lookups, and runs while there are
// any. A timer for each caller would cost more than the rest of a hit.
type hedge struct {
	timer *time.Timer
	rings time.Time // zero: the timer is not set
}

// A patience is how long a lookup is waited for before the reserve is looked into.
type patience struct {
	begin time.Time
	d     time.Duration
	n     int // how often so long has been waited
}

func (p *patience) end() time.Time { return p.begin.Add(p.d) }

// startLocked begins to watch a lookup. lookups.mu is held.
func (h *hedge) startLocked(ls *lookups, lk *lookup) {
	s := ls.e.reserve
	if s == nil {
		return
	}
	lk.patience = patience{begin: time.Now(), d: s.patience(), n: 1}
	h.setLocked(ls, lk.end())
}

func (h *hedge) setLocked(ls *lookups, end time.Time) {
	if !h.rings.IsZero() && !end.Before(h.rings) {
		return
	}
	h.rings = end
	if h.timer == nil {
		h.timer = time.AfterFunc(time.Until(end), ls.hurry)
	} else {
		h.timer.Reset(time.Until(end))
	}
}

func (h *hedge) stop() {
	if h.timer != nil {
		h.timer.Stop()
	}
}

// hurry wakes the callers of the lookups for which the store has been silent for too long.
func (ls *lookups) hurry() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.hedge.rings = time.Time{}
	if ls.closed {
		return
	}
	s := ls.e.reserve
	for lk := range ls.underWayLocked {
		switch {
		case lk.late != nil:
			continue // its callers know
		case time.Now().Before(lk.end()):
		case s.silent(lk.begin, lk.d, lk.n):
			lk.late = make(chan struct{})
			close(lk.done)
			continue
		default:
			lk.patience = patience{begin: time.Now(), d: s.patience(), n: lk.n + 1}
		}
		ls.hedge.setLocked(ls, lk.end())
	}
}

// waitHedged is wait, but for a key that the reserve has: if the store is silent for some
// time, the outcome is instead returned. Then the read goes on for later callers.
func (lk *lookup) waitHedged(ctx context.Context, instead func(why error) *outcome) (*read, *outcome) {
	defer lk.woke() // also if an Observer panics
	if ended := await(ctx, lk.done); ended != nil {
		return ended, nil
	}
	if lk.answered.Load() {
		return lk.answer(), nil
	}
	if o := instead(errSilent); o != nil {
		return nil, o
	}
	return lk.shared(ctx), nil
}
