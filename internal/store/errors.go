package store

import (
	"context"
	"errors"
)

// Each error of a [Store] wraps one of these, or is the cause of its context's end.
var (
	// ErrUnavailable: no answer came, or the breaker is open. The command may or may not
	// have been carried out, or may still be.
	ErrUnavailable = errors.New("cache: store unavailable")
	// ErrRefused: the store answered, and refuses: no permission, out of memory, a key of a
	// foreign type. Nothing was changed.
	ErrRefused = errors.New("cache: store refused")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("cache: store closed")
	// ErrInvalidated: an entry carries a tag that was deleted while it was fetched. It was
	// not stored, and its lease was released.
	ErrInvalidated = errors.New("cache: a tag was deleted meanwhile")
)

var errNilContext = errors.New("cache: nil context (use context.Background())")

// Ended returns the cause of a context's end, or an error if there is no context, or nil.
func Ended(ctx context.Context) error {
	switch {
	case ctx == nil:
		return errNilContext
	case ctx.Err() == nil:
		return nil
	}
	return context.Cause(ctx)
}
