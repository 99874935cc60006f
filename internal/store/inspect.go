package store

import (
	"context"
	"time"
)

// An Inspector is a [Store] that tells the state of a key's lease. It changes nothing.
type Inspector interface {
	Inspect(ctx context.Context, key string) (KeyState, error)
}

// A KeyState is the shared state of a key besides its entry.
type KeyState struct {
	Holder     Token         // of the lease; zero: none
	Lease      time.Duration // left of the lease
	Pause      time.Duration // left of the pause; 0: none
	Attempts   int           // that are under way, or ended with their process
	Remembered time.Duration // for how long these are remembered
}
