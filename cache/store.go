package cache

import (
	"context"
	"sync"
	"time"
)

// A Store keeps entries and leases and wakes those who wait. [NewRedis] and
// [NewMemory] make one; package cachetest has the suite an implementation must
// pass. All methods are safe for concurrent use.
//
// Errors are sorted: [ErrUnavailable] when no answer came, [ErrRefused] when
// the store answered that it won't, [ErrClosed] after Close. A miss is no
// error. Every call returns soon after its context ends.
type Store interface {
	// Read returns what is stored under key. The command it rests on is sent
	// after Read was called, never before: concurrent calls may share one, but
	// none gets an answer older than itself.
	Read(ctx context.Context, key string) (*Reading, error)

	// Acquire asks for key's lease, with a new token each time. A grant is
	// renewed by the store until it is given back by Fill, Fail or Release, is
	// lost, or Ask.RenewFor has passed.
	Acquire(ctx context.Context, key string, ask Ask) (Answer, error)

	// Fill stores the lease's outcome and gives the lease back, both or neither:
	// it answers false, and changes nothing, when the lease is gone. It sets
	// e.Version. After an error the store no longer counts the lease as held. If no
	// answer came (ErrUnavailable), it may go on giving the lease back while that may
	// live, and so the entry may be stored yet. The same goes for Fail, Decline and
	// Release.
	//
	// An entry with tags has e.Stamp from before its fetch started. It isn't stored
	// if one of them was deleted since (ErrInvalidated; the lease is released), and
	// is marked with FlagExpired if one was expired.
	Fill(ctx context.Context, l *Lease, e *Entry) (bool, error)

	// Fail gives the lease back without an outcome, tells the waiters why, and clears
	// the record of failed attempts. With a pause above zero nobody is granted a lease of the key until it has
	// passed, and the failure counts as one in a row (Lease.Failures) until a Fill,
	// Set or Reset, or for a while after the pause. It answers false, and changes
	// nothing, when the lease is gone.
	Fail(ctx context.Context, l *Lease, failure []byte, pause time.Duration) (bool, error)

	// Decline is Fail for a fetch that was not made: of the failed attempts on record it
	// strikes its own alone, so that it forgives no deaths.
	Decline(ctx context.Context, l *Lease, failure []byte, pause time.Duration) (bool, error)

	// Release gives the lease back without any outcome: the next caller fetches.
	Release(ctx context.Context, l *Lease) error

	// ReadMany is Read for prefix+key of each of the keys, with as few round trips
	// as the store can. It calls each for every key, by its place in keys, in any
	// order and one after the other, before it returns. The reading is only lent to
	// each: Keep makes one to keep.
	ReadMany(ctx context.Context, prefix string, keys []string, each func(i int, r *Reading, err error))

	// AcquireMany is Acquire for each of the requests, which name different keys,
	// and answers in their order.
	AcquireMany(ctx context.Context, requests []Request) []Acquired

	// ReturnMany is Fill, Fail, Decline or Release for each of the leases, and answers in
	// their order.
	ReturnMany(ctx context.Context, returns []Return) []Returned

	// Set stores an entry that no lease produced, ends any lease, and clears
	// the record of failed attempts. It sets e.Version, and e.Stamp if there are
	// tags.
	Set(ctx context.Context, key string, e *Entry) error

	// Delete removes the entry and ends any lease. A pause and the record of
	// failed attempts stay: invalidating a key does not forgive it.
	Delete(ctx context.Context, key string) error

	// Expire marks the entry stale, keeping its value, and ends any lease.
	Expire(ctx context.Context, key string) error

	// Reset is the operator's: it ends a quarantine and a pause.
	Reset(ctx context.Context, key string) error

	// Stamp reads the clock that every DeleteTag and ExpireTag advances. The command
	// it rests on is sent after Stamp was called.
	Stamp(ctx context.Context) (Stamp, error)

	// DeleteTag makes all entries invalid that carry one of the tags: for Read and
	// Acquire nothing is stored where they are, but for Reading.Seen. Of entries
	// that are filled later those are not stored whose stamp is from before the
	// call. It ends no lease. No tags are no error. An error names the tags it is
	// about.
	DeleteTag(ctx context.Context, tags ...string) error

	// ExpireTag marks all entries stale that carry one of the tags, as DeleteTag
	// deletes them.
	ExpireTag(ctx context.Context, tags ...string) error

	// Watch subscribes to key's wake-ups. It returns at once; a Confirmed
	// message says when the subscription is live, and again each time it had
	// been lost. It never fails: where nothing can be subscribed to, nothing
	// arrives, and the caller's poll has to do.
	Watch(key string) *Watch

	// Follow calls forget for each Set, Delete and Expire of a key and for each tag
	// of a DeleteTag and ExpireTag, by any process, as soon as it is heard of: once or
	// more, from the store's own goroutines or in the call that makes the change, so it
	// must be quick, and must not call the store. The feed says whether all of them are
	// heard of.
	Follow(forget func(Invalidation)) *Feed

	// Close gives back the leases it holds and ends all its goroutines. Calls
	// made later return ErrClosed.
	Close() error
}

