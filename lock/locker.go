package lock

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// A Locker grants locks by name. It is safe for concurrent use. Locks are not reentrant: a
// holder that asks for its own lock waits for itself.
type Locker struct {
	opts     Options
	backends []Backend
	names    []string // of the backends
	quorum   int
	process  [8]byte // the start of each ID
	counter  atomic.Uint64

	detach func()          // ends what the observers were told of the Locker
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex // guards memory only
	closed bool
	lines  map[string]*line
	held   map[ID]*Lock
	stray  map[ID]time.Time // IDs whose Acquire was not answered, until when they may be held
	work   sync.WaitGroup   // goroutines, and calls that may have one started
}

// New returns a Locker. With one backend a lock lies there. With N independent ones, N odd,
// it needs the votes of N/2+1, and outlives the failure of the others.
//
// The backends stay the caller's. Errors: all that is wrong with the options and the
// backends, joined. New asks no backend for anything.
func New(opts Options, backends ...Backend) (*Locker, error) {
	opts.fill()
	if err := joined(opts.validate(), checkBackends(&opts, backends)); err != nil {
		return nil, err
	}
	l := &Locker{
		opts: opts, backends: backends, quorum: len(backends)/2 + 1,
		lines: map[string]*line{}, held: map[ID]*Lock{}, stray: map[ID]time.Time{},
	}
	for i, b := range backends {
		name := fmt.Sprint(i)
		if s, ok := b.(fmt.Stringer); ok {
			name += " (" + s.String() + ")"
		}
		l.names = append(l.names, name)
	}
	rand.Read(l.process[:]) // never fails (crypto/rand since Go 1.24)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.detach = telemetry.Attach(opts.Observer, "", l)
	return l, nil
}

// Held is the number of locks that the Locker holds now.
func (l *Locker) Held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// Close releases all locks of the Locker, ends their contexts with ErrClosed, and waits for
// its goroutines. Later calls return ErrClosed. Close the Locker before what its backends
// are made of.
func (l *Locker) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	var all []*Lock
	for _, k := range l.held {
		all = append(all, k)
	}
	l.mu.Unlock()
	var released sync.WaitGroup
	for _, k := range all {
		released.Go(func() { _ = k.end(ErrClosed) })
	}
	released.Wait()
	if first {
		l.cancel()
		l.detach()
	}
	l.work.Wait()
	return nil
}

// spawn runs f in a goroutine that Close waits for. After Close it runs nothing and answers
// false. f ends soon after l.ctx.
func (l *Locker) spawn(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.work.Go(f)
	return true
}

func (l *Locker) ready(ctx context.Context) error {
	if ctx == nil {
		return errNilContext
	}
	if l.ctx.Err() != nil {
		return ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (l *Locker) newID() (id ID) {
	copy(id[:], l.process[:])
	binary.BigEndian.PutUint64(id[8:], l.counter.Add(1))
	return id
}

func (l *Locker) observe(kind cache.EventKind, name string, e cache.Event) {
	if l.opts.Observer != nil {
		e.Kind, e.Key = kind, name
		l.opts.Observer.Observe(e)
	}
}

// Inspect tells who holds the lock, without asking for it. With several backends it tells of
// the holders that a majority names, and fails with a [QuorumError] without one.
func (l *Locker) Inspect(ctx context.Context, name string) (State, error) {
	if err := l.ready(ctx); err != nil {
		return State{}, err
	}
	states := make([]State, len(l.backends))
	votes, yes := l.each(ctx, func(ctx context.Context, i int) (bool, error) {
		var err error
		states[i], err = l.backends[i].Inspect(ctx, name, l.opts.Holders)
		return err == nil, err
	})
	switch {
	case yes < l.quorum:
		return State{}, l.noQuorum(name, votes)
	case len(states) == 1:
		return states[0], nil
	}
	return l.merge(states), nil
}

// merge keeps what a majority says.
func (l *Locker) merge(states []State) (all State) {
	named := map[ID]int{}
	for _, s := range states {
		all.Fence = max(all.Fence, s.Fence)
		for _, h := range s.Holders {
			if named[h.ID]++; named[h.ID] == l.quorum {
				all.Holders = append(all.Holders, h)
			}
		}
	}
	return all
}

// Unlock ends a lock by its ID, from anywhere: an operator's way out. It reports whether the
// ID held the lock. The holder hears of it at its next renewal, so for up to a third of TTL
// it may go on beside the next one.
func (l *Locker) Unlock(ctx context.Context, name string, id ID) (bool, error) {
	if err := l.ready(ctx); err != nil {
		return false, err
	}
	l.mu.Lock()
	k := l.held[id]
	l.mu.Unlock()
	if k != nil && k.name == name {
		err := k.end(ErrLost)
		return err == nil, ignoreLost(err)
	}
	held, err := l.release(ctx, Hold{Name: name, ID: id, Holders: l.opts.Holders})
	l.nudge(name)
	return held, err
}

// bounded is a context for one call of a backend. A single store bounds its calls by itself.
func (l *Locker) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := l.backends[0].(on); ok && len(l.backends) == 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, l.opts.voteTimeout(len(l.backends)))
}

// each asks all backends at once, and waits for all of them.
func (l *Locker) each(ctx context.Context, ask func(ctx context.Context, i int) (bool, error)) (votes []Vote, yes int) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	votes = make([]Vote, len(l.backends))
	one := func(i int) {
		ok, err := ask(ctx, i)
		votes[i] = Vote{Backend: l.names[i], State: VoteNo}
		switch {
		case err != nil:
			votes[i].State, votes[i].Err = VoteError, err
		case ok:
			votes[i].State = VoteYes
		}
	}
	if len(l.backends) > 1 {
		var wg sync.WaitGroup
		for i := range l.backends {
			wg.Go(func() { one(i) })
		}
		wg.Wait()
	} else {
		one(0)
	}
	for i := range votes {
		if votes[i].State == VoteYes {
			yes++
		}
	}
	return votes, yes
}

// release gives a lock back on all backends. It reports whether a majority had it, and
// returns an error if there was no majority for either.
func (l *Locker) release(ctx context.Context, h Hold) (bool, error) {
	votes, yes := l.each(ctx, func(ctx context.Context, i int) (bool, error) { return l.backends[i].Release(ctx, h) })
	switch {
	case yes >= l.quorum:
		return true, nil
	case count(votes, VoteNo) > len(votes)-l.quorum: // yes can't have been a majority
		return false, nil
	}
	return false, l.noQuorum(h.Name, votes)
}

func count(votes []Vote, state VoteState) (n int) {
	for i := range votes {
		if votes[i].State == state {
			n++
		}
	}
	return n
}

// noQuorum is the error of a call that no majority has answered. A single backend's own
// error says more.
func (l *Locker) noQuorum(name string, votes []Vote) error {
	if len(votes) == 1 && votes[0].Err != nil {
		return votes[0].Err
	}
	return &QuorumError{Name: name, Need: l.quorum, Votes: votes}
}
