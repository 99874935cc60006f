package store

import "errors"

// Each error of a [Store] wraps one of these, or is the cause of its context's end.
var (
	// ErrUnavailable: no answer came, or the breaker is open. The command may or may not
	// have been carried out, or may still be.
	ErrUnavailable = errors.New("cache: store unavailable")
	// ErrRefused: the store answered, and won't: no permission, out of memory, a key of a
	// foreign type. Nothing was changed.
	ErrRefused = errors.New("cache: store refused")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("cache: store closed")
	// ErrInvalidated: an entry carries a tag that was deleted while it was fetched. It was
	// not stored, and its lease was released.
	ErrInvalidated = errors.New("cache: a tag was deleted meanwhile")
)
