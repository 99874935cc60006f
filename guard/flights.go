package guard

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/stampedeguard/stampede/cache"
)

// A flightKind tells the flights of one key apart. A caller joins flights of its
// own kind only.
type flightKind byte

const (
	foreground  flightKind = iota // callers of Get and its like wait for it
	forced                        // callers that accept no stored entry wait for it
	background                    // it refreshes an entry that is served meanwhile
	local                         // it fetches a value too large to store, for this process
	flightKinds = iota
)

// flights shares flights among the callers of this process. singleflight runs one
// flight of a key and kind at a time and hands its outcome to all callers. The
// registry adds the callers' sequence numbers, which decide whether a fetch that
// lost its lease is still of use, and lets a flight be superseded, so that new
// callers start another.
type flights struct {
	groups [flightKinds]singleflight.Group
	flying [flightKinds]atomic.Int64 // len(live), readable without mu
	wg     sync.WaitGroup            // goroutines that run flights

	mu     sync.Mutex                      // guards memory only; nothing is called while it is held
	live   [flightKinds]map[string]*flight // in step with groups: a flight is in both or in neither
	closed bool
}

func newFlights() *flights {
	fs := &flights{}
	for i := range fs.live {
		fs.live[i] = map[string]*flight{}
	}
	return fs
}

// join lets the caller with the given sequence number wait for the key's flight. If
// there is none, open makes one and the caller is its first. It returns nil if the
// guard is closed. Each join is followed by one leave.
func (fs *flights) join(kind flightKind, key string, number uint64, open func() *flight) (f *flight, result <-chan singleflight.Result, first bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.closed {
		return nil, nil, false
	}
	f = fs.live[kind][key]
	if first = f == nil; first {
		f = open()
		fs.live[kind][key] = f
		fs.flying[kind].Add(1)
		fs.wg.Add(1)
	}
	f.count(number, 1)
	f.latest = max(f.latest, number)
	return f, fs.groups[kind].DoChan(key, f.run), first
}

// run takes a flight to its outcome.
func (fs *flights) run(f *flight) (any, error) {
	defer fs.wg.Done()
	exited := true
	defer func() { fs.end(f, exited) }()
	f.fly()
	exited = false
	return f.out, nil
}

// has reports whether the key has a flight of that kind.
func (fs *flights) has(kind flightKind, key string) bool {
	if fs.flying[kind].Load() == 0 {
		return false
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.live[kind][key] != nil
}

// refreshOf returns the background flight of the key, or nil.
func (fs *flights) refreshOf(key string) *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.live[background][key]
}

// fetchesOf are those that the key's flights have begun.
func (fs *flights) fetchesOf(key string) (all []*frame) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, live := range fs.live {
		if f := live[key]; f != nil && f.fetch.Load() != nil {
			all = append(all, f.fetch.Load())
		}
	}
	return all
}

// end removes a flight that is over. singleflight delivers nothing from a goroutine
// that called runtime.Goexit, so the callers of such a flight are told here.
func (fs *flights) end(f *flight, exited bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if exited {
		f.exited = true
		if f.isSuperseded {
			close(f.gone)
		} else {
			close(f.moved)
		}
	}
	fs.remove(f)
}

func (fs *flights) remove(f *flight) {
	if fs.live[f.kind][f.key] == f {
		delete(fs.live[f.kind], f.key)
		fs.flying[f.kind].Add(-1)
		fs.groups[f.kind].Forget(f.key)
	}
}

// supersede removes a flight after the loss of its lease. Callers that joined before its
// fetch started may still use the result; the others retry at once. unwanted is
// called as soon as no caller can use the result.
func (fs *flights) supersede(f *flight, unwanted func()) {
	fs.mu.Lock()
	if f.exited { // its callers have been told
		fs.mu.Unlock()
		return
	}
	fs.remove(f)
	f.isSuperseded, f.unwanted, f.gone = true, unwanted, make(chan struct{})
	close(f.moved)
	drop := f.takeUnwanted()
	fs.mu.Unlock()
	drop()
}

