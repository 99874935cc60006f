package lock

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// A Locker grants locks by name. It is safe for concurrent use. Locks are not reentrant: a
// holder that asks for its own lock waits for itself.
type Locker struct {
	opts    Options
	panel   panel
	lines   lines
	strays  strays
	process [8]byte // the start of each ID
	counter atomic.Uint64

	detach func()          // tells the observers of the Locker's end
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex // guards memory only
	closed bool
	held   map[ID]*Lock
	work   sync.WaitGroup // goroutines
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
		opts:   opts,
		lines:  lines{all: map[string][]*waiter{}},
		strays: strays{all: map[ID]time.Time{}},
		held:   map[ID]*Lock{},
	}
	l.panel = newPanel(&l.opts, backends)
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
// its goroutines. Later calls return ErrClosed. Close the Locker before the stores
// and clients of its backends.
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

// keep notes a lock that was granted, unless the Locker is closed.
func (l *Locker) keep(k *Lock) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.held[k.id] = k
	}
	return !l.closed
}

func (l *Locker) forget(k *Lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, k.id)
}

func (l *Locker) observe(kind cache.EventKind, name string, e cache.Event) {
	if l.opts.Observer != nil {
		e.Kind, e.Key = kind, name
		l.opts.Observer.Observe(e)
	}
}

// Inspect tells of the lock's holders, without asking for it. With several backends it tells of
// the holders that a majority names, and fails with a [QuorumError] without one.
func (l *Locker) Inspect(ctx context.Context, name string) (State, error) {
	if err := l.ready(ctx); err != nil {
		return State{}, err
	}
	return l.panel.inspect(ctx, name)
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
	held, err := l.panel.release(ctx, Hold{Name: name, ID: id, Holders: l.opts.Holders})
	l.lines.nudge(name)
	return held, err
}
