package lock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Do waits for the lock, calls f while it is held, and gives it back, also if f panics or
// ends its goroutine. The context that f is given ends with ctx and when the lock is lost;
// it is that of [Lock.Context]. If the lock was lost before f returned, the error is ErrLost
// joined with that of f. See [Locker.Lock] for the errors of the wait.
func (l *Locker) Do(ctx context.Context, name string, f func(ctx context.Context, k *Lock) error) error {
	return l.do(ctx, name, terms{wait: true, bound: true}, f)
}

// TryDo is Do without the wait: it returns a [HeldError] at once.
func (l *Locker) TryDo(ctx context.Context, name string, f func(ctx context.Context, k *Lock) error) error {
	return l.do(ctx, name, terms{bound: true}, f)
}

func (l *Locker) do(ctx context.Context, name string, t terms, f func(context.Context, *Lock) error) (err error) {
	if f == nil {
		return errNilFunc
	}
	k, err := l.acquire(ctx, name, t)
	if err != nil {
		return err
	}
	defer func() {
		if released := k.end(errUnlocked); errors.Is(released, ErrLost) {
			err = joined(ErrLost, err)
		}
	}()
	return f(k.Context(), k)
}

// leadAgain is the longest pause of Lead between two terms.
const leadAgain = time.Second

// Lead waits for the lock and calls f while it is held, again and again until ctx ends: an
// election. At most one process leads at a time, as far as f returns soon after its context
// ends. Lead waits for f.
//
// If f returns nil, or after its context has ended, another process gets a chance, and Lead
// waits to lead again. Any other error of f ends Lead, which returns it. While no majority
// answers Lead goes on trying. When ctx ends Lead returns its cause; Options.Wait and
// Options.Attempts do not count.
func (l *Locker) Lead(ctx context.Context, name string, f func(ctx context.Context, k *Lock) error) error {
	if f == nil {
		return errNilFunc
	}
	for pause := min(10*time.Millisecond, l.opts.Retry); ; {
		if err := l.ready(ctx); err != nil {
			return err
		}
		lost := false
		err := l.do(ctx, name, terms{wait: true, forever: true, bound: true}, func(ctx context.Context, k *Lock) error {
			err := f(ctx, k)
			if lost = ctx.Err() != nil; lost {
				return nil
			}
			if err != nil {
				return &leaderError{err}
			}
			return nil
		})
		var failed *leaderError
		switch {
		case errors.As(err, &failed):
			return failed.err
		case errors.Is(err, ErrForeign), errors.Is(err, ErrSameServer):
			return err
		case err == nil:
			pause = min(10*time.Millisecond, l.opts.Retry)
		default:
			pause = min(2*pause, leadAgain)
		}
		_ = sleep(ctx, time.Duration((0.5+rand.Float64())*float64(pause)))
	}
}

// A leaderError is the error of f while it led.
type leaderError struct{ err error }

func (e *leaderError) Error() string { return e.err.Error() }
