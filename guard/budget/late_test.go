package budget_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A slowAnswer hook delays the answers to scripts.
type slowAnswer struct{ by atomic.Int64 }

func (h *slowAnswer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *slowAnswer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(context.WithoutCancel(ctx), cmd)
		if strings.HasPrefix(cmd.Name(), "eval") {
			time.Sleep(time.Duration(h.by.Load()))
		}
		return err
	}
}

func (h *slowAnswer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestGrantThatComesTooLateIsRefunded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redistest.RunEmbeddedInMemory(t).Client()
		h := &slowAnswer{}
		client.AddHook(h)
		b := open(t, client, budget.Limit{Rate: 1, Per: time.Hour, Burst: 10, Reserve: -1}, budget.Options{})
		h.by.Store(int64(400 * time.Millisecond)) // RedisTimeout is 250 ms
		if _, err := b.Spend(context.Background(), guard.Spending{Cost: 5}); err == nil {
			t.Fatal("granted, and the process has no share of its own yet")
		}
		h.by.Store(0)
		time.Sleep(5 * time.Second)
		if st, err := b.Peek(context.Background()); err != nil || st.Away || st.Spent != 0 || st.Remaining != 10 {
			t.Errorf("the state is %+v, %v; want nothing spent", st, err)
		}
	})
}

// A cost that is out of all proportion, by mistake say, stops other calls for a day at most.
func TestAbsurdCostIsOwedForADay(t *testing.T) {
	inBubble(t, 1, perSecond(10, 10), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		e, err := all[0].Spend(t.Context(), guard.Spending{Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		e.Settle(1 << 62)
		_, err = all[0].Spend(t.Context(), guard.Spending{Cost: 1})
		var exhausted *guard.ExhaustedError
		if !errors.As(err, &exhausted) || exhausted.RetryAfter > 25*time.Hour {
			t.Errorf("%v, want it to be owed for a day", err)
		}
	})
}
