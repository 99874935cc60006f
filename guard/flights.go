package guard

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/stampedeguard/stampede/cache"
)

// flights lets the callers of a key in this process share one flight. The
// sharing is singleflight's; what is added is who waits, which decides whether a
// fetch that lost its lease is still of use, and a way to leave a flight behind
// whose result will be too old for newcomers.
type flights struct {
	group singleflight.Group

	mu     sync.Mutex
	live   map[string]*flight // in step with group: one here is one there
	closed bool
	wg     sync.WaitGroup // flights
	flying atomic.Int64   // len(live), for those who only want to know if there is any
}

// A flight is one pursuit of a key's value: a lease asked for, a fetch or a wait.
type flight struct {
	superseded chan struct{} // closed: newcomers, and callers it can't serve, go elsewhere
	began      time.Time
	first      uint64       // number of the caller who started it
	waiting    atomic.Bool  // for another process
	runner     atomic.Int32 // of its first caller's fetch: noRunner, flightRuns or callerRuns
	lent       atomic.Pointer[lentRead]
	fetch      atomic.Pointer[frame] // the last that it has begun

	// Guarded by flights.mu.
	before, after int           // callers who may have the fetch's result whatever happens, and others
	fetchMoment   uint64        // when the fetch started; 0: none has
	unwanted      chan struct{} // nil: it has its lease. Closed: it lost it, and nobody can use its result
	gone          chan struct{} // superseded, for those who stay when that is closed
	exited        bool          // its goroutine was ended: there will be no result
	firstLeft     bool
}

// A lentRead is what a flight has read of its key, or rather its acquire, and can't
// serve as it is: for those who haven't read, to stand in for an error. The
// acquire was sent after the callers came whose numbers are below the moment.
type lentRead struct {
	read
	moment uint64
}

// borrow has a caller who has read nothing take what the flight has.
func (f *flight) borrow(num uint64, rd *read) {
	if l := f.lent.Load(); rd.none() && l != nil && num < l.moment {
		*rd = l.read
	}
}

func (fs *flights) init() { fs.live = map[string]*flight{} }

// join makes the caller of the given number wait for the key's flight, or run
// as its first. It returns nil when the guard is closed. Call leave afterwards.
func (fs *flights) join(key string, num uint64, run func(*flight) *outcome) (f *flight, result <-chan singleflight.Result, first bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.closed {
		return nil, nil, false
	}
	f = fs.live[key]
	if first = f == nil; first {
		f = &flight{superseded: make(chan struct{}), began: time.Now(), first: num}
		fs.live[key] = f
		fs.flying.Add(1)
		fs.wg.Add(1)
	}
	f.count(num, 1)
	result = fs.group.DoChan(key, func() (any, error) {
		// Runs only if first: see live.
		defer fs.wg.Done()
		exited := true
		defer func() { fs.end(key, f, exited) }()
		o := safely(run, f)
		exited = false
		return o, nil
	})
	return f, result, first
}

// has reports whether the key has a flight that a caller can join.
func (fs *flights) has(key string) bool {
	if fs.flying.Load() == 0 {
		return false
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.live[key] != nil
}

// safely turns a panic into an outcome: singleflight would end the process.
// What is called from a flight and may panic is an Observer.
func safely(run func(*flight) *outcome, f *flight) (o *outcome) {
	defer func() {
		if p := recover(); p != nil {
			o = &outcome{err: &PanicError{Value: p, Stack: debug.Stack()}, moment: always}
		}
	}()
	return run(f)
}

// end takes the flight out, so that whoever comes now starts the next. singleflight
// tells nobody of one whose goroutine exited, as an Observer may make it do: whoever
// waits is sent off here.
func (fs *flights) end(key string, f *flight, exited bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if exited {
		f.exited = true
		if f.gone != nil {
			close(f.gone)
		} else {
			close(f.superseded)
		}
	}
	fs.takeOut(key, f)
}

func (fs *flights) takeOut(key string, f *flight) {
	if fs.live[key] == f {
		delete(fs.live, key)
		fs.flying.Add(-1)
		fs.group.Forget(key)
	}
}

// supersede takes out a flight that goes on without its lease, for those who were
// there before its fetch started. The others are sent round at once. If there is
// nobody else, or as soon as there isn't, unwanted is closed. It is called once.
func (fs *flights) supersede(key string, f *flight) (unwanted <-chan struct{}) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.takeOut(key, f)
	f.unwanted, f.gone = make(chan struct{}), make(chan struct{})
	close(f.superseded)
	f.checkWanted()
	return f.unwanted
}

func (fs *flights) leave(f *flight, num uint64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.count(num, -1)
	f.firstLeft = f.firstLeft || num == f.first
	f.checkWanted()
}

