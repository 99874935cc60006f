package store

import (
	"context"
	"errors"
	"time"
)

// LockMark starts the key of every lock. No guard's name can start with it, so that no
// lock meets an entry.
const LockMark = "!"

// ErrForeign means that a key of a lock holds a value that is no lock's.
var ErrForeign = errors.New("lock: a foreign value under a lock's key")

// Locks is a Store that grants locks, too. A lock has places, one or more, each for one
// holder, and beside them a fence, which rises with each grant, and a job: a record of
// attempts and of their outcome. The caller renews its lock; the store does not.
type Locks interface {
	// Lock carries out one operation. Its errors are those of a Store, or [ErrForeign]. After
	// an error of an AcquireLock the lock may have been granted all the same.
	Lock(ctx context.Context, op *LockOp) (LockAnswer, error)
	Watch(key string) *Watch
}

// A LockKind selects the change of a [LockOp].
type LockKind byte

const (
	AcquireLock LockKind = iota + 1
	ExtendLock
	ReleaseLock
	InspectLock
	// ForgetJob removes the job, unless an attempt of it runs.
	ForgetJob
)

func (k LockKind) String() string {
	return [...]string{"no operation", "lock", "extend", "unlock", "inspect", "forget"}[k]
}

// A LockOp is one operation on one lock.
type LockOp struct {
	Kind   LockKind
	Key    string // starts with LockMark
	ID     Token  // of the holder; AcquireLock: one that was never used before
	Places int
	TTL    time.Duration // AcquireLock, ExtendLock

	// AcquireLock: a holder that looked unwatched 50 ms ago or longer. If it still does, it
	// is replaced.
	Suspect Token
	// AcquireLock: the answer counts as a vote. It names the server, and a server that has
	// been up for less than TTL abstains: it may have forgotten a lock.
	Vote bool
	// ExtendLock: raises the fence to this, unless it is higher.
	Fence uint64

	// Keep is how long the job is remembered. Zero: the lock has no job. The attempts of a
	// lock with a single place are counted even so, until it is released.
	Keep        time.Duration
	MaxAttempts int     // AcquireLock, ReleaseLock: attempts that end the job; 0: any number
	Outcome     Outcome // ReleaseLock
	Cause       []byte  // ReleaseLock with AttemptFailed
	Pause       time.Duration
}

// An Outcome is the result of an attempt at a job, told by a release.
type Outcome byte

const (
	NoOutcome     Outcome = iota // it does not count
	AttemptFailed                // with a Cause; no other attempt is granted for Pause
	JobDone
)

// A JobState is how far a job is.
type JobState byte

const (
	JobFree JobState = iota
	JobFailed
	JobOver // done
	JobGaveUp
)

// A LockVerdict is the kind of an answer to AcquireLock.
type LockVerdict byte

const (
	LockGranted   LockVerdict = iota + 1
	LockHeld                  // all places are taken
	LockAbstained             // the server has been up for too short a time to vote
	LockPaused                // the last attempt failed a short time ago
	LockEnded                 // the job is done, or was given up
)

// A LockAnswer is the answer to a [LockOp]. OK: ExtendLock and ReleaseLock found the
// holder, ForgetJob found no attempt that runs.
type LockAnswer struct {
	OK      bool
	Verdict LockVerdict
	Server  string // AcquireLock with Vote: two with the same name are one server

	Fence     uint64 // LockGranted: of this grant; InspectLock: of the last
	TakenOver bool
	Holder    Token         // LockHeld: one of them
	Unwatched bool          // LockHeld: its process was watched at the grant, and is not now
	Left      time.Duration // LockHeld: of that place; LockAbstained, LockPaused: of that

	Job     Job
	Holders []LockHolder // InspectLock
}

// A LockHolder is the holder of a place.
type LockHolder struct {
	ID        Token
	Left      time.Duration
	Unwatched bool
}

// A Job is the record of attempts. Attempts counts those that failed or died.
// LockGranted: the present one is the next.
type Job struct {
	State    JobState
	Attempts int
	Cause    []byte        // of the last failure; empty: the process died
	Age      time.Duration // since the last change; InspectLock
}
