package guard

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/stampedeguard/stampede/internal/store"
)

// Fetches without a lease, while the store is away or instead of a longer wait, share
// Policy.MaxUnguarded slots. Their results are not stored.

// slotKey marks the context of a fetch that has one of the slots it names: a fetch
// of another key from within must not queue behind its own caller.
type slotKey struct{ of *slots }

// slots of an engine. They are one channel, which has a place for each.
type slots struct {
	taken chan struct{}
	ended <-chan struct{} // with the guard
}

// within reports whether ctx belongs to a fetch that has a slot.
func (s *slots) within(ctx context.Context) bool { return ctx.Value(slotKey{s}) != nil }

// wait waits for a slot and returns the function that gives it back; nil if ctx or the
// guard ended first, or if deserted reports that no caller waits any more.
func (s *slots) wait(ctx context.Context, deserted func() bool) (leave func()) {
	if s.within(ctx) {
		return func() {}
	}
	select {
	case s.taken <- struct{}{}:
	default:
		wanted, stop := whileWanted(ctx, s.ended, deserted)
		defer stop()
		select {
		case s.taken <- struct{}{}:
		case <-wanted.Done():
			return nil
		}
	}
	leave = sync.OnceFunc(func() { <-s.taken })
	if deserted != nil && deserted() {
		leave()
		return nil
	}
	return leave
}

// try is wait for a fetch that may as well be made later: it returns nil at once if there is
// no slot.
func (s *slots) try() (leave func()) {
	select {
	case s.taken <- struct{}{}:
		return sync.OnceFunc(func() { <-s.taken })
	default:
		return nil
	}
}

// randomToken stands in for a lease's token where there is no lease.
func randomToken() (t store.Token) {
	rand.Read(t[:])
	return t
}