func (fs *flights) leave(f *flight, number uint64) {
	fs.mu.Lock()
	f.count(number, -1)
	f.firstLeft = f.firstLeft || number == f.first
	drop := f.takeUnwanted()
	fs.mu.Unlock()
	drop()
}

// startFetch notes that the flight's fetch starts and returns the sequence number of
// that moment. It is drawn under mu: all callers of the flight joined before it.
func (fs *flights) startFetch(f *flight) uint64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.fetchStart = f.e.sequence.Add(1)
	f.before, f.after = f.before+f.after, 0
	return f.fetchStart
}

// fetching reports whether the flight has started a fetch.
func (fs *flights) fetching(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.fetchStart != 0
}

// deserted reports whether no caller waits for the flight.
func (fs *flights) deserted(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.kind != background && f.before+f.after == 0
}

// joinedSince reports whether a caller has joined the flight since that moment.
func (fs *flights) joinedSince(f *flight, moment uint64) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.latest >= moment
}

// lone reports whether the flight's first caller waits and no other does.
func (fs *flights) lone(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.before+f.after == 1 && !f.firstLeft
}

// afterMove returns the outcome for a caller after its flight has moved. It is nil if the
// caller can still use the result: the caller waits on, and gone is closed if there will be
// none.
func (fs *flights) afterMove(f *flight, number uint64) (out *outcome, gone <-chan struct{}) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	switch {
	case f.exited:
		return &outcome{err: ErrGoexit}, nil
	case number < f.fetchStart:
		return nil, f.gone
	}
	return retryOutcome(), nil
}

// close lets no caller join any more. The flights end with the engine's context.
func (fs *flights) close() {
	fs.mu.Lock()
	fs.closed = true
	fs.mu.Unlock()
}

// list describes the live flights.
func (fs *flights) list(hideKeys bool) []Flight {
	all, _ := fs.some(math.MaxInt, hideKeys)
	return all
}

// some describes at most max live flights, and returns how many there are.
func (fs *flights) some(max int, hideKeys bool) (all []Flight, total int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, live := range fs.live {
		total += len(live)
		for _, f := range live {
			if len(all) >= max {
				break
			}
			all = append(all, f.describe(hideKeys))
		}
	}
	return all, total
}

// describe is the flight for people. flights.mu is held.
func (f *flight) describe(hideKeys bool) Flight {
	d := Flight{
		Key: f.key, Role: "asking", Age: time.Since(f.began), Callers: f.before + f.after, Attempt: int(f.attempt.Load()),
	}
	switch {
	case f.kind == background:
		d.Role = "refreshing"
	case f.fetchStart != 0:
		d.Role = "fetching"
	case f.waiting.Load():
		d.Role = "waiting"
		if holder := f.holder.Load(); holder != nil {
			d.Holder = cache.Token(*holder)
		}
	}
	if hideKeys {
		d.Key = ""
	}
	return d
}

// count adds to the callers that may have the result even if the lease is lost, or to
// the others. flights.mu is held.
func (f *flight) count(number uint64, by int) {
	if f.fetchStart == 0 || number < f.fetchStart {
		f.before += by
	} else {
		f.after += by
	}
}

// takeUnwanted returns the function to call now that the callers have changed.
// flights.mu is held.
func (f *flight) takeUnwanted() func() {
	if f.unwanted == nil || f.before > 0 {
		return func() {}
	}
	drop := f.unwanted
	f.unwanted = nil
	return drop
}

// A Flight is one key that this process fetches, refreshes or waits for.
type Flight struct {
	Key  string // empty if Policy.HideKeys
	Role string // "fetching", "waiting" or "asking"; "refreshing" in the background
	Age  time.Duration

	Callers int         // calls that wait for it
	Attempt int         // of the lease that this process holds; 0: it holds none
	Holder  cache.Token // of the lease that another process holds; zero: none is known
}
