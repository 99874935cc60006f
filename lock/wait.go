package lock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

const (
	// deadAgain is the time between two looks at a holder that looks dead.
	deadAgain = 50 * time.Millisecond
	// firstPoll is the first time between two looks of a waiter: one that is woken by
	// messages polls only in case one is missed.
	firstPoll, firstPollWatched = 5 * time.Millisecond, 50 * time.Millisecond
	// splitTries is how often TryLock asks again after the votes were split.
	splitTries = 5
	// splitPause is the longest pause after split votes, times the looks so far.
	splitPause = 5 * time.Millisecond
)

// Lock waits for the lock and returns it. It returns a [HeldError] when Options.Wait or
// Options.Attempts is used up, the cause of ctx when that ends, and ErrUnavailable at once
// if no majority answers. The end of ctx does not end the lock: call Unlock.
func (l *Locker) Lock(ctx context.Context, name string) (*Lock, error) {
	return l.acquire(ctx, name, terms{wait: true})
}

// TryLock returns the lock, or a [HeldError] at once.
func (l *Locker) TryLock(ctx context.Context, name string) (*Lock, error) {
	return l.acquire(ctx, name, terms{})
}

// terms are how a lock is asked for.
type terms struct {
	wait    bool      // until it is free
	forever bool      // Options.Wait and Options.Attempts do not count
	bound   bool      // the lock's context ends with the caller's
	job     *jobTerms // of a Worker
}

func (l *Locker) acquire(ctx context.Context, name string, t terms) (*Lock, error) {
	began := time.Now()
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	a := &asker{l: l, name: name, terms: t, began: began}
	k, err := a.run(ctx)
	if err != nil {
		return nil, err
	}
	k.waited, k.looks = time.Since(began), a.looks
	return k, nil
}

// An asker is one call that asks for a lock.
type asker struct {
	l     *Locker
	name  string
	terms terms
	began time.Time
	me    waiter

	looks   int
	last    error // the last refusal
	waiting bool  // WaitBegan was reported
	poll    time.Duration
	dead    ID // a holder that looked dead
	deadAt  time.Time

	woken  bool // by a message, at the last rest
	nudged bool // from this process, since the last look
	holder ID   // at the last look
	vain   int  // see inVain

	changed <-chan struct{} // nil until the lock was found to be held
	stop    func()
}

// run asks until the lock is granted or there is no more hope.
func (a *asker) run(ctx context.Context) (*Lock, error) {
	l := a.l
	if a.terms.wait {
		first := l.lines.join(a.name, &a.me)
		defer l.lines.leave(a.name, &a.me)
		for !first {
			a.waits()
			if err := a.rest(ctx, math.MaxInt64, nil); err != nil {
				return a.gaveUp(err)
			}
			first = l.lines.isFirst(&a.me)
		}
	}
	defer func() {
		if a.stop != nil {
			a.stop()
		}
	}()
	for {
		k, why := ask(ctx, l, a.name, a.suspect(), &a.terms)
		a.looks++
		if why == nil {
			a.waitEnds(nil)
			return k, nil
		}
		a.last, a.nudged = why.err, false
		pause, err := a.consider(why)
		changed := a.changed
		if why.again {
			changed = nil // or waiters with split votes wake each other all the time
		} else if n := a.inVain(why); err == nil && n > len(l.panel.backends) {
			err = a.rest(ctx, a.random(n), nil)
		}
		if err == nil && !a.nudged {
			err = a.rest(ctx, pause, changed)
		}
		if err != nil {
			return a.gaveUp(err)
		}
	}
}

