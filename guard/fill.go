package guard

import (
	"slices"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A Fill tells a fetch of [Guard.Load] about its key, and takes the terms of the fetched
// value until the fetch returns. It belongs to one fetch and is not safe for concurrent
// use.
type Fill[V any] struct {
	// Key is the key that is fetched.
	Key string
	// Stale is the last value, for a conditional request: return ErrNotModified if it is
	// still good. It is nil unless Policy.Stale, StaleIfError or an Expire keeps values
	// past their TTL. It is also nil if the value lacks one of Policy.Tags. Stale may be
	// shared: treat it as read-only.
	Stale *V
	// Attempt counts the fleet's attempts to fetch this key since its last outcome, from 1.
	// Above 1, an earlier holder died, lost its lease to a Delete or Expire, or its answer
	// was lost. Without a lease it is 1.
	Attempt int
	// IdempotencyKey is unique to this attempt: the lease token in hexadecimal, or as many
	// random digits without a lease. An upstream that gets it can recognise a duplicate.
	IdempotencyKey string

	// TTL is how long the value will be fresh; preset from the policy. A TTL of zero or
	// less hands the value to the callers that wait now, and stores nothing for later
	// ones. Waiters in other processes then get it only if it is small (64 KiB) and
	// carries no tags.
	TTL time.Duration
	// StaleFor is how long the value may be served stale after that; preset from
	// the policy's Stale. Off forbids it, also when a fetch fails.
	StaleFor time.Duration
	// StaleUse restricts the use of the value in that time; preset to ServeStale.
	StaleUse StaleUse
	// Private keeps the value for the caller that fetched it. For Policy.Bypass, all
	// callers of the key then fetch for themselves, side by side. Their fetches find
	// Private preset to true, and TTL to the rest of that time, or to zero if that is
	// unknown. Private also applies to the stale value of ErrNotModified, and to
	// ErrNotFound, which is not cached then. All other errors are shared.
	Private bool
	// Tags name groups of values that [Guard.DeleteTag] deletes together. Preset from the
	// policy; append to them. The fetch has failed if there are more than 16, or one has
	// not 1 to 256 bytes. Tags also apply to ErrNotFound. With ErrNotModified the value
	// keeps exactly the tags that it has; the fetch has failed if Tags holds another one.
	// To change a value's tags, return the value.
	Tags []string

	// Cost is the cost of the fetch in units of the policy's Budget; preset to the
	// estimate that was spent before it, [Policy.Cost]. When the fetch returns, the
	// difference is refunded, or owed. Less than 0 counts as 0.
	Cost int

	lease *store.Lease // nil: none
}

// Lost is closed when the store has learned that the fetch's lease is gone: it expired, was
// taken over, or ended by a Set, Delete or Expire. The result of the fetch is not stored
// then, and another process may fetch the key already. The fetch goes on while callers wait
// for its result. A fetch that changes something elsewhere should look here first. Without a
// lease the channel is nil: nothing keeps other fetches away. News of a loss may come late;
// for a promise take package lock.
func (fl *Fill[V]) Lost() <-chan struct{} {
	if fl.lease == nil {
		return nil
	}
	return fl.lease.Lost()
}

// StaleUse restricts the use of a value after its TTL, while [Fill.StaleFor] keeps it.
type StaleUse byte

const (
	// ServeStale: it is served while it is refreshed, and replaces errors.
	ServeStale StaleUse = iota
	// OnlyIfError: it replaces errors, for callers that waited, if the policy has
	// StaleIfError.
	OnlyIfError
	// OnlyValidate: it is not served. The next fetch gets it ([Fill.Stale]) for a
	// conditional request. It is then kept even with a TTL of zero or less.
	OnlyValidate
)

// flags is how the use stands in an entry's header.
func (u StaleUse) flags() store.Flags {
	switch u {
	case OnlyIfError:
		return store.FlagIfError
	case OnlyValidate:
		return store.FlagKept
	}
	return 0
}

// fillOf is the typed form of a fill.
func fillOf[V any](f *fill) *Fill[V] {
	fl := &Fill[V]{
		Key: f.key, Attempt: f.attempt, IdempotencyKey: f.token.String(),
		TTL: f.ttl, StaleFor: f.staleFor, StaleUse: f.staleUse, Private: f.private, Cost: f.cost,
		Tags: slices.Clone(f.tags), lease: f.lease,
	}
	fl.Stale, _ = f.stale.(*V)
	return fl
}

// into copies the terms that the fetch has set.
func (fl *Fill[V]) into(f *fill) {
	f.ttl, f.staleFor, f.staleUse, f.private, f.cost, f.tags = fl.TTL, fl.StaleFor, fl.StaleUse, fl.Private, fl.Cost, fl.Tags
}

// A CallOption changes one call.
type CallOption struct{ maxAge time.Duration }

// MaxAge accepts no stored value that is older than d, counted from when it was stored,
// and no fetch that another caller finished before this call began. MaxAge(0) always
// fetches, once for all callers in the fleet that ask so at the same time. The other
// callers are served the stored value meanwhile. A stale value never stands in for an
// error of such a call. While a pause lasts ([RetryAfter], Policy.ErrorPause) nothing is
// fetched: the error is then that of the fetch before, and [PauseOf] tells for how long.
func MaxAge(d time.Duration) CallOption { return CallOption{maxAge: max(d, 0)} }

func maxAgeOf(opts []CallOption) time.Duration {
	if len(opts) == 0 {
		return anyAge
	}
	return opts[len(opts)-1].maxAge
}

// A fill is a Fill without its type, with the fetch's answer for the key.
type fill struct {
	key       string
	stale     any   // decoded
	staleRead *read // of it; nil: none
	attempt   int
	token     store.Token  // the lease's, or a random one
	lease     *store.Lease // nil: none
	trigger   string       // of the fetch
	flight    *flight      // nil: the fetch is for one caller alone

	ttl, staleFor time.Duration
	staleUse      StaleUse
	private       bool
	tags          []string
	cost          int

	value any
	err   error
	entry *store.Entry // of the value; nil: it is private, or there is none
	took  time.Duration

	packed store.Entry // the memory of entry
}

// Source says where a value came from.
type Source byte

const (
	// FromStore: stored and fresh.
	FromStore Source = iota + 1
	// Fetched: by this call.
	Fetched
	// Waited: fetched by another caller, here or in another process, while this
	// one waited.
	Waited
	// Stale: stored, no longer fresh, and served all the same.
	Stale
	// FromNear: kept in this process, and fresh.
	FromNear
	// UnguardedFetch: fetched without a lease, as Redis was away.
	UnguardedFetch
	// FromReserve: kept in this process, as Redis does not answer. See [Reserve].
	FromReserve
)

func (s Source) String() string {
	switch s {
	case FromStore:
		return "store"
	case FromNear:
		return "near"
	case FromReserve:
		return "reserve"
	case Fetched:
		return "fetched"
	case Waited:
		return "waited"
	case Stale:
		return "stale"
	case UnguardedFetch:
		return "unguarded"
	}
	return "unknown"
}

// A Result is a value and where it comes from.
type Result[V any] struct {
	Value  V
	Source Source
	Age    time.Duration // since it was stored; 0 for one just fetched
	TTL    time.Duration // how long it is still fresh; 0 if it is stale
	Stored bool          // whether the store has it
}

// anyAge is the maxAge of a call that leaves the age to the policy.
const anyAge = -1
