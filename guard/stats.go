package guard

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// Stats counts calls and events of a guard in this process since it was made. Each number is
// consistent by itself.
type Stats struct {
	NearHits  uint64 // served from the near cache
	StoreHits uint64 // served from the store, fresh
	Stale     uint64 // served stale
	Fetched   uint64 // served by a fetch of the call's own
	Waited    uint64 // served by another caller's fetch, here or in another process

	FetchedUnguarded uint64 // the part of Fetched that was fetched without a lease
	WaitedUnguarded  uint64 // the part of Waited that was fetched without a lease

	Fetching int // fetches under way now, in this process; one for several keys counts once
	Waiting  int // calls that wait for a fetch now, their own or another's; each key counts

	Leases struct { // answers of the store to requests for a lease
		Granted     uint64
		TakenOver   uint64 // granted, from a holder that died
		Held        uint64 // by another flight; counted each time a waiter asks
		Entry       uint64 // an entry was stored meanwhile
		Failed      uint64 // the fetch that the flight waited for has failed
		Paused      uint64
		Quarantined uint64
	}

	Fetches      uint64 // fetches begun in this process
	FetchErrors  uint64 // those of them that failed
	NotFound     uint64 // those of them that answered ErrNotFound
	NotModified  uint64 // those of them that answered ErrNotModified
	Refreshes    uint64 // background flights begun, in this process
	Unguarded    uint64 // fetches without a lease, as the store was away
	FillsRefused uint64 // outcomes that could not be stored: their lease was gone, or the store full
	Invalidated  uint64 // those of them that carry a tag which was deleted meanwhile
	TooLarge     uint64 // values over Policy.MaxBytes
	LeasesLost   uint64
	Takeovers    uint64 // leases taken over from holders that died
	Damaged      uint64 // entries that could not be read
	Unread       uint64 // flights that asked for the lease without reading first, in a row of misses
	Misled       uint64 // those of them that found the key stored

	Errors struct { // of calls
		NotFound, Fetch, Remote, Panic, FetchTimeout, WaitTimeout uint64
		Quarantined, Unavailable, Closed, Context, Other          uint64
		Exhausted                                                 uint64
	}

	BudgetWaits   uint64      // fetches that waited for their budget
	BudgetRefused uint64      // fetches that were not made, for want of a budget
	Budget        BudgetState // its last known state; other guards may share it

	NearLive      bool   // the near cache is in use: there is one, and this process hears of all invalidations
	NearEntries   int    // in the near cache now, about
	NearEvictions uint64 // by its bounds
	NearBypasses  uint64 // lookups while invalidations might have been missed

	ReserveHits    uint64 // served from the reserve, as the store was away
	ReserveEntries int    // in the reserve now
	ReserveBytes   int    // that they take up, about

	Queued       int           // invalidations that Redis has not acknowledged
	FetchTimeout time.Duration // of the policy

	// InFlight lists the flights that are under way.
	InFlight []Flight
}

// statsOf is a snapshot of an engine.
func statsOf(e *engine) Stats {
	c := &e.events.counters
	s := Stats{
		StoreHits: c.storeHits.Load(), Stale: c.stale.Load(), Fetched: c.fetched.Load(), Waited: c.waited.Load(),
		Fetches: c.fetches.Load(), FetchErrors: c.fetchErrors.Load(), NotFound: c.notFound.Load(), NotModified: c.notModified.Load(), Refreshes: c.refreshes.Load(),
		Unguarded: c.unguarded.Load(), FillsRefused: c.fillsRefused.Load(), Invalidated: c.invalidated.Load(), TooLarge: c.tooLarge.Load(),
		LeasesLost: c.leasesLost.Load(), Takeovers: c.takeovers.Load(), Damaged: c.damaged.Load(),
		Unread: c.unread.Load(), Misled: c.misled.Load(),
		BudgetWaits: c.budgetWaits.Load(), BudgetRefused: c.budgetRefused.Load(),
	}
	s.FetchTimeout = e.policy.FetchTimeout
	s.FetchedUnguarded, s.WaitedUnguarded = c.fetchedUnguarded.Load(), c.waitedUnguarded.Load()
	s.Fetching, s.Waiting = int(c.fetching.Load()), int(c.waiting.Load())
	s.Leases.Granted, s.Leases.TakenOver, s.Leases.Held = c.leases[store.Granted].Load(), c.takenOver.Load(), c.leases[store.Held].Load()
	s.Leases.Entry, s.Leases.Failed, s.Leases.Paused = c.leases[store.HasEntry].Load(), c.leases[store.Failed].Load(), c.leases[store.Paused].Load()
	s.Leases.Quarantined = c.leases[store.Quarantined].Load()
	s.Errors.NotFound, s.Errors.Fetch, s.Errors.Remote = c.errNotFound.Load(), c.errFetch.Load(), c.errRemote.Load()
	s.Errors.Panic, s.Errors.FetchTimeout, s.Errors.WaitTimeout = c.errPanic.Load(), c.errFetchTimeout.Load(), c.errWaitTimeout.Load()
	s.Errors.Quarantined, s.Errors.Unavailable, s.Errors.Closed = c.errQuarantined.Load(), c.errUnavailable.Load(), c.errClosed.Load()
	s.Errors.Context, s.Errors.Other, s.Errors.Exhausted = c.errContext.Load(), c.errOther.Load(), c.errExhausted.Load()
	if e.policy.Budget != nil {
		s.Budget = e.policy.Budget.Known()
	}
	if e.near != nil {
		s.NearLive = e.coherence.feed.Epoch() != 0
		s.NearBypasses = e.near.bypasses.Load()
		s.NearHits = e.near.hits.sum()
		s.NearEvictions = e.near.evictions.Load()
		s.NearEntries = e.near.values.EstimatedSize()
	}
	s.Queued = int(e.backlog.left.Load())
	if e.reserve != nil {
		s.ReserveHits = e.reserve.hits.Load()
		s.ReserveEntries, s.ReserveBytes = e.reserve.size()
	}
	return s
}

