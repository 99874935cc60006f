package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// A KeyState is the state of a key that all processes share, without its value.
type KeyState struct {
	Holder      cache.Token   // of the lease; zero: no process fetches the key
	Lease       time.Duration // left of the lease
	Pause       time.Duration // left of a pause; 0: none
	Attempts    int           // attempts that are under way, or that died with their process
	Quarantined bool          // there is no lease, and as many attempts as Policy.MaxAttempts
	Remembered  time.Duration // for how long the attempts are remembered
}

// Inspect asks the store for a key's lease, pause and quarantine. It changes nothing.
// Attempts of one process count one by one. So Quarantined may be reported too early if few
// processes made the attempts. Errors as of Peek.
func (g *Guard[V]) Inspect(ctx context.Context, key string) (KeyState, error) {
	e := g.engine
	if ctx == nil {
		return KeyState{}, e.misused(ctx)
	}
	if o := e.endedFor(ctx, nil); o != nil {
		return KeyState{}, e.errorFor(o)
	}
	in, ok := e.store.(store.Inspector)
	if !ok {
		return KeyState{}, fmt.Errorf("guard: Inspect: a %T cannot tell: %w", e.store, errors.ErrUnsupported)
	}
	s, err := in.Inspect(ctx, e.storeKey(key))
	if err != nil {
		return KeyState{}, e.changeError(ctx, err)
	}
	return KeyState{
		Holder: cache.Token(s.Holder), Lease: s.Lease, Pause: s.Pause, Attempts: s.Attempts, Remembered: s.Remembered,
		Quarantined: s.Holder.IsZero() && e.policy.MaxAttempts > 0 && s.Attempts >= e.policy.MaxAttempts,
	}, nil
}

// InFlight lists at most max of the flights that are under way, in no order, and returns
// how many there are.
func (g *Guard[V]) InFlight(max int) (some []Flight, total int) {
	return g.engine.flights.some(max, g.engine.policy.HideKeys)
}
