package lock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// An ID names one grant of a lock. A Locker draws a new one for each attempt. The zero ID
// means none.
type ID [16]byte

// IsZero reports whether the ID is none.
func (id ID) IsZero() bool { return id == ID{} }

// String is the ID in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID reads the text that [ID.String] wrote.
func ParseID(s string) (ID, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(ID{}) {
		return ID{}, fmt.Errorf("lock: the id %q is not %d hexadecimal digits", cut(s), 2*len(ID{}))
	}
	return ID(b), nil
}

// A Backend keeps locks in one place: a Redis, a replicated Redis, a directory, etcd. Any
// program may implement it; package locktest has the suite that every backend passes. Its
// methods are safe for concurrent use, and return soon after their context ends.
//
// An error says that no answer came or that the backend refuses. A lock that is held, or
// gone, is no error. A backend never retries an Acquire of which it does not know the fate:
// a lock that is granted late would have no holder.
type Backend interface {
	// Acquire grants the lock, or names a holder.
	Acquire(ctx context.Context, r Request) (Grant, error)
	// Extend has the lock end TTL from now or later, never earlier than it would have: an
	// answer may be lost, and calls may overtake each other. It raises the fence to h.Fence
	// if that is higher. It answers false if the ID does not hold the lock any more.
	Extend(ctx context.Context, h Hold) (bool, error)
	// Release ends the lock. It answers false if the ID did not hold it.
	Release(ctx context.Context, h Hold) (bool, error)
	// Inspect tells about a lock that may have several holders.
	Inspect(ctx context.Context, name string, holders int) (State, error)
	// Watch sends when a waiter should ask again: after the release of a holder because of
	// which an Acquire was refused, or when a release may have been missed. The channel has
	// room for one, and is never closed. Where there is nothing to subscribe to it is nil, and
	// waiters poll. Call stop once.
	Watch(name string) (changed <-chan struct{}, stop func())
}

// A Request asks for a lock.
type Request struct {
	Name    string // any bytes
	ID      ID
	TTL     time.Duration // whole milliseconds
	Holders int           // how many may hold the lock at a time
	// Suspect is a holder that looked dead a while ago. The backend replaces it if it still
	// does. A backend that can't tell ignores it.
	Suspect ID
	// Vote says that the answer counts for a quorum: Grant.Server is needed, and a server
	// that may have forgotten a lock, as it has been up for less than TTL, abstains.
	Vote bool

	job *jobTerms // of a Worker
}

// A Grant is the answer to a [Request].
type Grant struct {
	OK bool

	// If OK is set.
	Fence     uint64 // greater than that of each earlier grant of the name; 0: the backend has none
	Attempt   int    // 1, and one more for each holder that died since the last release; 0: not counted
	TakenOver bool   // the suspect was replaced

	// If OK is not set. Holder is zero if it is not known.
	Holder   ID
	Left     time.Duration // of the holder's lock, or until the server votes
	Dead     bool          // the holder looks dead: a Suspect for a later Request
	Abstains bool          // the server does not vote

	// Server tells servers apart, if Request.Vote is set and the backend knows.
	Server string

	job *jobAnswer
}

// A Hold names a granted lock.
type Hold struct {
	Name    string
	ID      ID
	Holders int
	TTL     time.Duration // Extend
	Fence   uint64        // Extend

	job *jobOutcome
}

// A State describes a lock.
type State struct {
	Holders []Holder
	Fence   uint64 // of the last grant; 0: not known
}

// A Holder is one holder of a lock.
type Holder struct {
	ID   ID            // zero: a client of another make
	Left time.Duration // until the lock ends, unless it is renewed
	Dead bool          // its process looks dead
}

var errOneHolder = errors.New("lock: this backend keeps one holder for each name: set Options.Holders to 1, or use On")

// cut bounds a name in texts.
func cut(name string) string {
	if len(name) > 100 {
		return name[:100] + "… (cut)"
	}
	return name
}
