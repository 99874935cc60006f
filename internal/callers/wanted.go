package callers

import (
	"context"
	"time"
)

// desertedEvery is how often a call that waits for its budget looks whether anybody
// still waits for it.
const desertedEvery = 50 * time.Millisecond

// WhileWanted returns a context for such a wait, which ends with [ErrUnwanted] as
// its cause when unwanted is closed or deserted says that nobody is there any more;
// nil: never. deserted is called now and then, by one goroutine, until stop, which
// ends the context as well, has returned.
func WhileWanted(ctx context.Context, unwanted <-chan struct{}, deserted func() bool) (wanted context.Context, stop func()) {
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
				cancel(ErrUnwanted)
				return
			case <-look.C:
				if deserted != nil && deserted() {
					cancel(ErrUnwanted)
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(nil); <-watching }
}
