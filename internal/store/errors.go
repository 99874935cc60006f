package store

import (
	"errors"
)

// Every error of a [Store] wraps one of these or [ErrInvalidated], or is the cause of the end of the
// context it was given.
var (
	// ErrUnavailable: no answer came, or the breaker is open. The command may or
	// may not have been carried out, or may still be.
	ErrUnavailable = errors.New("cache: store unavailable")
	// ErrRefused: the store answered, and won't: no permission, out of memory, a
	// key of a foreign type. Nothing was changed.
	ErrRefused = errors.New("cache: store refused")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("cache: store closed")
)
