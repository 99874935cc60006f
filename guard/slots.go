package guard

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/stampedeguard/stampede/internal/store"
)

// Fetches without a lease, while the store is away or instead of a longer wait, share
// Policy.MaxUnguarded slots. Their results are not stored.

// slotKey marks the context of a fetch that has a slot of the engine it names: a fetch
// of another key from within must not queue behind its own caller.
type slotKey struct{}

// waitForSlot waits for a slot and returns the function that gives it back; nil if
// ctx or the guard ended first, or if deserted reports that no caller waits any more.
func (e *engine) waitForSlot(ctx context.Context, deserted func() bool) (leave func()) {
	if ctx.Value(slotKey{}) == e {
		return func() {} // asked for by a fetch that has one
	}
	select {
	case e.slots <- struct{}{}:
	default:
		wanted, stop := whileWanted(ctx, e.ctx.Done(), deserted)
		defer stop()
		select {
		case e.slots <- struct{}{}:
		case <-wanted.Done():
			return nil
		}
	}
	leave = sync.OnceFunc(func() { <-e.slots })
	if deserted != nil && deserted() {
		leave()
		return nil
	}
	return leave
}

// noSlot is the outcome of a flight that is not to fetch any more: a caller that joined
// at this very moment retries.
func (e *engine) noSlot() *outcome {
	if e.ctx.Err() != nil {
		return closedOutcome()
	}
	return retryOutcome()
}

// randomToken stands in for a lease's token where there is no lease.
func randomToken() (t store.Token) {
	rand.Read(t[:])
	return t
}
