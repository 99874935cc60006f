package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A Lock is a granted lock. It is safe for concurrent use. It is renewed until Unlock, or
// until it is lost.
type Lock struct {
	l         *Locker
	name      string
	id        ID
	fence     uint64
	attempt   int
	takenOver bool
	waited    time.Duration
	looks     int
	round     *round
	ttl       time.Duration
	granted   time.Time

	terms    *jobTerms // of a Worker
	previous []byte

	parent context.Context // of the lock's

	mu      sync.Mutex   // guards memory only
	ctx     *lockContext // nil until it is asked for
	state   lockState
	cause   error     // of the context's end, once the state is not lockHeld
	until   time.Time // certainly held before
	ends    time.Time // about when the last request lets it end, answered or not
	renewal *time.Timer
	expiry  *time.Timer
	votes   []Vote // of the last renewal; nil: none yet

	isReleased bool
	released   chan struct{} // closed when isReleased is set; nil until a caller waits for that
	err        error         // of the release
}

// The states of a lock.
type lockState byte

const (
	lockHeld lockState = iota
	lockLost
	lockEnded // it was given back, or is being given back
)

// Context ends when the lock is lost, by this process's own clock before any other process
// can hold the lock, and when it is unlocked. [context.Cause] is [ErrLost], or [ErrClosed] if
// the Locker was closed. It carries the values of the context that the lock was asked for
// with; inside Do, it also ends with that context.
//
// Its methods compare the clock at each call, so a process that was suspended finds the
// context ended although no timer has fired yet. A context that is derived from it ends when
// the timer fires, a moment later: before a write that must not come late call [Lock.Valid],
// or send [Lock.Fence] along.
func (k *Lock) Context() context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx == nil {
		inner, cancel := context.WithCancelCause(k.parent)
		if k.ctx = (&lockContext{inner, k, cancel}); k.cause != nil {
			cancel(k.cause)
		}
	}
	return k.ctx
}

// Lost is closed when the lock is lost or unlocked: the Done channel of [Lock.Context].
func (k *Lock) Lost() <-chan struct{} { return k.Context().Done() }

// ID names this grant of the lock, for [Locker.Unlock].
func (k *Lock) ID() ID { return k.id }

// Name is the lock's name.
func (k *Lock) Name() string { return k.name }

// Fence is greater than that of each earlier holder of the name. Send it with each write
// and have the resource refuse a smaller one than it has seen. Zero: the backend has none.
func (k *Lock) Fence() uint64 { return k.fence }

// Attempt is 1, and one more for each holder that died since the last release. Zero: the
// backend does not count.
func (k *Lock) Attempt() int { return k.attempt }

// TakenOver reports whether a holder was replaced before its TTL had passed, as its process
// was dead.
func (k *Lock) TakenOver() bool { return k.takenOver }

// Waited is how long the call that got the lock has taken.
func (k *Lock) Waited() time.Duration { return k.waited }

// Spins is how often that call has asked in vain.
func (k *Lock) Spins() int { return k.looks - 1 }

// Valid is how long the lock is certainly held from now on, even if no renewal succeeds.
// Zero: it is lost, or was unlocked.
func (k *Lock) Valid() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != lockHeld {
		return 0
	}
	return max(0, left(k.until))
}

// Status returns the last answer of each backend about the lock.
func (k *Lock) Status() []Vote {
	k.mu.Lock()
	votes := k.votes
	k.mu.Unlock()
	if votes == nil {
		votes, _ = k.round.answers()
	}
	return slices.Clone(votes)
}

// left is how long it is until a time. The wall clock counts as well: where a suspended
// machine stops the monotonic one, it goes on.
func left(until time.Time) time.Duration {
	now := time.Now()
	return min(until.Sub(now), until.Round(0).Sub(now.Round(0)))
}