type counters struct {
	storeHits, stale, fetched, waited                                   atomic.Uint64
	fetches, fetchErrors, notFound, notModified, refreshes, unguarded   atomic.Uint64
	fillsRefused, invalidated, tooLarge, leasesLost, takeovers, damaged atomic.Uint64
	errNotFound, errFetch, errRemote, errPanic                          atomic.Uint64
	errFetchTimeout, errWaitTimeout, errQuarantined                     atomic.Uint64
	errUnavailable, errClosed, errContext, errOther                     atomic.Uint64
	errExhausted, budgetWaits, budgetRefused                            atomic.Uint64
	unread, misled                                                      atomic.Uint64
	fetchedUnguarded, waitedUnguarded                                   atomic.Uint64
	fetching, waiting                                                   atomic.Int64 // now
	leases                                                              [store.Quarantined + 1]atomic.Uint64
	takenOver                                                           atomic.Uint64
}

// granted counts a grant.
func (c *counters) granted(takenOver bool) {
	if takenOver {
		c.takenOver.Add(1)
	} else {
		c.leases[store.Granted].Add(1)
	}
}

// event counts an event that an Observer receives.
func (c *counters) event(kind cache.EventKind) {
	switch kind {
	case cache.FetchStarted:
		c.fetches.Add(1)
	case cache.FetchFailed:
		c.fetchErrors.Add(1)
	case cache.FetchNotFound:
		c.notFound.Add(1)
	case cache.FetchNotModified:
		c.notModified.Add(1)
	case cache.Unguarded:
		c.unguarded.Add(1)
	case cache.FillRefused:
		c.fillsRefused.Add(1)
	case cache.FillTooLarge:
		c.tooLarge.Add(1)
	case cache.LeaseLost:
		c.leasesLost.Add(1)
	case cache.LeaseTakenOver:
		c.takeovers.Add(1)
	case cache.BudgetWaited:
		c.budgetWaits.Add(1)
	case cache.BudgetExhausted:
		c.budgetRefused.Add(1)
	case cache.EntryDamaged:
		c.damaged.Add(1)
	}
}

// served counts the end of one call.
func (c *counters) served(o *outcome, ended bool) {
	switch {
	case o.err != nil:
		c.failed(o, ended)
	case o.source == FromReserve: // the reserve counts its own
	case o.source == FromStore:
		c.storeHits.Add(1)
	case o.source == Stale:
		c.stale.Add(1)
	case o.source == Waited, o.shared:
		c.waited.Add(1)
		if o.source == UnguardedFetch {
			c.waitedUnguarded.Add(1)
		}
	default:
		c.fetched.Add(1)
		if o.source == UnguardedFetch {
			c.fetchedUnguarded.Add(1)
		}
	}
}

// failed counts an error of a call; ended: the context of its caller is over.
func (c *counters) failed(o *outcome, ended bool) {
	err := o.err
	var remote *RemoteError
	var panicked *PanicError
	var exhausted *ExhaustedError
	counter := &c.errFetch
	switch {
	case ended:
		counter = &c.errContext
	case errors.Is(err, ErrNotFound):
		counter = &c.errNotFound
	case errors.As(err, &exhausted):
		counter = &c.errExhausted
	case errors.As(err, &remote):
		counter = &c.errRemote
	case errors.As(err, &panicked):
		counter = &c.errPanic
	case errors.Is(err, ErrFetchTimeout):
		counter = &c.errFetchTimeout
	case !o.own: // the errors below would be those of another guard
	case errors.Is(err, ErrWaitTimeout):
		counter = &c.errWaitTimeout
	case errors.Is(err, ErrQuarantined):
		counter = &c.errQuarantined
	case errors.Is(err, ErrUnavailable):
		counter = &c.errUnavailable
	case errors.Is(err, ErrClosed):
		counter = &c.errClosed
	case errors.Is(err, ErrReentrant):
		counter = &c.errOther
	}
	counter.Add(1)
}
