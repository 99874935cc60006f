package redistest

import (
	"context"
	"time"
)

// pollEvery is the pause between two looks at a real server, where a change of
// state cannot be waited for in any other way.
const pollEvery = 10 * time.Millisecond

// poll calls done until it reports true or fails, or the context ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