// begin starts the life of a lock. sent is the time of its request. The lock's context ends
// with ctx if bound is set.
func (k *Lock) begin(ctx context.Context, bound bool, sent time.Time) error {
	l := k.l
	k.until = sent.Add(k.ttl - l.opts.drift(k.ttl))
	k.ends = sent.Add(k.ttl)
	rest := left(k.until)
	if rest <= 0 {
		return fmt.Errorf("%w: %q was granted too late to be of use: the answer took %v", ErrUnavailable, cut(k.name), time.Since(sent))
	}
	if k.parent = ctx; !bound {
		k.parent = context.WithoutCancel(ctx)
	}
	if !l.keep(k) {
		return ErrClosed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.opts.NoRenew {
		k.expireAfterLocked(rest)
	} else {
		k.renewal = time.AfterFunc(min(k.ttl/3, rest), k.renew)
	}
	return nil
}

// A lockContext ends with its lock: its methods look at the clock.
type lockContext struct {
	context.Context
	k      *Lock
	cancel context.CancelCauseFunc
}

// Done implements [context.Context].
func (c *lockContext) Done() <-chan struct{} {
	c.k.check()
	return c.Context.Done()
}

// Err implements [context.Context].
func (c *lockContext) Err() error {
	c.k.check()
	return c.Context.Err()
}

// check ends the lock if its time is over. It also ends the context of a lock that another
// goroutine has ended: after a freeze of the process that one may not have come to it yet.
func (k *Lock) check() {
	k.mu.Lock()
	over := k.state == lockHeld && left(k.until) <= 0
	k.mu.Unlock()
	if over {
		k.lose(errors.New("it was not renewed in time"))
	}
	k.mu.Lock()
	cause := k.cause // looked at last: the lock may have been ended in between
	k.mu.Unlock()
	if cause != nil {
		k.cancel(cause)
	}
}

// cancel ends the context, if there is one. One that is asked for later has ended already.
func (k *Lock) cancel(cause error) {
	k.mu.Lock()
	ctx := k.ctx
	k.mu.Unlock()
	if ctx != nil {
		ctx.cancel(cause)
	}
}

// expireAfterLocked has the lock end after so long.
func (k *Lock) expireAfterLocked(d time.Duration) {
	if k.expiry != nil {
		k.expiry.Reset(d)
		return
	}
	k.expiry = time.AfterFunc(d, func() {
		k.mu.Lock()
		rest := left(k.until)
		if k.state == lockHeld && rest > 0 { // it was extended meanwhile
			k.expireAfterLocked(rest)
		}
		k.mu.Unlock()
		k.check()
	})
}

// lose ends a lock that should still be held.
func (k *Lock) lose(why error) {
	if k.noteLoss() {
		k.cancel(ErrLost)
		k.l.observe(cache.LeaseLost, k.name, cache.Event{Token: cache.Token(k.id), Err: why})
	}
}

// noteLoss ends the lock, and leaves its context to the caller. A process may be frozen in
// between: see [Lock.check].
func (k *Lock) noteLoss() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != lockHeld {
		return false
	}
	k.state, k.cause = lockLost, ErrLost
	k.stopLocked()
	return true
}

func (k *Lock) stopLocked() {
	if k.renewal != nil {
		k.renewal.Stop()
	}
	if k.expiry != nil {
		k.expiry.Stop()
	}
}

