package cache

import (
	"encoding/hex"

	"github.com/stampedeguard/stampede/internal/store"
)

// A Store keeps values and leases for guards: a [Redis] or a [Memory]. It is safe for
// concurrent use.
type Store interface {
	// Close gives back the store's leases and ends its goroutines. Close its guards first.
	Close() error

	store.Holder
}

// Errors of stores, which those of guards wrap. Use errors.Is.
var (
	// ErrUnavailable: no answer came, or the breaker is open. A change may have been made,
	// or may still be made.
	ErrUnavailable = store.ErrUnavailable
	// ErrRefused: Redis refused a command: no permission, out of memory, a key of a foreign
	// type. Redis changed nothing.
	ErrRefused = store.ErrRefused
	// ErrClosed: the store was closed.
	ErrClosed = store.ErrClosed
	// ErrDamaged: stored bytes cannot be read. A [Codec] returns an error that wraps it; the
	// entry is then fetched anew and overwritten.
	ErrDamaged = store.ErrDamaged
)

// A Token names one attempt to fetch a key. The zero Token means none.
type Token [16]byte

// IsZero reports whether t is none.
func (t Token) IsZero() bool { return t == Token{} }

// String is the token in hexadecimal.
func (t Token) String() string { return hex.EncodeToString(t[:]) }
