package budget_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
)

// dials is a client's hook that tells the time of each dial on a context that has not ended.
type dials chan time.Time

func (d dials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if ctx.Err() == nil {
			d <- time.Now()
		}
		return next(ctx, network, addr)
	}
}
func (dials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (dials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestRefusedSubscriptionIsReportedOnceAndBacksOff(t *testing.T) {
	s := server(t)
	admin := s.Client()
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "deaf", "on", ">pw", "~*", "&*", "+@all", "-subscribe").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.Options()
	o.Username, o.Password = "deaf", "pw"
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	dialed, events := make(dials, 1000), make(observing, 100)
	rdb.AddHook(dialed)
	open(t, rdb, budget.Limit{Rate: 1, Per: time.Second, MaxInFlight: 1}, budget.Options{RedisTimeout: 5 * time.Second, Observer: events})
	if e := <-events; e.Kind != cache.LivenessOff || e.Guard != "vendor" || !redis.IsPermissionError(e.Err) {
		t.Fatalf("the first event is %+v", e)
	}
	<-dialed // of the pool
	var last, pause time.Duration
	for at, n := <-dialed, 0; n < 4; n++ {
		next := <-dialed
		last, pause = pause, next.Sub(at)
		at = next
	}
	if pause < 800*time.Millisecond || last < 400*time.Millisecond {
		t.Errorf("the last pauses between dials are %v and %v, want them to double", last, pause)
	}
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "deaf", "+subscribe").Err(); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Kind != cache.LivenessOn {
		t.Errorf("the second event is %+v", e)
	}
}

func TestLostSubscriptionIsDialedAgainOnce(t *testing.T) {
	s := server(t)
	admin, rdb := s.Client(), redis.NewClient(s.Options())
	t.Cleanup(func() { _ = rdb.Close() })
	dialed := make(dials, 1000)
	rdb.AddHook(dialed)
	b := open(t, rdb, budget.Limit{Rate: 1000, Per: time.Second, MaxInFlight: 100}, patient)
	subscribed := func() bool {
		channels, err := admin.PubSubChannels(t.Context(), "*").Result()
		return err == nil && len(channels) == 1
	}
	waitFor(t, "the subscription", subscribed)
	<-dialed // of the pool
	<-dialed
	const kills = 3
	for n := range kills {
		if err := admin.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the next dial", func() bool { return len(dialed) > n })
		waitFor(t, "the next subscription", func() bool { return subscribed() && seen(t, admin, b) })
	}
	if n := len(dialed); n != kills {
		t.Errorf("%d connections were dialed in place of %d", n, kills)
	}
}

// seen reports whether the budget's slots say that Redis confirmed its subscription.
func seen(t *testing.T, admin *redis.Client, b *budget.Budget) bool {
	e, err := b.Spend(t.Context(), guard.Spending{Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Settle(1)
	slots, err := admin.ZRange(t.Context(), "test:budget:{vendor}:inflight", 0, -1).Result()
	return err == nil && len(slots) == 1 && strings.HasSuffix(slots[0], "+")
}
