package guard

import (
	"math/rand/v2"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// This file holds the decisions, apart from everything that carries them out:
// pure functions of an entry, its age and the policy.

// An action is the next step for an entry that was read.
type action byte

const (
	serve      action = iota // fresh
	serveStale               // servable while it is refreshed
	notFound                 // known not to exist
	fetch                    // nothing usable: go for the lease
	fetchAlone               // the key's values may not be shared
	fetchLocal               // the key's values are too large to store: share in the process
)

// decide judges a reading.
//
// The header knows two bounds, fresh and hard. Between them lies the time a
// stale value may be served: first while it is refreshed, and in the last part
// of it, which is StaleIfError - Stale long, only when a fetch has failed.
func decide(r *store.Reading, p *Policy) action {
	if !r.Found {
		return fetch
	}
	fresh := r.Fresh()
	switch r.Entry.Kind {
	case store.Negative:
		if fresh {
			return notFound
		}
		return fetch
	case store.Bypass:
		switch {
		case !fresh:
			return fetch
		case r.Entry.Flags&store.FlagTooLarge != 0:
			return fetchLocal
		}
		return fetchAlone
	}
	if fresh {
		return serve
	}
	if staleAllowed(r) && servedStale(r, p) && r.Age < r.Entry.TTL-onlyIfError(p) {
		return serveStale
	}
	return fetch
}

// onlyIfError is the last part of a value's time, in which it may only stand in for
// an error.
func onlyIfError(p *Policy) time.Duration { return p.StaleIfError - p.Stale }

// servedStale reports whether there is another part, in which it is served without
// asking.
func servedStale(r *store.Reading, p *Policy) bool {
	return r.Entry.Flags&store.FlagIfError == 0 && r.Entry.TTL-r.Entry.FreshFor > onlyIfError(p)
}

// staleAllowed reports whether the entry's own terms leave any time to serve it
// stale. A value that is fresh to its very end may not be, even after an Expire. Nor may a
// value that never was fresh, which was for its waiters only, or one that is only kept to
// be validated.
func staleAllowed(r *store.Reading) bool {
	return r.Entry.FreshFor > 0 && r.Entry.TTL > r.Entry.FreshFor && r.Entry.Flags&store.FlagKept == 0
}

// servableIfError reports whether a reading may stand in for a fetch that
// failed, waited after it was read.
func servableIfError(r *store.Reading, waited time.Duration) bool {
	return r != nil && r.Found && r.Entry.Kind == store.Value && staleAllowed(r) && r.Left > waited
}

// livedOn is for how long callers can live on such a reading: where it may not stand
// in for the error (masks), only while it is served without asking. So is a fresh one
// that was due to be refreshed, for which there is time enough to end the pause.
func livedOn(r *store.Reading, waited time.Duration, masks bool, p *Policy) time.Duration {
	switch {
	case masks && staleAllowed(r):
		return r.Left - waited
	case staleAllowed(r) && servedStale(r, p):
		return max(0, r.Left-waited-onlyIfError(p))
	case r.Fresh():
		return max(0, r.Entry.FreshFor-r.Age-waited-holdOff)
	}
	return 0
}

// freshFor applies the jitter: uniform between ttl*(1-jitter) and ttl, in whole
// milliseconds, at least one.
func freshFor(ttl time.Duration, jitter float64) time.Duration {
	if jitter > 0 {
		ttl -= time.Duration(rand.Float64() * jitter * float64(ttl))
	}
	return max(ttl, time.Millisecond)
}

// errorPause doubles with each failure in a row before this one.
func errorPause(p *Policy, failures int) time.Duration {
	pause := p.ErrorPause
	for ; failures > 0 && pause < p.MaxErrorPause; failures-- {
		pause *= 2
	}
	return min(pause, p.MaxErrorPause)
}

// lifetime is a value's two bounds as they go into its header. A value that may
// be shared only with its waiters expires at once.
func lifetime(f *fill, p *Policy) (fresh, hard time.Duration) {
	if f.ttl <= 0 && f.staleUse == OnlyValidate && f.staleFor > 0 {
		return 0, min(max(f.staleFor, time.Millisecond), store.MaxTTL)
	}
	if f.ttl <= 0 {
		return 0, time.Millisecond
	}
	fresh = min(freshFor(f.ttl, p.Jitter), store.MaxTTL)
	if f.staleFor < 0 {
		return fresh, fresh
	}
	return fresh, min(fresh+min(f.staleFor, store.MaxTTL)+(p.StaleIfError-p.Stale), store.MaxTTL)
}

// holdOff keeps a refresh that brought nothing from being followed at once by the
// next: many callers are being served stale values meanwhile.
const holdOff = 250 * time.Millisecond