// rest waits for a time, less if there is a reason to ask again. It returns an error if the
// whole wait has ended.
func (a *asker) rest(ctx context.Context, d time.Duration, changed <-chan struct{}) error {
	l := a.l
	bounded := l.opts.Wait > 0 && !a.terms.forever
	if bounded {
		d = min(d, time.Until(a.began.Add(l.opts.Wait)))
	}
	var woken <-chan struct{}
	if a.terms.wait {
		woken = l.lines.channel(&a.me)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	a.woken = false
	select {
	case <-timer.C:
		if bounded && time.Since(a.began) >= l.opts.Wait {
			if a.last == nil {
				return &HeldError{Name: a.name}
			}
			return a.last
		}
	case <-changed:
		a.woken = true
	case <-woken:
		a.nudged = true
	case <-ctx.Done():
		return a.ended(ctx)
	case <-l.ctx.Done():
		return ErrClosed
	}
	return nil
}

// consider returns how long to wait before the next look, or the error to end with.
func (a *asker) consider(why *refusal) (time.Duration, error) {
	l := a.l
	switch {
	case !errors.Is(why.err, ErrHeld):
		return 0, why.err
	case why.job != nil && why.job.ended:
		return 0, why.job
	case !a.terms.wait && (!why.again || a.looks > splitTries), !a.terms.forever && a.looks >= l.opts.Attempts:
		return 0, why.err
	}
	a.waits()
	if why.again {
		return a.random(a.looks), nil
	}
	if a.stop == nil {
		a.watch()
	}
	if l.opts.TakeOver {
		switch {
		case why.dead.IsZero():
			a.dead = ID{}
		case a.dead != why.dead:
			a.dead, a.deadAt = why.dead, time.Now()
		}
		if !a.dead.IsZero() {
			return deadAgain, nil
		}
	}
	pause := time.Duration((0.5 + rand.Float64()/2) * float64(a.poll))
	a.poll = min(2*a.poll, l.opts.Retry)
	if why.left > 0 {
		pause = min(pause, why.left+time.Millisecond)
	}
	return pause, nil
}

// random is a time that separates Lockers with split votes: longer after more looks.
func (a *asker) random(looks int) time.Duration {
	longest := min(time.Duration(looks)*splitPause, a.l.opts.Retry)
	return time.Duration(rand.Int64N(int64(longest)))
}

// inVain counts the wake-ups that found the same holder. In a quorum a vote that is no part of
// a majority is given back. That wakes all waiters, even the voter itself.
func (a *asker) inVain(why *refusal) int {
	var holder ID
	if held := (*HeldError)(nil); errors.As(why.err, &held) {
		holder = held.Holder
	}
	switch {
	case holder != a.holder || len(a.l.panel.backends) == 1:
		a.holder, a.vain = holder, 0
	case a.woken:
		a.vain++
	}
	return a.vain
}

// suspect is the holder that has looked dead for long enough.
func (a *asker) suspect() ID {
	if a.dead.IsZero() || time.Since(a.deadAt) < deadAgain {
		return ID{}
	}
	return a.dead
}

// watch subscribes to the wake-ups of all backends.
func (a *asker) watch() {
	a.poll = min(firstPoll, a.l.opts.Retry)
	var stops []func()
	merged := make(chan struct{}, 1)
	for _, b := range a.l.panel.backends {
		changed, stop := b.Watch(a.name)
		stops = append(stops, stop)
		switch {
		case changed == nil:
		case len(a.l.panel.backends) == 1:
			a.changed = changed
			a.poll = min(firstPollWatched, a.l.opts.Retry)
		default:
			done := make(chan struct{})
			stops = append(stops, func() { close(done) })
			a.changed = merged
			go func() { // ends with stop
				for {
					select {
					case <-changed:
						wake(merged)
					case <-done:
						return
					}
				}
			}()
		}
	}
	a.stop = func() {
		for _, stop := range stops {
			stop()
		}
	}
}

func (a *asker) ended(ctx context.Context) error {
	if a.last == nil {
		return fmt.Errorf("lock: waiting for %q: %w", cut(a.name), context.Cause(ctx))
	}
	return fmt.Errorf("%w, and the wait has ended: %w", a.last, context.Cause(ctx))
}

func (a *asker) waits() {
	if a.waiting {
		return
	}
	a.waiting = true
	var holder ID
	if held := (*HeldError)(nil); errors.As(a.last, &held) {
		holder = held.Holder
	}
	a.l.observe(cache.LeaseHeld, a.name, cache.Event{Token: cache.Token(holder)})
	a.l.observe(cache.WaitBegan, a.name, cache.Event{Token: cache.Token(holder)})
}

func (a *asker) waitEnds(err error) {
	if a.waiting {
		a.l.observe(cache.WaitEnded, a.name, cache.Event{Duration: time.Since(a.began), Err: err})
	}
}

func (a *asker) gaveUp(err error) (*Lock, error) {
	a.waitEnds(err)
	return nil, err
}
