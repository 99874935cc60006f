// Package callers lets a fetch that pays for its calls by itself, as the HTTP
// transport's do, know as much of those who wait for it as a guard does that pays
// for a fetch.
package callers

import (
	"context"
	"errors"
)

// Callers are those who wait for a fetch, in this process.
type Callers interface {
	// Background reports whether it is a refresh, which nobody waits for.
	Background() bool
	// Lone reports whether the one it was started for is there, and nobody else.
	Lone() bool
	// Deserted reports whether nobody is there any more.
	Deserted() bool
}

// ErrUnwanted is for a fetch to return that has given up, before it did anything, as
// it was deserted: its key is as if it had never been asked for.
var ErrUnwanted = errors.New("guard: the fetch isn't wanted any more")

// ErrServed is for the cause of the end of a caller's context: it has what its own
// fetch brings by another way, and has stopped to wait for it. That is no error of
// the call's.
var ErrServed = errors.New("guard: the caller has been served by its fetch")

type contextKey struct{}

// With returns the context of a fetch.
func With(ctx context.Context, c Callers) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// Of returns the callers of the fetch whose context it is, or that it is within; nil
// if there is none.
func Of(ctx context.Context) Callers {
	c, _ := ctx.Value(contextKey{}).(Callers)
	return c
}

// FetchKey is the key under which a context has the fetch that it belongs to. The value
// is package guard's own.
type FetchKey struct{}

// Apart returns a context for work that a fetch starts and does not wait for. Calls of a
// guard that are made with it don't count as the fetch's.
func Apart(ctx context.Context) context.Context {
	return context.WithValue(ctx, FetchKey{}, nil)
}
