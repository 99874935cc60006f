package lock

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// Options configure [New]. The zero value of each field means its default. All processes
// that share a lock need the same TTL and Holders.
type Options struct {
	// TTL is how long a lock outlives a process that dies. A live holder renews it every
	// third of that. At least 10 ms; longer than the longest pause of a process that must
	// not lose its lock. Default 10 s.
	TTL time.Duration
	// NoRenew leaves the renewal out: a lock ends TTL after it was granted, unless Extend is
	// called.
	NoRenew bool

	// Wait bounds Lock, Do and Lead's wait besides their context. Default: only the context
	// does.
	Wait time.Duration
	// Attempts bounds how often one call of Lock or Do asks for the lock. Default: no bound.
	Attempts int
	// Retry is the longest time between two looks of a waiter; a message wakes it sooner.
	// Of the waiters for one name in a process, only the first looks. At least 1 ms.
	// Default 250 ms.
	Retry time.Duration

	// Drift is the share of TTL by which a holder gives its lock up early, besides 2 ms, as
	// clocks differ in speed. Less than 0.5. Default 0.01.
	Drift float64
	// Holders is how many may hold one lock at a time. More than one make it a semaphore,
	// which needs a single backend. At most 1000: each place costs a look. Default 1.
	Holders int
	// TakeOver replaces a holder before its TTL has passed if its process was not seen at
	// two looks, 50 ms apart. A holder that lives on, and has lost its connection to Redis
	// alone, is then replaced too, and learns of it at its next renewal: Lock.Context still
	// goes on for up to a third of TTL. Leave it off where two holders at a time do damage
	// that no fence prevents. Default off.
	TakeOver bool

	// Observer is told of each lock: LeaseGranted, LeaseTakenOver, LeaseHeld, LeaseLost,
	// LeaseReleased, WaitBegan, WaitEnded. The Guard of its events is empty, their Key the
	// lock's name, and their Token its ID. LeaseReleased has the Duration that it was held.
	// guard.LogObserver writes them to a log. Default none.
	Observer cache.Observer
}

const (
	minTTL     = 10 * time.Millisecond
	maxHolders = 1000
	// driftBase allows for the grain of Redis's expiry, 1 ms, and for rounding.
	driftBase = 2 * time.Millisecond
)

func (o *Options) fill() {
	if o.TTL == 0 {
		o.TTL = 10 * time.Second
	}
	o.TTL = o.TTL.Truncate(time.Millisecond)
	if o.Attempts == 0 {
		o.Attempts = math.MaxInt
	}
	if o.Retry == 0 {
		o.Retry = 250 * time.Millisecond
	}
	if o.Drift == 0 {
		o.Drift = 0.01
	}
	if o.Holders == 0 {
		o.Holders = 1
	}
}

// validate checks options that were filled.
func (o *Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("lock: Options."+format, args...)) }
	if o.TTL < minTTL {
		bad("TTL is %v, must be at least %v", o.TTL, minTTL)
	}
	if o.TTL > store.MaxTTL {
		bad("TTL is %v, must be at most %v", o.TTL, store.MaxTTL)
	}
	if o.Wait < 0 {
		bad("Wait is %v, must not be negative", o.Wait)
	}
	if o.Attempts < 0 {
		bad("Attempts is %d, must not be negative", o.Attempts)
	}
	if o.Retry < time.Millisecond {
		bad("Retry is %v, must be at least 1ms", o.Retry)
	}
	if !(o.Drift > 0 && o.Drift < 0.5) {
		bad("Drift is %v, must be between 0 and 0.5", o.Drift)
	}
	if o.Holders < 1 || o.Holders > maxHolders {
		bad("Holders is %d, must be between 1 and %d", o.Holders, maxHolders)
	}
	return errors.Join(errs...)
}

// checkBackends returns all that is wrong with a Locker's backends.
func checkBackends(o *Options, backends []Backend) error {
	var errs []error
	if n := len(backends); n == 0 {
		errs = append(errs, errors.New("lock: New: no backend"))
	} else if n%2 == 0 {
		errs = append(errs, fmt.Errorf("lock: New: %d backends: a quorum of an even number outlives no more failures than one of %d (use an odd number)", n, n-1))
	}
	if n := len(backends); o.Holders > 1 && n > 1 {
		errs = append(errs, fmt.Errorf("lock: Options.Holders is %d with %d backends: a semaphore needs a single backend, as %d holders could each have a majority of %d", o.Holders, n, n*o.Holders/(n/2+1), n/2+1))
	}
	for i, b := range backends {
		switch b := b.(type) {
		case nil:
			errs = append(errs, fmt.Errorf("lock: New: backend %d is nil", i))
			continue
		case broken:
			errs = append(errs, b)
			continue
		case plain:
			if o.Holders > 1 {
				errs = append(errs, errOneHolder)
			}
		}
		for j := range i {
			if same(backends[j], b) {
				errs = append(errs, fmt.Errorf("%w: backends %d and %d of New", ErrSameServer, j, i))
			}
		}
	}
	return errors.Join(errs...)
}

// same reports whether two backends are one. Those that can't be compared differ.
func same(a, b Backend) (equal bool) {
	defer func() {
		if recover() != nil {
			equal = false
		}
	}()
	return a == b
}

// drift is how much earlier than the backend's the holder's own time ends.
func (o *Options) drift(ttl time.Duration) time.Duration {
	return time.Duration(float64(ttl)*o.Drift) + driftBase
}

// voteTimeout bounds each call to a backend.
func (o *Options) voteTimeout(backends int) time.Duration {
	if backends == 1 {
		return max(o.TTL/2, minTTL)
	}
	return min(max(o.TTL/10, minTTL), time.Second)
}
