package guard

import (
	"slices"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A Fill is what a fetch is told by [Guard.Load], and what it may say about its
// value before it returns. It belongs to that fetch alone.
type Fill[V any] struct {
	// Key is the key that is fetched.
	Key string
	// Stale is the last value, if there is one, for a conditional request: answer
	// ErrNotModified if it is still good. There is one only where something keeps
	// it past its TTL: Stale, StaleIfError, or an Expire by hand. A value that lacks
	// one of Policy.Tags is not given, so that the fetch brings one that carries it.
	// Stale may be shared: treat it as read-only.
	Stale *V
	// Attempt counts the attempts to fetch this key since its last outcome,
	// fleet-wide, from 1. Above 1, a holder before this one died, or lost its lease
	// to a Delete or Expire, or its answer was lost. Without a lease it is 1.
	Attempt int
	// IdempotencyKey is unique to this attempt: the lease token in hexadecimal, or
	// as many random digits where there is no lease.
	// An upstream that is given it can tell a duplicate.
	IdempotencyKey string

	// TTL is how long the value will be fresh; preset from the policy. Zero or
	// less hands the value to those who wait for it now, and to nobody later; in
	// other processes only if it is small (64 KiB) and carries no tags.
	TTL time.Duration
	// StaleFor is how long the value may be served stale after that; preset from
	// the policy's Stale. Off forbids it, also when a fetch fails.
	StaleFor time.Duration
	// StaleUse says what else the value may be used for in that time, if not for
	// everything: preset to ServeStale.
	StaleUse StaleUse
	// Private keeps the value for the caller that fetched it. For Policy.Bypass,
	// all callers of the key then fetch for themselves, side by side; their fetches
	// find it preset to true, and TTL to what is left of that time; to zero where
	// that isn't known. So it is with ErrNotModified, for the stale value, and with
	// ErrNotFound, which isn't cached then. Any other error is for all who wait.
	Private bool
	// Tags are what the value can be deleted by, together with all others that
	// carry the tag: [Guard.DeleteTag]. Preset from the policy; append to them. At
	// most 16, of 1 to 256 bytes each, or the fetch has failed. They also go with
	// ErrNotFound. With ErrNotModified the value keeps exactly the tags that it has,
	// those of Policy.TagsOf included; the fetch has failed if Tags holds one that the
	// value does not carry. To change a value's tags, return the value.
	Tags []string

	// Cost is what the fetch costs the policy's Budget; preset to what was spent
	// before it, [Policy.Cost]. What it says when the fetch returns is settled: the
	// difference is refunded, or owed. Less than 0 counts as 0.
	Cost int
}

// StaleUse says what a value is good for in the time that [Fill.StaleFor] keeps
// it past its TTL.
type StaleUse byte

const (
	// ServeStale: it is served while it is refreshed, and stands in for errors.
	ServeStale StaleUse = iota
	// OnlyIfError: it stands in for errors, for callers who waited, if the policy
	// has StaleIfError.
	OnlyIfError
	// OnlyValidate: nobody gets it. The next fetch is told ([Fill.Stale]), for a
	// conditional request. A TTL of zero or less is then no reason not to keep it.
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

// fillOf is the typed form of what a fetch is told.
func fillOf[V any](f *fill) *Fill[V] {
	fl := &Fill[V]{
		Key: f.key, Attempt: f.attempt, IdempotencyKey: f.token.String(),
		TTL: f.ttl, StaleFor: f.staleFor, StaleUse: f.staleUse, Private: f.private, Cost: f.cost,
		Tags: slices.Clone(f.tags),
	}
	fl.Stale, _ = f.stale.(*V)
	return fl
}

// into notes what the fetch said of its value.
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

// A fill is what a fetch is told about one key and what it answers: Fill without its
// type.
type fill struct {
	key       string
	stale     any   // decoded
	staleRead *read // of it; nil: none
	attempt   int
	token     store.Token // the lease's, or a random one
	leased    bool
	trigger   string  // of the fetch
	flight    *flight // nil: the fetch is for one caller alone

	ttl, staleFor time.Duration
	staleUse      StaleUse
	private       bool
	tags          []string
	cost          int

	value any
	err   error
	entry *store.Entry // of the value; nil: it is private, or there is none
	took  time.Duration
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
)

func (s Source) String() string {
	switch s {
	case FromStore:
		return "store"
	case FromNear:
		return "near"
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