// fetching notes when the fetch starts, which it draws with mu held: everybody
// who waits now was there before.
func (fs *flights) fetching(f *flight, tick func() uint64) uint64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.fetchMoment = tick()
	f.before, f.after = f.before+f.after, 0
	return f.fetchMoment
}

// A flight fetches with the fetch function of its first caller. That function must
// not run twice at once, so either the flight runs it or, under StaleOrFetch, the
// caller for itself.
const (
	noRunner   = iota // neither does yet
	flightRuns        // the flight has its lease, or without Redis its turn; it may wait for its budget
	callerRuns        // the caller has stopped waiting
)

// claimFetch makes the flight run the fetch. It returns false if the first caller
// does: the flight must not fetch then, and its callers go round.
func (f *flight) claimFetch() bool {
	return f.runner.CompareAndSwap(noRunner, flightRuns) || f.runner.Load() == flightRuns
}

// fetchTaken reports whether the first caller runs the fetch for itself.
func (f *flight) fetchTaken() bool { return f.runner.Load() == callerRuns }

// ownFetch reports whether the first caller of a flight waits for its own fetch, which
// has a bound of its own, or is about to.
func (e *engine) ownFetch(fs *flights, f *flight) bool {
	return fs == &e.locals || f.runner.Load() == flightRuns
}

// mayLeave reports whether the first caller of a flight may stop waiting after
// WaitTimeout: not for its own fetch. Under StaleOrFetch it takes its fetch along.
func (e *engine) mayLeave(fs *flights, f *flight) bool {
	if e.policy.OnWaitTimeout != StaleOrFetch || fs == &e.locals {
		return !e.ownFetch(fs, f)
	}
	return f.runner.CompareAndSwap(noRunner, callerRuns)
}

// leading reports whether the flight is running a fetch.
func (fs *flights) leading(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.fetchMoment != 0
}

// deserted reports whether nobody waits for the flight.
func (fs *flights) deserted(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.before+f.after == 0
}

// sentOff is where a flight that was superseded leaves a caller: nil if the caller
// may still have its result, and then gone is closed if there will be none.
func (fs *flights) sentOff(f *flight, num uint64) (o *outcome, gone <-chan struct{}) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	switch {
	case f.exited:
		return &outcome{err: ErrGoexit}, nil
	case num < f.fetchMoment:
		return nil, f.gone
	}
	return goRound(), nil
}

// close lets nobody in any more.
func (fs *flights) close() {
	fs.mu.Lock()
	fs.closed = true
	fs.mu.Unlock()
}

func (f *flight) count(num uint64, by int) {
	if f.fetchMoment == 0 || num < f.fetchMoment {
		f.before += by
	} else {
		f.after += by
	}
}

func (f *flight) checkWanted() {
	if f.unwanted != nil && f.before == 0 {
		select {
		case <-f.unwanted:
		default:
			close(f.unwanted)
		}
	}
}

// An outcome is what a flight ends with, for every caller whose number is below
// its moment (the sharing rule, docs/protocol.md). The others go round again.
type outcome struct {
	value  any // *V
	err    error
	own    bool // err is this guard's word: what a fetch returned may wrap the same one, of another
	source Source
	stored bool
	waited bool           // it was fetched by another caller of the process
	entry  *cache.Reading // for age and TTL, where there is one
	at     time.Time      // the entry was read, or stored, not before

	moment uint64
	// private: the value is the first caller's alone; the others fetch for
	// themselves.
	private bool
	// then is what a caller does instead of taking a value: fetchAlone or
	// fetchLocal, or fetch, to go round again. serve otherwise.
	then action
	// refresh: the value is stale, and ought to be refreshed.
	refresh *cache.Reading
}

// forCaller is what of a flight's outcome the caller of a number may have: the
// sharing rule, and whose a private value is.
func (o *outcome) forCaller(num uint64, first bool) *outcome {
	switch {
	case num >= o.moment:
		return goRound()
	case o.private && !first:
		return &outcome{then: fetchAlone}
	case first || o.source != Fetched && o.source != UnguardedFetch:
		return o
	}
	others := *o
	others.waited = true
	if o.source == Fetched {
		others.source = Waited
	}
	return &others
}

// always is the moment of outcomes that say nothing of the value.
const always = ^uint64(0)

// goRound sends every caller round again.
func goRound() *outcome { return &outcome{then: fetch, moment: always} }

// guardClosed is the outcome for every caller of a guard that is closed.
func guardClosed() *outcome { return &outcome{err: ErrClosed, own: true, moment: always} }

// late reports whether the caller has waited for WaitTimeout.
func (o *outcome) late() bool { return o.own && errors.Is(o.err, ErrWaitTimeout) }

// call is one caller's request.
type call struct {
	ctx     context.Context
	key     string // the user's
	force   bool   // fetch even if what is stored is fresh
	telling bool   // the fetch is told the last value, and may name tags
	fetch   func(context.Context, *fill) (any, error)
}
