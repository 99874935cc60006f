package callers_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/internal/callers"
)

func TestWaitEndsOnceNobodyWantsIt(t *testing.T) {
	errGone := errors.New("gone")
	for name, c := range map[string]struct {
		end  func(unwanted chan struct{}, deserted *atomic.Bool, cancel context.CancelCauseFunc)
		want error
	}{
		"unwanted":        {func(u chan struct{}, _ *atomic.Bool, _ context.CancelCauseFunc) { close(u) }, callers.ErrUnwanted},
		"deserted":        {func(_ chan struct{}, d *atomic.Bool, _ context.CancelCauseFunc) { d.Store(true) }, callers.ErrUnwanted},
		"its own context": {func(_ chan struct{}, _ *atomic.Bool, cancel context.CancelCauseFunc) { cancel(errGone) }, errGone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				unwanted, deserted := make(chan struct{}), new(atomic.Bool)
				ctx, stop := callers.WhileWanted(outer, unwanted, deserted.Load)
				defer stop()
				time.Sleep(time.Minute)
				if err := ctx.Err(); err != nil {
					t.Fatalf("it ended while it was wanted: %v", err)
				}
				c.end(unwanted, deserted, cancel)
				time.Sleep(time.Second)
				if got := context.Cause(ctx); !errors.Is(got, c.want) {
					t.Errorf("the wait ended with %v, want %v", got, c.want)
				}
			})
		})
	}
}

// A bubble ends only when its goroutines have: stop must not leave the one that looks.
func TestWaitThatIsOverIsWatchedByNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped, late atomic.Bool
		ctx, stop := callers.WhileWanted(context.Background(), nil, func() bool {
			late.Store(late.Load() || stopped.Load())
			return false
		})
		time.Sleep(time.Second)
		stop()
		stopped.Store(true)
		if ctx.Err() == nil {
			t.Error("the context goes on")
		}
		if cause := context.Cause(ctx); errors.Is(cause, callers.ErrUnwanted) {
			t.Errorf("a wait that came to its end is said to have ended as %v", cause)
		}
		time.Sleep(time.Second)
		if late.Load() {
			t.Error("it was looked at again after stop")
		}
	})
}

// Neither end of it need be there.
func TestWaitWithoutAnybodyToLeaveGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := callers.WhileWanted(context.Background(), nil, nil)
		defer stop()
		time.Sleep(time.Minute)
		if err := ctx.Err(); err != nil {
			t.Errorf("it ended: %v", err)
		}
	})
}