// renew extends the lock, from the timer's goroutine. It is tried again soon if no majority
// has answered.
func (k *Lock) renew() {
	k.l.spawn(func() {
		k.mu.Lock()
		rest := left(k.until)
		if k.state != lockHeld {
			k.mu.Unlock()
			return
		}
		k.expireAfterLocked(max(rest, 0))
		ttl := k.ttl
		k.mu.Unlock()
		next := ttl / 3
		ctx, cancel := context.WithTimeout(k.l.ctx, max(ttl/4, minTTL))
		defer cancel()
		if err := k.extend(ctx, ttl); errors.Is(err, ErrLost) {
			return
		} else if err != nil {
			next = ttl / 12
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.state == lockHeld {
			k.renewal.Reset(next)
		}
	})
}

// Extend has the lock end ttl from now or later, never earlier than it would have: for a
// holder without renewal, or before a step that must not be interrupted. ErrLost: the lock
// is not held any more; a lost lock never comes back. Another error: no majority answered,
// and the lock ends when it would have.
func (k *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := k.l.ready(ctx); err != nil {
		return err
	}
	if ttl = ttl.Truncate(time.Millisecond); ttl < minTTL {
		return fmt.Errorf("lock: Extend: the TTL is %v, must be at least %v", ttl, minTTL)
	}
	return k.extend(ctx, ttl)
}

func (k *Lock) extend(ctx context.Context, ttl time.Duration) error {
	l := k.l
	if k.Valid() == 0 {
		k.check()
		return ErrLost
	}
	h := k.hold()
	h.TTL, h.Fence = ttl, k.fence
	if k.terms != nil {
		h.job = &jobOutcome{jobTerms: *k.terms}
	}
	sent := time.Now()
	k.mu.Lock()
	if ends := sent.Add(ttl); ends.After(k.ends) {
		k.ends = ends
	}
	k.mu.Unlock()
	votes, yes := l.panel.extend(ctx, h)
	switch {
	case yes >= l.panel.quorum:
	case l.panel.refused(votes):
		k.lose(&HeldError{Name: k.name, Votes: votes})
		return ErrLost
	default:
		return l.panel.noQuorum(k.name, votes)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.votes = votes
	if k.state != lockHeld || left(k.until) <= 0 { // it ended by the clock meanwhile
		return ErrLost
	}
	if until := sent.Add(ttl - l.opts.drift(ttl)); until.After(k.until) {
		k.until = until
	}
	k.expireAfterLocked(max(left(k.until), 0))
	return nil
}

func (k *Lock) hold() Hold { return Hold{Name: k.name, ID: k.id, Holders: k.l.opts.Holders} }

// Unlock gives the lock back. ErrLost: it was not held any more. Another error: no majority
// answered, and the release is repeated in the background until the lock has ended by itself.
// The release is carried out even if ctx has ended. Later calls return the error of
// the first one.
func (k *Lock) Unlock(ctx context.Context) error {
	if ctx == nil {
		return errNilContext
	}
	return k.end(errUnlocked)
}

// end gives the lock back, once. Its context ends with the given cause.
func (k *Lock) end(cause error) error {
	_, err := k.endWith(cause, nil)
	return err
}

// endWith gives the lock back with the outcome of an attempt, if there is one.
func (k *Lock) endWith(cause error, outcome *jobOutcome) (first bool, err error) {
	k.mu.Lock()
	if k.state == lockEnded {
		k.mu.Unlock()
		return false, k.awaitRelease()
	}
	lost := k.state == lockLost || left(k.until) <= 0
	ends := k.ends
	if lost {
		cause = ErrLost
	}
	k.state, k.cause = lockEnded, cause
	k.stopLocked()
	k.mu.Unlock()
	k.cancel(cause)
	k.round.finish()
	h := k.hold()
	h.job = outcome
	if outcome == nil && k.terms != nil {
		h.job = &jobOutcome{jobTerms: *k.terms}
	}
	held, err := k.l.panel.release(context.WithoutCancel(k.parent), h)
	switch {
	case err != nil:
		if outcome != nil { // the caller reads the answer of its own
			again := *outcome
			h.job = &again
		}
		k.l.spawn(func() { k.releaseLater(h, ends) })
		if lost {
			err = ErrLost
		}
	case !held || lost:
		err = ErrLost
	}
	k.wasReleased(err)
	return true, err
}

// wasReleased ends the life of a lock.
func (k *Lock) wasReleased(err error) {
	k.l.forget(k)
	k.mu.Lock()
	k.err, k.isReleased = err, true
	if k.released != nil {
		close(k.released)
	}
	k.mu.Unlock()
	k.l.lines.nudge(k.name)
	k.l.observe(cache.LeaseReleased, k.name, cache.Event{Token: cache.Token(k.id), Duration: time.Since(k.granted), Err: err})
}

// awaitRelease waits until another call has given the lock back, and returns its error.
func (k *Lock) awaitRelease() error {
	k.mu.Lock()
	if k.isReleased {
		defer k.mu.Unlock()
		return k.err
	}
	if k.released == nil {
		k.released = make(chan struct{})
	}
	k.mu.Unlock()
	<-k.released
	return k.err
}

// releaseLater repeats a release that was not answered until the lock would have ended, or
// the Locker is closed.
func (k *Lock) releaseLater(h Hold, until time.Time) {
	l := k.l
	for wait := 50 * time.Millisecond; time.Now().Before(until); wait = min(2*wait, time.Second) {
		if sleep(l.ctx, wait) != nil {
			return
		}
		if _, err := l.panel.release(l.ctx, h); err == nil {
			l.lines.nudge(h.Name)
			return
		}
	}
}

// sleep waits, and returns an error if ctx ended first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func ignoreLost(err error) error {
	if errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// joined is errors.Join, which leaves a single error as it is.
func joined(errs ...error) error {
	var one error
	n := 0
	for _, err := range errs {
		if err != nil {
			one = err
			n++
		}
	}
	if n < 2 {
		return one
	}
	return errors.Join(errs...)
}