// An Ask is a request for a lease.
type Ask struct {
	// Seen is Reading.Seen of the entry the caller read, empty if it read none.
	// If something else is stored by now, the answer is HasEntry.
	Seen string
	// LastHeld is the holder of the last answer Held, so that its failure is
	// told even if the wake-up was missed.
	LastHeld Token
	// Suspect is a holder that looked unwatched 50 ms ago or longer. If it still
	// does, its lease is taken over.
	Suspect Token
	// Once has a store that would ask again, where no answer came, return the error
	// instead: the caller has other means.
	Once bool

	TTL         time.Duration // of the lease, renewed every third of it; at least 1 ms
	RenewFor    time.Duration // renewal ends after this, the lease with it
	MaxAttempts int           // so many dead processes quarantine the key; 0 never does
	Window      time.Duration // how long an attempt is remembered; above RenewFor + TTL
}

// Verdict is the kind of an [Answer].
type Verdict byte

const (
	Granted     Verdict = iota + 1 // the caller holds the lease
	Held                           // somebody else holds it
	HasEntry                       // an entry is stored that the caller had not seen
	Failed                         // the fetch of Ask.LastHeld failed
	Paused                         // nobody may fetch for now
	Quarantined                    // too many holders died fetching this key
)

func (v Verdict) String() string {
	switch v {
	case Granted:
		return "granted"
	case Held:
		return "held"
	case HasEntry:
		return "entry"
	case Failed:
		return "failed"
	case Paused:
		return "paused"
	case Quarantined:
		return "quarantined"
	}
	return "unknown verdict"
}

// An Answer is what became of an [Ask].
type Answer struct {
	Verdict Verdict

	Lease *Lease // Granted

	Holder    Token // Held: whose lease it is
	Unwatched bool  // Held: its process was watched at the grant, and nobody sees it now

	// Held: until the lease ends; Paused, Quarantined: until that ends.
	TTL time.Duration

	Failure []byte   // Failed, Paused: as given to Fail
	Reading *Reading // HasEntry
}

// A Lease is the right to fetch one key, as granted. It is given back once, by
// Fill, Fail or Release of the store that granted it.
type Lease struct {
	Key       string
	Token     Token
	TakenOver bool // from a holder that died
	Attempt   int  // 1 for the first attempt since the last outcome, fleet-wide
	Failures  int  // failures in a row, fleet-wide, that asked for a pause

	names *nameWords // of Key, where there is a use for them

	mu     sync.Mutex
	isLost bool
	lost   chan struct{}
	onLost func()
}

// NewLease returns a lease, for authors of stores.
func NewLease(key string, token Token) *Lease {
	return &Lease{Key: key, Token: token, lost: make(chan struct{})}
}

// Lost is closed when the store learns that the lease is gone while it should
// still be held: it expired, was taken over, or ended by Set, Delete or Expire.
// News of it may come late; only the answer of Fill and Fail is certain.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// IsLost reports whether Lost is closed.
func (l *Lease) IsLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isLost
}

// OnLost has f called when Lost is closed, on a goroutine of its own.
func (l *Lease) OnLost(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isLost {
		go f()
		return
	}
	l.onLost = f
}

// Lose closes Lost, for authors of stores. It may be called again.
func (l *Lease) Lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isLost {
		return
	}
	l.isLost = true
	close(l.lost)
	if l.onLost != nil {
		go l.onLost()
	}
}
