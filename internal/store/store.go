package store

import (
	"context"
	"time"
)

// A Store keeps entries and leases and wakes waiters. All methods are safe for
// concurrent use, return soon after their context ends, and name keys as users do.
//
// Errors are sorted: [ErrUnavailable] if no answer came, [ErrRefused] if the store
// answered that it won't, [ErrClosed] after Close. A miss is no error.
type Store interface {
	// Read asks for the entry under prefix+key and returns at once. r is told when the command is
	// sent, and gets the answer, maybe before Read returns; after the store's timeout at the
	// latest. Of ctx it uses the values only.
	Read(ctx context.Context, prefix, key string, r Reader)

	// ReadMany reads prefix+key for each of the keys, in as few round trips as it can. It
	// calls each once for every key, by its place in keys, in any order, one after the
	// other, before it returns. The reading is only lent: [Reading.Keep] copies it.
	ReadMany(ctx context.Context, prefix string, keys []string, each func(i int, r *Reading, err error))

	// Acquire asks for the leases of different keys, with a new token for each, and
	// answers in their order. A grant is renewed by the store until it is returned, is
	// lost, or Request.RenewFor has passed.
	Acquire(ctx context.Context, requests []Request) []Answer

	// Return gives leases back, each with its outcome or without one, and answers in their
	// order.
	Return(ctx context.Context, returns []Return) []Returned

	// Change carries out changes that no lease produced, and answers in their order. Two
	// changes of one key are carried out in the order given.
	Change(ctx context.Context, changes []Change) []error

	// Stamp reads the clock that every ChangeTags advances. The command is sent after Stamp
	// was called.
	Stamp(ctx context.Context) (Stamp, error)

	// ChangeTags makes all entries that carry one of the tags invalid (DeleteTag) or stale
	// (ExpireTag). An entry with a Stamp from before the call that is stored later is
	// refused, or marked as stale. No lease ends. No tags are no error; an error names the
	// tags that it is about.
	ChangeTags(ctx context.Context, what TagChange, tags []string) error

	// Watch subscribes to the wake-ups of a key. It returns at once and never fails: where
	// nothing can be subscribed to nothing arrives, and the caller polls.
	Watch(key string) *Watch

	// Follow calls forget for each change of a key and each changed tag, by any process, as
	// soon as it is heard of, once or more. The calls come from the store's goroutines and
	// from changes of this process: forget must be quick and must not call the store. The
	// feed tells whether all of them are heard.
	Follow(forget func(Invalidation)) *Feed

	// Close gives back the leases it holds and ends its goroutines. Later calls return
	// ErrClosed.
	Close() error
}

// A Reader waits for the entry that it has asked for. Its methods are called by the
// store's goroutines, which they must not hold up.
type Reader interface {
	// Sending is called before the command is sent. The answer may be older than a caller
	// that comes from now on. Where no command is sent it is not called.
	Sending()
	// Answered is called once.
	Answered(*Reading, error)
}

// A Holder has a Store. The public stores do, so that only packages of this module can
// use it.
type Holder interface{ Unwrap() Store }

// A Request asks for the lease of a key.
type Request struct {
	Key string
	// Seen is Reading.Seen of the entry that the caller read, empty if it read none. If
	// another entry is stored by now, the verdict is HasEntry.
	Seen string
	// LastHeld is the holder of the last answer Held, so that its failure is told even if
	// the wake-up was missed.
	LastHeld Token
	// Suspect is a holder that looked unwatched 50 ms ago or longer. If it still does, its
	// lease is taken over.
	Suspect Token
	// Brief says that the caller will ask again if the lease is held: of the answer Held it
	// needs no TTL if the holder is watched, and no more than the Holder without a LastHeld.
	// The rest may be zero.
	Brief bool
	// Once returns the error of an acquire that was not answered, instead of asking once
	// more: the caller has other means.
	Once bool

	TTL         time.Duration // of the lease, renewed every third of it; at least 1 ms
	RenewFor    time.Duration // the renewal ends after this, and the lease with it
	MaxAttempts int           // dead processes that quarantine the key; 0 never does
	Window      time.Duration // how long an attempt is remembered; above RenewFor plus TTL
}

// A Verdict is the kind of an [Answer].
type Verdict byte

const (
	Granted     Verdict = iota + 1 // the caller holds the lease
	Held                           // another holder has it
	HasEntry                       // an entry is stored that the caller has not seen
	Failed                         // the fetch of Request.LastHeld failed
	Paused                         // no process may fetch for now
	Quarantined                    // too many holders died fetching this key
)

func (v Verdict) String() string {
	names := [...]string{"no verdict", "granted", "held", "entry", "failed", "paused", "quarantined"}
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown verdict"
}

// An Answer is the answer to a [Request].
type Answer struct {
	Verdict Verdict
	Err     error // then there is no verdict

	Lease     *Lease        // Granted
	Holder    Token         // Held
	Unwatched bool          // Held: its process was watched at the grant, and is not now
	Waiting   int           // Held: processes that wait for the holder, as far as is known
	TTL       time.Duration // Held: left of the lease; Paused, Quarantined: left of that
	Failure   []byte        // Failed, Paused: as given to Return
	Reading   *Reading      // HasEntry
}

// A Return gives a lease back: with the entry to store, with a failure, or without any
// outcome, so that the next caller fetches. Nothing is stored, and no process is told,
// if the lease is gone.
//
// An entry with tags needs a Stamp from before its fetch. It is refused with
// [ErrInvalidated] if a tag was deleted since, and stored with FlagExpired if one was
// expired.
type Return struct {
	Lease *Lease

	Entry *Entry

	Failed   bool
	Failure  []byte        // told to the waiters
	Pause    time.Duration // no lease is granted for so long; counts the failures in a row (Lease.Failures)
	Declined bool          // no fetch was made: the failure forgives the key nothing

	Trace []byte // trace context of the fetch, told to the waiters first; nil: none
}

// Releases reports whether the lease is given back without an outcome.
func (r *Return) Releases() bool { return r.Entry == nil && !r.Failed }

// Returned is the answer to a [Return]. OK says that the lease was still held and
// everything was carried out; a release is OK whenever it was carried out.
type Returned struct {
	OK  bool
	Err error
}

// A ChangeKind selects the effect of a [Change].
type ChangeKind byte

const (
	// Set stores an entry, ends any lease, and forgives the key's attempts and failures.
	Set ChangeKind = iota + 1
	// Delete removes the entry and ends any lease. A pause and the attempts stay:
	// invalidating a key does not forgive it.
	Delete
	// Expire marks the entry stale, keeping its value, and ends any lease.
	Expire
	// Reset ends a quarantine and a pause.
	Reset
)

func (k ChangeKind) String() string {
	return [...]string{"no change", "set", "delete", "expire", "reset"}[k]
}

// A Change is one change of a key.
type Change struct {
	Kind  ChangeKind
	Key   string
	Entry *Entry // Set; the store draws its Version, and its Stamp if it carries tags
}

// A TagChange says what ChangeTags does.
type TagChange byte

const (
	DeleteTag TagChange = iota + 1
	ExpireTag
)

func (c TagChange) String() string {
	return [...]string{"no change", "delete_tag", "expire_tag"}[c]
}
