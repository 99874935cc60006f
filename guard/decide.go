package guard

import (
	"math"
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

// dueAt is the age from which a fresh value is refreshed in the background.
//
// It is XFetch (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache
// Stampede Prevention, PVLDB 8(8), 2015) with two changes. XFetch draws for
// each request, so that the earliest of many draws decides, and the more
// requests there are the earlier that is; here one draw is made for each version
// of a value, the same in every process, from the version itself. And XFetch may
// draw less than a fetch takes, so that some callers wait; here the refresh
// starts early enough to be done in time, by the fetch time that was measured:
//
//	gap = took * beta * (1.1 + Exp(1)/2)
//
// The lease decides which process refreshes.
func dueAt(e *store.Entry, beta float64) time.Duration {
	if beta <= 0 || e.Took <= 0 {
		return e.FreshFor
	}
	// FNV-1a over the version, its high bits as a number from 0 (not included) to 1.
	h := uint64(14695981039346656037)
	for _, b := range e.Version {
		h = (h ^ uint64(b)) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd // the finalizer of MurmurHash3: FNV's high bits vary little
	h ^= h >> 33
	u := (float64(h>>11) + 1) / (1 << 53)
	gap := float64(e.Took) * beta * (1.1 - math.Log(u)/2)
	// At most half of the time a value is fresh: a fetch slower than its TTL
	// would otherwise be repeated without end.
	return e.FreshFor - time.Duration(min(gap, float64(e.FreshFor)/2))
}

// due reports whether a fresh reading is to be refreshed. Most are not by far,
// which needs no logarithm: the gap is half of the fresh time at most.
func due(r *store.Reading, beta float64) bool {
	return r.Age >= r.Entry.FreshFor/2 && r.Age >= dueAt(&r.Entry, beta)
}

// A waiting flight is woken by its holder's outcome. It also looks at the holder from time to
// time, as the holder may die and wake-ups may get lost. The looks of a fleet cost Redis the
// same however many processes wait: each process looks the less often the more there are
// (docs/scaling.md).
const (
	// fleetLookEvery is the mean time between two looks of a fleet at one holder.
	fleetLookEvery = 50 * time.Millisecond
	// lookEvery is the shortest mean time between two looks of one process.
	lookEvery = 250 * time.Millisecond
	// lateLook is the pause before the first look if callers have come since the wait began:
	// they can have the outcome of a holder that was seen after they came.
	lateLook = 50 * time.Millisecond
	// noLookBefore: most fetches are over by then.
	noLookBefore = 100 * time.Millisecond
	// secondLook is the pause after a look that found the holder unwatched, as a slot that has
	// just moved looks the same once.
	secondLook = 50 * time.Millisecond
)

// lookAfter is how long a flight waits before it looks at its holder, where so many processes
// wait. draw is uniform in [0, 1). The first looks of a fleet are spread over the time in which
// each process looks once, as processes begin to wait at the same moment. Few processes look
// again at the end of the lease, of which so much is left. Of many, one is soon due anyway.
func lookAfter(waiting int, first bool, left time.Duration, draw float64) time.Duration {
	every := max(lookEvery, time.Duration(waiting)*fleetLookEvery)
	spread := func(d time.Duration) time.Duration { return time.Duration(draw * float64(d)) }
	d := every*3/4 + spread(every/2)
	if first {
		d = noLookBefore + spread(every)
	}
	if every > lookEvery {
		return d
	}
	return min(d, left+time.Millisecond)
}
