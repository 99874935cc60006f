package guard

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/internal/telemetry"
)

// errNotWanted ends a fetch, or the wait before it, that no caller has a use for.
var errNotWanted = telemetry.ErrNotWanted

// desertedEvery is the interval at which a wait looks for callers.
const desertedEvery = 50 * time.Millisecond

// whileWanted returns a context for a wait before a fetch. The context ends with
// [errNotWanted] as its cause when unwanted is closed or deserted returns true; nil:
// never. One goroutine calls deserted until stop has returned. stop ends the context, too.
func whileWanted(ctx context.Context, unwanted <-chan struct{}, deserted func() bool) (wanted context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		look := time.NewTicker(desertedEvery)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-unwanted:
				cancel(errNotWanted)
				return
			case <-look.C:
				if deserted != nil && deserted() {
					cancel(errNotWanted)
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(nil); <-watching }
}
