package guard_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

func TestWaitEndsWhenNoCallerIsLeft(t *testing.T) {
	errGone := errors.New("gone")
	for name, c := range map[string]struct {
		end  func(unwanted chan struct{}, deserted *atomic.Bool, cancel context.CancelCauseFunc)
		want error
	}{
		"unwanted":        {func(u chan struct{}, _ *atomic.Bool, _ context.CancelCauseFunc) { close(u) }, guard.ErrNotWanted},
		"deserted":        {func(_ chan struct{}, d *atomic.Bool, _ context.CancelCauseFunc) { d.Store(true) }, guard.ErrNotWanted},
		"its own context": {func(_ chan struct{}, _ *atomic.Bool, cancel context.CancelCauseFunc) { cancel(errGone) }, errGone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				unwanted, deserted := make(chan struct{}), new(atomic.Bool)
				ctx, stop := guard.WhileWanted(outer, unwanted, deserted.Load)
				defer stop()
				time.Sleep(time.Minute)
				if err := ctx.Err(); err != nil {
					t.Fatalf("the wait ended while callers were left: %v", err)
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

// A bubble ends only when its goroutines have ended.
func TestStoppedWaitLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped, late atomic.Bool
		ctx, stop := guard.WhileWanted(context.Background(), nil, func() bool {
			late.Store(late.Load() || stopped.Load())
			return false
		})
		time.Sleep(time.Second)
		stop()
		stopped.Store(true)
		if ctx.Err() == nil {
			t.Error("the context goes on")
		}
		if cause := context.Cause(ctx); errors.Is(cause, guard.ErrNotWanted) {
			t.Errorf("a stopped wait ended with %v", cause)
		}
		time.Sleep(time.Second)
		if late.Load() {
			t.Error("deserted was called after stop")
		}
	})
}

func TestWaitWithoutConditionsGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := guard.WhileWanted(context.Background(), nil, nil)
		defer stop()
		time.Sleep(time.Minute)
		if err := ctx.Err(); err != nil {
			t.Errorf("the wait ended: %v", err)
		}
	})
}
