package lock

import (
	"context"
	"fmt"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/store"
)

// On keeps locks in a store: Redis (standalone, Sentinel, Cluster) or memory. Waiters are
// woken by message, and the process of a holder is watched. Lock keys never meet those of a
// guard on the same store. In a quorum, the Redis user needs +info besides
// [cache.ACLRules].
//
// The store stays the caller's: close the Locker first.
func On(s cache.Store) Backend {
	if nils.Is(s) {
		return broken{"lock: On: the store is nil"}
	}
	locks, ok := s.Unwrap().(store.Locks)
	if !ok {
		return broken{fmt.Sprintf("lock: On: a %T keeps no locks (use cache.NewRedis or cache.NewMemory)", s)}
	}
	return on{locks, store.LockMark + "l:"}
}

// on keeps locks under keys that begin with a prefix: one for locks, one for the jobs of each
// Worker.
type on struct {
	locks  store.Locks
	prefix string
}

func (on) String() string           { return "store" }
func (b on) key(name string) string { return b.prefix + name }

// Acquire implements [Backend].
func (b on) Acquire(ctx context.Context, r Request) (Grant, error) {
	op := store.LockOp{
		Kind: store.AcquireLock, Key: b.key(r.Name), ID: store.Token(r.ID), Places: r.Holders, TTL: r.TTL,
		Suspect: store.Token(r.Suspect), Vote: r.Vote,
	}
	if r.job != nil {
		op.Keep, op.MaxAttempts = r.job.keep, r.job.maxAttempts
	}
	a, err := b.locks.Lock(ctx, &op)
	if err != nil {
		return Grant{}, err
	}
	g := Grant{
		OK: a.Verdict == store.LockGranted, Fence: a.Fence, TakenOver: a.TakenOver,
		Holder: ID(a.Holder), Left: a.Left, Dead: a.Unwatched, Abstains: a.Verdict == store.LockAbstained, Server: a.Server,
	}
	if g.OK && r.Holders == 1 {
		g.Attempt = a.Job.Attempts + 1
	}
	if r.job != nil {
		g.job = &jobAnswer{ended: a.Verdict == store.LockEnded, job: a.Job}
	}
	return g, nil
}

// Extend implements [Backend].
func (b on) Extend(ctx context.Context, h Hold) (bool, error) {
	op := store.LockOp{Kind: store.ExtendLock, Key: b.key(h.Name), ID: store.Token(h.ID), Places: h.Holders, TTL: h.TTL, Fence: h.Fence}
	if h.job != nil {
		op.Keep = h.job.keep
	}
	a, err := b.locks.Lock(ctx, &op)
	return a.OK, err
}

// Release implements [Backend].
func (b on) Release(ctx context.Context, h Hold) (bool, error) {
	op := store.LockOp{Kind: store.ReleaseLock, Key: b.key(h.Name), ID: store.Token(h.ID), Places: h.Holders}
	if o := h.job; o != nil {
		op.Keep, op.MaxAttempts, op.Outcome, op.Cause, op.Pause = o.keep, o.maxAttempts, o.outcome, o.cause, o.pause
	}
	a, err := b.locks.Lock(ctx, &op)
	if h.job != nil {
		h.job.answer = a.Job
	}
	return a.OK, err
}

// Inspect implements [Backend].
func (b on) Inspect(ctx context.Context, name string, holders int) (State, error) {
	a, err := b.locks.Lock(ctx, &store.LockOp{Kind: store.InspectLock, Key: b.key(name), Places: holders})
	return stateOf(&a), err
}

func stateOf(a *store.LockAnswer) State {
	s := State{Fence: a.Fence}
	for _, h := range a.Holders {
		s.Holders = append(s.Holders, Holder{ID: ID(h.ID), Left: h.Left, Dead: h.Unwatched})
	}
	return s
}

// Watch implements [Backend]. Each message is a wake-up. The goroutine ends with stop.
func (b on) Watch(name string) (<-chan struct{}, func()) {
	w := b.locks.Watch(b.key(name))
	changed, stopped := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-w.C:
				wake(changed)
			case <-stopped:
				return
			}
		}
	}()
	return changed, func() {
		close(stopped)
		w.Close()
	}
}

// wake sends on a channel with room for one.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A broken backend was made of something that can't be one. New returns its error.
type broken struct{ why string }

func (b broken) Error() string                                       { return b.why }
func (b broken) Acquire(context.Context, Request) (Grant, error)     { return Grant{}, b }
func (b broken) Extend(context.Context, Hold) (bool, error)          { return false, b }
func (b broken) Release(context.Context, Hold) (bool, error)         { return false, b }
func (b broken) Inspect(context.Context, string, int) (State, error) { return State{}, b }
func (b broken) Watch(string) (<-chan struct{}, func())              { return nil, func() {} }
