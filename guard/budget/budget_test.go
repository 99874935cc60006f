package budget_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// inBubble runs a test on the embedded server in fake time, with n budgets that
// stand for processes.
func inBubble(t *testing.T, n int, l budget.Limit, o budget.Options, test func(t *testing.T, all []*budget.Budget, s *redistest.Embedded)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.RunEmbeddedInMemory(t)
		all := make([]*budget.Budget, n)
		for i := range all {
			all[i] = open(t, s.Client(), l, o)
		}
		test(t, all, s)
	})
}

func perSecond(rate, burst int) budget.Limit {
	return budget.Limit{Rate: rate, Per: time.Second, Burst: burst}
}

func TestAllInvalidLimitsAndOptionsAreReported(t *testing.T) {
	_, err := budget.New(nil, "a:b", budget.Limit{Rate: -1, Burst: -1, MaxInFlight: -1, Reserve: math.NaN()},
		budget.Options{Namespace: "{", RedisTimeout: -1, SlotTTL: 1, MaxPause: 1e18, Processes: -1})
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 4 {
		t.Errorf("got %v", err)
	}
	for _, what := range []string{
		"nil client", "a:b", "Rate", "Per", "Burst", "MaxInFlight", "Reserve",
		"Namespace", "RedisTimeout", "SlotTTL", "MaxPause", "Processes",
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q is missing in: %v", what, err)
		}
	}
}

func TestNilClientAndContextAreNamed(t *testing.T) {
	var none *redis.Client
	if _, err := budget.New(none, "vendor", perSecond(1, 1), patient); err == nil || !strings.Contains(err.Error(), "nil *redis.Client") {
		t.Errorf("a nil client: %v", err)
	}
	inBubble(t, 1, perSecond(1, 1), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		var ctx context.Context
		b := all[0]
		_, spend := b.Spend(ctx, guard.Spending{Cost: 1})
		_, peek := b.Peek(ctx)
		_, learn := b.Learn(ctx, http.StatusTooManyRequests, http.Header{})
		for name, err := range map[string]error{"Spend": spend, "Peek": peek, "Learn": learn, "Pause": b.Pause(ctx, 1), "Resume": b.Resume(ctx)} {
			if err == nil || !strings.Contains(err.Error(), "nil context") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestClientsThatDoNotKeepToOneServerAreRefused(t *testing.T) {
	replicas := func() *redis.ClusterClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadOnly: true})
	}
	ring := func() *redis.Ring {
		return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	}
	for name, client := range map[string]redis.UniversalClient{
		"replicas":         replicas(),
		"wrapped replicas": struct{ *redis.ClusterClient }{replicas()},
		"ring":             ring(),
		"wrapped ring":     struct{ *redis.Ring }{ring()},
	} {
		if b, err := budget.New(client, "vendor", perSecond(1, 1), patient); err == nil {
			t.Errorf("%s: accepted", name)
			_ = b.Close()
		}
		_ = client.Close()
	}
}

func TestNoWindowHasMoreThanRateAndBurst(t *testing.T) {
	inBubble(t, 4, perSecond(100, 10), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		var mu sync.Mutex
		var granted []time.Time
		var wg sync.WaitGroup
		end := time.Now().Add(10 * time.Second)
		for _, b := range all {
			for _, wait := range []time.Duration{0, 100 * time.Millisecond, time.Second} {
				wg.Go(func() {
					for time.Now().Before(end) {
						_, err := b.Spend(context.Background(), guard.Spending{Cost: 1, MaxWait: wait})
						if err == nil && time.Now().Before(end) {
							mu.Lock()
							granted = append(granted, time.Now())
							mu.Unlock()
						}
						if err != nil && wait == 0 {
							time.Sleep(time.Millisecond)
						}
					}
				})
			}
		}
		wg.Wait()
		if n := len(granted); n < 990 || n > 1010 {
			t.Errorf("%d calls in 10 s, want 1000 and a burst", n)
		}
		// A waiter's timer may be late, never early: hence the millisecond.
		checkWindows(t, granted, 100, 10, time.Millisecond)
	})
}

// checkWindows compares every window between two calls with its limit.
func checkWindows(t *testing.T, at []time.Time, rate, burst float64, slack time.Duration) {
	t.Helper()
	slices.SortFunc(at, time.Time.Compare)
	for i := range at {
		for j := i; j < len(at); j++ {
			w := at[j].Sub(at[i]) + slack
			if n := float64(j - i + 1); n > burst+rate*w.Seconds() {
				t.Fatalf("%v calls in %v, %v are allowed", n, w, burst+rate*w.Seconds())
			}
		}
	}
}

func TestReserveIsKeptForCriticalCalls(t *testing.T) {
	inBubble(t, 2, perSecond(10, 10), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		count := func(p guard.Priority) (n int) {
			for spend(all[0], p) {
				n++
			}
			return n
		}
		if n := count(guard.Background); n != 6 {
			t.Errorf("%d of 10 were granted to the background, want 6", n)
		}
		if n := count(guard.Normal); n != 2 {
			t.Errorf("2 more were for callers, got %d", n)
		}
		if n := count(guard.Critical); n != 2 {
			t.Errorf("2 more were kept for critical callers, got %d", n)
		}
		// The reserve takes no part of the rate.
		time.Sleep(100 * time.Millisecond)
		granted := 0
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if spend(all[1], guard.Normal) {
				granted++
			}
		}
		if granted < 97 || granted > 100 {
			t.Errorf("callers got %d of 100", granted)
		}
	})
}

func TestCriticalCallsPassWaiters(t *testing.T) {
	inBubble(t, 8, perSecond(1, 5), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for _, b := range all {
			for range 20 {
				wg.Go(func() {
					_, _ = b.Spend(ctx, guard.Spending{Cost: 1, MaxWait: time.Hour})
				})
			}
		}
		time.Sleep(10 * time.Second)
		if !spend(all[0], guard.Critical) {
			t.Error("a critical call was refused while others wait")
		}
		cancel()
		wg.Wait()
	})
}

func TestWaitingCallIsGrantedWhenItsSlotComes(t *testing.T) {
	inBubble(t, 1, perSecond(1, 1), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b, start := all[0], time.Now()
		for i := range 3 {
			if _, err := b.Spend(context.Background(), guard.Spending{Cost: 1, MaxWait: 3 * time.Second}); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d < time.Duration(i)*time.Second || d > time.Duration(i)*time.Second+5*time.Millisecond {
				t.Errorf("call %d was granted after %v", i, d)
			}
		}
	})
}

func TestCallThatCannotWaitIsRefusedAtOnce(t *testing.T) {
	inBubble(t, 1, perSecond(1, 1), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		spend(all[0], guard.Normal)
		start := time.Now()
		_, err := all[0].Spend(context.Background(), guard.Spending{Cost: 1, MaxWait: 900 * time.Millisecond})
		var exhausted *budget.ExhaustedError
		if !errors.As(err, &exhausted) || exhausted.Budget != "vendor" {
			t.Fatalf("got %v", err)
		}
		if d := exhausted.RetryAfter; d < 990*time.Millisecond || d > time.Second {
			t.Errorf("it is to retry after %v", d)
		}
		if time.Since(start) > 0 {
			t.Errorf("it was told after %v", time.Since(start))
		}
	})
}

func TestWaitEndsWithItsContextAndCostsNothing(t *testing.T) {
	inBubble(t, 1, perSecond(1, 1), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b := all[0]
		spend(b, guard.Normal)
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		if _, err := b.Spend(ctx, guard.Spending{Cost: 1, MaxWait: time.Minute}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(700 * time.Millisecond)
		if !spend(b, guard.Normal) {
			t.Error("the slot was lost with the caller that gave up")
		}
	})
}

func TestCostIsSettled(t *testing.T) {
	inBubble(t, 1, perSecond(10, 100), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b := all[0]
		e, err := b.Spend(context.Background(), guard.Spending{Cost: 50})
		if err != nil {
			t.Fatal(err)
		}
		if b.Known().Remaining != 50 || b.Known().Spent != 50 {
			t.Errorf("%d remain and %d are spent", b.Known().Remaining, b.Known().Spent)
		}
		e.Settle(20)
		e.Settle(90) // settled already
		if b.Known().Remaining != 80 || b.Known().Spent != 20 {
			t.Errorf("after the refund %d remain and %d are spent", b.Known().Remaining, b.Known().Spent)
		}
		if e, err = b.Spend(context.Background(), guard.Spending{Cost: 50}); err != nil {
			t.Fatal(err)
		}
		e.Settle(180)
		if b.Known().Remaining != 0 || b.Known().Spent != 200 {
			t.Errorf("with a debt %d remain and %d are spent", b.Known().Remaining, b.Known().Spent)
		}
		// 200 were spent of 100: 1 unit is there when 101 have leaked; others are kept back 20.
		_, err = b.Spend(context.Background(), guard.Spending{Cost: 1, Priority: guard.Critical})
		var exhausted *budget.ExhaustedError
		if !errors.As(err, &exhausted) || exhausted.RetryAfter != 10100*time.Millisecond {
			t.Errorf("got %v", err)
		}
		for _, hostile := range []int{math.MinInt, math.MaxInt} {
			time.Sleep(time.Minute)
			e, err := b.Spend(context.Background(), guard.Spending{Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			e.Settle(hostile)
		}
		if got := b.Known().Spent; got != 200+100+10*24*60*60 { // a burst, and a day
			t.Errorf("%d are spent", got)
		}
	})
}

// A call that a share granted, and Redis was told of since, is refunded in Redis too.
func TestCallOfOneOutageIsRefundedInTheNext(t *testing.T) {
	l := budget.Limit{Rate: 1, Per: time.Minute, Burst: 10, Reserve: -1}
	inBubble(t, 1, l, budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		b := all[0]
		s.SetError("LOADING")
		time.Sleep(time.Hour) // the share is as large as it gets
		e, err := b.Spend(context.Background(), guard.Spending{Cost: 10})
		if err != nil {
			t.Fatal(err)
		}
		s.SetError("")
		time.Sleep(time.Second)
		if st, err := b.Peek(context.Background()); err != nil || st.Away || st.Remaining != 0 || st.Spent != 10 {
			t.Errorf("between the outages the state is %+v, %v", st, err)
		}
		s.SetError("LOADING")
		time.Sleep(5 * time.Second)
		e.Settle(0)
		s.SetError("")
		time.Sleep(time.Second)
		if st, err := b.Peek(context.Background()); err != nil || st.Away || st.Remaining != 10 || st.Spent != 0 {
			t.Errorf("after the refund the state is %+v, %v", st, err)
		}
	})
}

func TestCostAboveBurstLeavesADebt(t *testing.T) {
	inBubble(t, 1, perSecond(10, 5), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		if _, err := all[0].Spend(context.Background(), guard.Spending{Cost: 30}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := all[0].Spend(context.Background(), guard.Spending{Cost: 30, MaxWait: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 3*time.Second || d > 3010*time.Millisecond {
			t.Errorf("the debt was paid after %v", d)
		}
	})
}

func TestPauseStopsTheFleet(t *testing.T) {
	inBubble(t, 3, perSecond(1000, 10), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		if err := all[0].Pause(context.Background(), 3*time.Second); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for _, b := range all {
			wg.Go(func() {
				if spend(b, guard.Critical) {
					t.Error("a call was granted in a pause")
				}
				if got := b.Known().Paused; got != 3*time.Second {
					t.Errorf("paused for %v", got)
				}
				if b.Known().Remaining != 0 {
					t.Errorf("%d remain in a pause", b.Known().Remaining)
				}
				_, err := b.Spend(context.Background(), guard.Spending{Cost: 1, MaxWait: 5 * time.Second})
				if d := time.Since(start); err != nil || d < 3*time.Second || d > 3100*time.Millisecond {
					t.Errorf("got %v after %v", err, d)
				}
			})
		}
		wg.Wait()
		// The operator ends one.
		_ = all[0].Pause(context.Background(), time.Minute)
		if spend(all[1], guard.Normal) {
			t.Error("a call was granted in a pause")
		}
		if err := all[1].Resume(context.Background()); err != nil {
			t.Fatal(err)
		}
		if !spend(all[1], guard.Normal) {
			t.Error("the pause was not ended")
		}
	})
}

// afterScript is a client's hook that calls a function when Redis has carried out a
// script of so many keys, before the client hears that it has.
type afterScript struct {
	keys int
	call func()
}

// The scripts that are told apart by it.
const learn, settle = 1, 2

func (afterScript) DialHook(next redis.DialHook) redis.DialHook { return next }
func (afterScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a afterScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && len(args) > 2 && args[2] == a.keys {
			a.call()
		}
		return err
	}
}

// A pause that begins during the report of an earlier one is reported soon.
func TestPauseDuringAReportIsReportedToo(t *testing.T) {
	inBubble(t, 1, perSecond(100, 10), budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		client := s.Client()
		var a *budget.Budget
		var once sync.Once
		client.AddHook(afterScript{learn, func() { once.Do(func() { _ = a.Pause(t.Context(), time.Minute) }) }})
		a = open(t, client, perSecond(100, 10))
		s.SetError("LOADING for the test")
		if err := a.Pause(t.Context(), 5*time.Second); err == nil {
			t.Fatal("told a Redis that is away")
		}
		s.SetError("")
		time.Sleep(time.Second)
		if st, err := a.Peek(t.Context()); err != nil || st.Away || st.Paused < 50*time.Second {
			t.Errorf("%+v, %v", st, err)
		}
		if spend(all[0], guard.Critical) {
			t.Error("another process was granted in a pause")
		}
	})
}

// Units of the share that are spent during a report of spent units are reported too.
func TestSpendingDuringAReportIsReportedToo(t *testing.T) {
	inBubble(t, 1, perSecond(100, 10), budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		client := s.Client()
		var a *budget.Budget
		var once sync.Once
		client.AddHook(afterScript{settle, func() {
			once.Do(func() {
				for range 2 {
					if !spend(a, guard.Critical) {
						t.Error("not granted")
					}
				}
			})
		}})
		a = open(t, client, perSecond(100, 10))
		s.SetError("LOADING for the test")
		_, _ = a.Spend(t.Context(), guard.Spending{Cost: 1})
		time.Sleep(500 * time.Millisecond)
		if !spend(a, guard.Critical) {
			t.Fatal("nothing granted while Redis is away")
		}
		time.Sleep(500 * time.Millisecond)
		s.SetError("")
		time.Sleep(time.Second)
		if st, err := all[0].Peek(t.Context()); err != nil || st.Spent < 3 {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

func TestNoPauseIsLongerThanAllowed(t *testing.T) {
	inBubble(t, 1, perSecond(10, 1), budget.Options{MaxPause: time.Minute}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		_ = all[0].Pause(context.Background(), math.MaxInt64)
		if got := all[0].Known().Paused; got != time.Minute {
			t.Errorf("paused for %v", got)
		}
		_ = all[0].Pause(context.Background(), math.MinInt64)
		time.Sleep(time.Minute)
		if !spend(all[0], guard.Normal) {
			t.Error("still paused after a minute")
		}
	})
}

func TestUpstreamsLimitIsHeeded(t *testing.T) {
	inBubble(t, 2, perSecond(1000, 100), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		heed := func(a budget.Advice) {
			if err := all[0].Heed(context.Background(), a); err != nil {
				t.Fatal(err)
			}
		}
		count := func() (n int) {
			for spend(all[1], guard.Critical) {
				n++
			}
			return n
		}
		heed(budget.Advice{Remaining: 7, Reset: 10 * time.Second})
		if got := all[0].Known().Remaining; got != 7 {
			t.Errorf("%d remain, want 7", got)
		}
		heed(budget.Advice{Remaining: 9, Reset: 10 * time.Second}) // an answer out of order
		if n := count(); n != 7 {
			t.Errorf("%d were granted, want 7", n)
		}
		if d := all[1].Known().Paused; d != 10*time.Second {
			t.Errorf("paused for %v", d)
		}
		time.Sleep(10 * time.Second)
		heed(budget.Advice{Remaining: 5, Reset: 10 * time.Second}) // the next window
		if n := count(); n != 5 {
			t.Errorf("%d were granted, want 5", n)
		}
		time.Sleep(10 * time.Second)
		if n := count(); n != 100 {
			t.Errorf("%d were granted, want the burst", n)
		}
		time.Sleep(10 * time.Second)
		heed(budget.Advice{Remaining: 3}) // a bucket that leaks
		if n := count(); n != 3 {
			t.Errorf("%d were granted, want 3", n)
		}
		time.Sleep(10 * time.Second)
		heed(budget.Advice{Remaining: math.MaxInt, Reset: math.MaxInt64})
		if n := count(); n != 100 {
			t.Errorf("%d were granted: a huge allowance changes nothing", n)
		}
	})
}

// With Redis away the upstream's word counts all the same, for this process's share.
func TestUpstreamsLimitIsHeededWhileRedisIsAway(t *testing.T) {
	inBubble(t, 1, perSecond(1000, 100), budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		b := all[0]
		s.SetError("LOADING")
		defer s.SetError("")
		heed := func(a budget.Advice) {
			if err := b.Heed(t.Context(), a); err == nil {
				t.Fatal("told a Redis that is away")
			}
		}
		count := func(d time.Duration) (n int) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if spend(b, guard.Critical) {
					n++
				}
			}
			return n
		}
		heed(budget.Advice{Remaining: 3, Reset: 20 * time.Second})
		time.Sleep(time.Second)
		if got := b.Known().Remaining; got != 3 {
			t.Errorf("%d remain, want 3", got)
		}
		heed(budget.Advice{Remaining: 9, Reset: 19 * time.Second}) // an answer out of order
		if n := count(10 * time.Second); n != 3 {
			t.Errorf("%d were granted, want 3", n)
		}
		time.Sleep(10 * time.Second)
		if n := count(time.Second); n < 90 {
			t.Errorf("%d were granted when that was over", n)
		}
		heed(budget.Advice{Remaining: 0, Reset: 20 * time.Second})
		if n := count(time.Second); n != 0 {
			t.Errorf("%d were granted, want none", n)
		}
		if err := b.Resume(t.Context()); err == nil {
			t.Fatal("told a Redis that is away")
		}
		if n := count(time.Second); n < 90 {
			t.Errorf("%d were granted when that was forgotten", n)
		}
		time.Sleep(time.Second)
		heed(budget.Advice{Remaining: 5}) // a bucket that leaks
		if got := b.Known().Remaining; got != 5 {
			t.Errorf("%d remain, want 5", got)
		}
	})
}

// The upstream may count a call before it is settled. Then its refund does not raise the
// units that are left. Units that were counted since the upstream's answer are refunded.
func TestRefundIsNeverAboveTheUpstreamsLimit(t *testing.T) {
	type fleet struct {
		spend func(cost int) guard.Expense
		hear  func(remaining int)
	}
	for _, c := range []struct {
		name string
		does func(f fleet)
		left int
	}{
		{"a word with the call in it", func(f fleet) {
			e := f.spend(50)
			f.hear(0)
			e.Settle(1)
		}, 0},
		{"a word that leaves more than was counted", func(f fleet) {
			f.hear(100)
			e := f.spend(50)
			f.hear(60)
			e.Settle(1)
		}, 60},
		{"words out of order", func(f fleet) {
			f.hear(100)
			e := f.spend(50)
			f.hear(5)
			f.hear(9)
			e.Settle(1)
		}, 5},
		{"others since the word", func(f fleet) {
			e := f.spend(50)
			f.hear(10)
			f.spend(10).Settle(10)
			e.Settle(1)
		}, 0},
		{"no word since", func(f fleet) {
			f.hear(100)
			e, never := f.spend(50), f.spend(10)
			never.Settle(0)
			e.Settle(1)
		}, 99},
		{"calls that the upstream doesn't count", func(f fleet) {
			f.hear(100)
			for range 20 {
				one, other := f.spend(1), f.spend(1)
				f.hear(100)
				one.Settle(0)
				f.hear(100)
				other.Settle(0)
			}
		}, 100},
		{"calls that cost more, one of which may not be in the word", func(f fleet) {
			f.hear(100)
			for left := 90; left >= 50; left -= 10 {
				e := f.spend(1)
				f.hear(left)
				e.Settle(10)
			}
		}, 41},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 1, perSecond(1000, 1000), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
				b, end := all[0], time.Now().Add(time.Minute)
				c.does(fleet{
					spend: func(cost int) guard.Expense {
						time.Sleep(time.Millisecond)
						e, err := b.Spend(context.Background(), guard.Spending{Cost: cost})
						if err != nil {
							t.Fatal(err)
						}
						return e
					},
					hear: func(remaining int) {
						time.Sleep(time.Millisecond)
						if err := b.Heed(context.Background(), budget.Advice{Remaining: remaining, Reset: time.Until(end)}); err != nil {
							t.Fatal(err)
						}
					},
				})
				time.Sleep(time.Second)
				n := 0
				for n <= 100 && spend(b, guard.Critical) {
					n++
				}
				if n != c.left {
					t.Errorf("%d calls were granted, want %d", n, c.left)
				}
			})
		})
	}
}

// The same of an upstream that says how full its bucket is, and no time.
func TestRefundDoesNotEmptyTheUpstreamsBucket(t *testing.T) {
	inBubble(t, 1, budget.Limit{Rate: 1, Per: time.Minute, Burst: 100, Reserve: -1}, budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b, ctx := all[0], context.Background()
		after := func(what string, want int) {
			t.Helper()
			if st, err := b.Peek(ctx); err != nil || st.Remaining != want {
				t.Errorf("after %s %d remain, want %d: %v", what, st.Remaining, want, err)
			}
			time.Sleep(time.Millisecond)
		}
		pay := func(cost int) guard.Expense {
			e, err := b.Spend(ctx, guard.Spending{Cost: cost})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			return e
		}
		hear := func(remaining int) {
			if err := b.Heed(ctx, budget.Advice{Remaining: remaining}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
		e := pay(30)
		hear(20)
		e.Settle(1)
		after("a word with the call in it", 20)
		pay(10).Settle(1)
		after("a refund of a call that was made since", 19)
		time.Sleep(100 * time.Minute)
		one, other := pay(30), pay(30)
		hear(98)
		one.Settle(1)
		other.Settle(1)
		after("a word that leaves more than was counted", 98)
	})
}

func TestMaxInFlightBoundsCallsUnderWay(t *testing.T) {
	l := perSecond(1000, 1000)
	l.MaxInFlight = 3
	inBubble(t, 2, l, budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		var held []guard.Expense
		for i := range 4 {
			e, err := all[i%2].Spend(context.Background(), guard.Spending{Cost: 1})
			if (err == nil) != (i < 3) {
				t.Fatalf("call %d: %v", i, err)
			}
			if err == nil {
				held = append(held, e)
			}
		}
		time.Sleep(time.Minute) // renewed
		if st, err := all[1].Peek(context.Background()); err != nil || st.InFlight != 3 || st.Processes != 2 {
			t.Errorf("the state is %+v, %v", st, err)
		}
		time.AfterFunc(time.Second, func() { held[0].Settle(1) })
		start := time.Now()
		e, err := all[1].Spend(context.Background(), guard.Spending{Cost: 1, MaxWait: 2 * time.Second})
		if d := time.Since(start); err != nil || d < time.Second || d > time.Second+50*time.Millisecond {
			t.Errorf("%v after %v", err, d)
		}
		for _, e := range append(held, e) {
			e.Settle(1)
		}
		if st, _ := all[0].Peek(context.Background()); st.InFlight != 0 {
			t.Errorf("%d are under way", st.InFlight)
		}
	})
}

func TestRefusalIsNotAskedForAgainByEachCaller(t *testing.T) {
	inBubble(t, 1, perSecond(1, 1), budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		spend(all[0], guard.Normal)
		before := s.CommandCount()
		for range 10_000 {
			if spend(all[0], guard.Normal) {
				t.Fatal("granted")
			}
		}
		if n := s.CommandCount() - before; n > 20 {
			t.Errorf("%d commands for 10,000 refusals at one time", n)
		}
		if !all[0].Exhausted(guard.Normal) || !all[0].Exhausted(guard.Background) || all[0].Exhausted(guard.Critical) {
			t.Error("Normal, and so Background, should be known to be exhausted, and Critical should not")
		}
	})
}

func TestForeignStateIsNoState(t *testing.T) {
	for _, foreign := range []string{"", "garbage", "nan nan nan nan nan nan", "-1 1 1 1 1 1", "1e400 99999999999999999999 9e99 1 9e99 1", "1 2 3"} {
		inBubble(t, 1, perSecond(1, 2), budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
			if err := s.Set("test:budget:{vendor}:state", foreign); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if !spend(all[0], guard.Normal) {
				t.Errorf("refused with the state %q", foreign)
			}
		})
	}
}

func TestClosedBudgetGrantsNothing(t *testing.T) {
	inBubble(t, 1, perSecond(1, 1), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b := all[0]
		spend(b, guard.Normal)
		waits := make(chan error, 1)
		go func() {
			_, err := b.Spend(context.Background(), guard.Spending{Cost: 1, MaxWait: time.Hour})
			waits <- err
		}()
		time.Sleep(10 * time.Millisecond)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := <-waits; !errors.Is(err, budget.ErrClosed) {
			t.Errorf("the waiter got %v", err)
		}
		if _, err := b.Spend(context.Background(), guard.Spending{}); !errors.Is(err, budget.ErrClosed) || !strings.Contains(err.Error(), `"vendor"`) {
			t.Errorf("Spend: %v", err)
		}
		if _, err := b.Peek(context.Background()); !errors.Is(err, budget.ErrClosed) {
			t.Errorf("Peek: %v", err)
		}
		if err := b.Pause(context.Background(), time.Second); !errors.Is(err, budget.ErrClosed) {
			t.Errorf("Pause: %v", err)
		}
	})
}

// After a clock was set back, or a failover to another clock, grants and resets lie in the
// future. They must not delay calls for that long.
func TestClockSetBackStopsNoCall(t *testing.T) {
	for _, heard := range []string{"", " 0 50 %d 0 50 0 0.000000000"} {
		inBubble(t, 1, perSecond(10, 10), budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
			later := time.Now().Add(time.Hour)
			state := fmt.Sprintf("1.000000 %d 7", later.UnixMicro())
			if heard != "" {
				state += fmt.Sprintf(heard, later.Add(10*time.Minute).UnixMicro())
			}
			if err := s.Set("test:budget:{vendor}:state", state); err != nil {
				t.Fatal(err)
			}
			b := all[0]
			if _, err := b.Spend(context.Background(), guard.Spending{Cost: 1}); err != nil {
				t.Errorf("with the state %q: %v", state, err)
			}
			if heard == "" {
				return
			}
			_, err := b.Spend(context.Background(), guard.Spending{Cost: 50}) // one more than is left
			var exhausted *budget.ExhaustedError
			if !errors.As(err, &exhausted) || exhausted.RetryAfter > 11*time.Minute {
				t.Errorf("of the upstream's word: %v, want 10 minutes", err)
			}
		})
	}
}

func TestEmptiedRedisBeginsAgain(t *testing.T) {
	inBubble(t, 2, perSecond(1, 5), budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		var held []guard.Expense
		for range 3 {
			e, err := all[0].Spend(context.Background(), guard.Spending{Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, e)
		}
		if err := s.Client().FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		for _, e := range held {
			e.Settle(0) // Redis forgot the refunded units
		}
		n := 0
		for range 20 {
			for _, b := range all {
				if spend(b, guard.Critical) {
					n++
				}
			}
		}
		if n != 5 {
			t.Errorf("%d calls at once, want the burst of 5", n)
		}
	})
}

func TestCostsAreMadeSane(t *testing.T) {
	inBubble(t, 1, perSecond(1, 10), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b := all[0]
		for _, c := range []int{0, -1, math.MinInt} {
			for range 100 {
				e, err := b.Spend(context.Background(), guard.Spending{Cost: c})
				if err != nil {
					t.Fatalf("cost %d: %v", c, err)
				}
				e.Settle(c)
			}
		}
		if s := b.Known(); s.Spent != 0 {
			t.Errorf("%+v", s)
		}
		e, err := b.Spend(context.Background(), guard.Spending{Cost: math.MaxInt, Priority: guard.Critical})
		if err != nil {
			t.Fatal(err)
		}
		if spend(b, guard.Critical) {
			t.Error("granted beside a cost of more than there is")
		}
		e.Settle(math.MinInt)
		e.Settle(math.MinInt)
		time.Sleep(time.Second)
		n := 0
		for spend(b, guard.Critical) {
			n++
		}
		if n != 10 {
			t.Errorf("%d calls after the refund, want the burst of 10", n)
		}
	})
}

// The error of a queued call has a time, however long it is.
func TestRetryAfterOfAQueuedCallDoesNotOverflow(t *testing.T) {
	yearly := budget.Limit{Rate: 1, Per: 366 * 24 * time.Hour}
	inBubble(t, 1, yearly, budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		ctx, cancel := context.WithCancel(t.Context())
		if err := all[0].Pause(ctx, 30*time.Minute); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = all[0].Spend(ctx, guard.Spending{Cost: 1, MaxWait: time.Hour})
		}()
		time.Sleep(time.Minute)
		_, err := all[0].Spend(ctx, guard.Spending{Cost: math.MaxInt32, MaxWait: time.Second})
		var exhausted *budget.ExhaustedError
		if !errors.As(err, &exhausted) || exhausted.RetryAfter < 366*24*time.Hour {
			t.Errorf("%v", err)
		}
		cancel()
		<-done
	})
}

// Small amounts that leak between two questions are not rounded away.
func TestSlowRatesLeakBetweenFrequentQuestions(t *testing.T) {
	inBubble(t, 1, budget.Limit{Rate: 1, Per: 24 * time.Hour}, budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b := all[0]
		spend(b, guard.Normal)
		for range 100 {
			time.Sleep(20 * time.Millisecond)
			if _, err := b.Spend(context.Background(), guard.Spending{Cost: 0}); err != nil {
				t.Fatal(err)
			}
		}
		_, err := b.Spend(context.Background(), guard.Spending{Cost: 1})
		var exhausted *budget.ExhaustedError
		if !errors.As(err, &exhausted) || exhausted.RetryAfter.Round(time.Second) != 24*time.Hour-2*time.Second {
			t.Errorf("after 2 s of 24 h: %v", err)
		}
	})
}

// Calls that are under way stay so when Redis has lost its word of them, to a
// failover or an eviction, or has taken their process for dead; and a beat that
// meets a call's end brings no dead slot.
func TestCallsUnderWayAreReportedAgainAfterDataLoss(t *testing.T) {
	l := perSecond(1000, 1000)
	l.MaxInFlight = 3
	inBubble(t, 2, l, budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		var held []guard.Expense
		for range 3 {
			e, err := all[0].Spend(context.Background(), guard.Spending{Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, e)
		}
		s.Del("test:budget:{vendor}:inflight")
		time.Sleep(3 * time.Second) // a beat
		if spend(all[1], guard.Critical) {
			t.Error("a fourth call was let in")
		}
		for _, e := range held {
			e.Settle(1)
		}
		if st, err := all[1].Peek(context.Background()); err != nil || st.InFlight != 0 {
			t.Errorf("the state is %+v, %v", st, err)
		}
	})
	inBubble(t, 1, l, budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		b := all[0]
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for range 20 {
					e, err := b.Spend(context.Background(), guard.Spending{Cost: 1, MaxWait: time.Minute})
					if err != nil {
						t.Error(err)
						return
					}
					e.Settle(1)
					_, _ = b.Peek(context.Background()) // which is a beat
				}
			})
		}
		wg.Wait()
		time.Sleep(100 * time.Millisecond)
		for range 3 {
			if _, err := b.Spend(context.Background(), guard.Spending{Cost: 1}); err != nil {
				t.Errorf("a slot was lost: %v", err)
			}
		}
	})
}

// After a clock was set back, the slots of dead processes last no longer than others.
func TestDeadSlotsEndAfterClockIsSetBack(t *testing.T) {
	l := perSecond(1000, 1000)
	l.MaxInFlight = 2
	inBubble(t, 1, l, budget.Options{}, func(t *testing.T, all []*budget.Budget, s *redistest.Embedded) {
		later := float64(time.Now().Add(time.Hour).UnixMicro())
		for _, gone := range []string{"0123456789abcdef.1-", "0123456789abcdef.2-"} {
			if _, err := s.ZAdd("test:budget:{vendor}:inflight", later, gone); err != nil {
				t.Fatal(err)
			}
		}
		if spend(all[0], guard.Normal) {
			t.Error("granted at once, though they may live")
		}
		time.Sleep(6 * time.Second)
		if !spend(all[0], guard.Normal) {
			t.Error("refused after the slots' time")
		}
	})
}

func TestNamespaceIsRequired(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	_, err := budget.New(client, "vendor", perSecond(1, 1), budget.Options{})
	if err == nil || !strings.Contains(err.Error(), "Options.Namespace is empty: name the application") {
		t.Errorf("got %v", err)
	}
}

func TestApplicationsDoNotShareAnAllowance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.RunEmbeddedInMemory(t)
		of := func(namespace string) *budget.Budget {
			l := budget.Limit{Rate: 1, Per: time.Hour, Burst: 1, Reserve: -1}
			return open(t, s.Client(), l, budget.Options{Namespace: namespace})
		}
		shop, again, other := of("shop"), of("shop"), of("office")
		if !spend(shop, guard.Normal) || spend(again, guard.Normal) {
			t.Error("two processes of one application don't share their allowance")
		}
		if !spend(other, guard.Normal) {
			t.Error("another application has no allowance of its own")
		}
	})
}

// spends makes n calls at once that wait for up to most, and returns their errors: nil
// for those that were granted.
func spends(t *testing.T, b *budget.Budget, n int, most time.Duration) <-chan *budget.ExhaustedError {
	all := make(chan *budget.ExhaustedError, n)
	for range n {
		go func() {
			_, err := b.Spend(t.Context(), guard.Spending{Cost: 1, MaxWait: most})
			var exhausted *budget.ExhaustedError
			if err != nil && !errors.As(err, &exhausted) {
				t.Errorf("got %v", err)
			}
			all <- exhausted
		}()
	}
	return all
}

// Redis there, and away: then it is this process's share.
func inBothTimes(t *testing.T, l budget.Limit, test func(t *testing.T, b *budget.Budget)) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprint("away ", away), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := redistest.RunEmbeddedInMemory(t)
				b, err := budget.New(s.Client(), "vendor", l, budget.Options{Namespace: "test"})
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				if away {
					time.Sleep(3 * time.Second) // it knows that it is alone
					if err := s.Stop(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
				}
				test(t, b)
			})
		})
	}
}

func TestExhaustedErrorTellsTheShareOfItsPriority(t *testing.T) {
	inBothTimes(t, budget.Limit{Rate: 1, Per: time.Hour, Burst: 10, Reserve: 0.2}, func(t *testing.T, b *budget.Budget) {
		var e *budget.ExhaustedError
		for e == nil {
			_, err := b.Spend(t.Context(), guard.Spending{Cost: 1, Priority: guard.Background})
			if err != nil && !errors.As(err, &e) {
				t.Fatal(err)
			}
		}
		if text := e.Error(); !strings.Contains(text, "with a burst of 10, of which background calls may use 6") {
			t.Error(text)
		}
	})
}

func TestExhaustedErrorTellsWaitAndLimit(t *testing.T) {
	inBothTimes(t, budget.Limit{Rate: 1, Per: time.Second, Reserve: -1}, func(t *testing.T, b *budget.Budget) {
		spend(b, guard.Normal)
		began, all := time.Now(), spends(t, b, 4, 2*time.Second)
		waited := 0
		for range 4 {
			e := <-all
			if e == nil {
				continue
			}
			took, text := time.Since(began), e.Error()
			if e.Waited != took || !strings.Contains(text, "it allows 1 in 1s, with a burst of 1") {
				t.Errorf("after %v: waited %v: %v", took, e.Waited, text)
			}
			if said := fmt.Sprintf("the call waited %v for it", took.Round(time.Millisecond)); took > 0 {
				waited++
				if !strings.Contains(text, said) {
					t.Errorf("after %v: %v", took, text)
				}
			}
		}
		if waited != 3 {
			t.Errorf("%d waited in vain, want 3", waited)
		}
		if _, err := b.Spend(t.Context(), guard.Spending{Cost: 1}); err == nil || strings.Contains(err.Error(), "waited") {
			t.Errorf("a call that doesn't wait: %v", err)
		}
	})
}

func TestExhaustedErrorTellsOtherLimits(t *testing.T) {
	l := perSecond(100, 100)
	l.MaxInFlight = 2
	inBubble(t, 1, l, budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b := all[0]
		spend(b, guard.Normal)
		spend(b, guard.Normal)
		for _, err := range []*budget.ExhaustedError{<-spends(t, b, 1, 0), <-spends(t, b, 1, time.Second)} {
			if err == nil || !strings.Contains(err.Error(), "it allows 2 calls under way at once; retry after 25ms") {
				t.Errorf("with two under way: %v", err)
			}
		}
		line := spends(t, b, 3, time.Second) // two of them never get their turn to ask
		for range 3 {
			if err := <-line; err == nil || !strings.Contains(err.Error(), "it allows 2 calls under way at once; retry after") {
				t.Errorf("with two under way, in line: %v", err)
			}
		}
	})
	inBubble(t, 1, perSecond(100, 100), budget.Options{}, func(t *testing.T, all []*budget.Budget, _ *redistest.Embedded) {
		b := all[0]
		if err := b.Pause(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		_, err := b.Spend(t.Context(), guard.Spending{Cost: 1, MaxWait: time.Second})
		if err == nil || !strings.Contains(err.Error(), "it allows nothing while the upstream wants a pause; retry after 1m0s") {
			t.Errorf("in a pause: %v", err)
		}
	})
}

// At the time that the last one is told there is something, and there wasn't before.
func TestRetryAfterIsWhenThereIsSomething(t *testing.T) {
	inBothTimes(t, budget.Limit{Rate: 1, Per: time.Second, Reserve: -1}, func(t *testing.T, b *budget.Budget) {
		for _, most := range []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond, 3200 * time.Millisecond} {
			time.Sleep(time.Minute)
			all := spends(t, b, 6, most)
			var last *budget.ExhaustedError
			var end time.Time
			for range 6 {
				if e := <-all; e != nil {
					last, end = e, time.Now().Add(e.RetryAfter)
				}
			}
			if last == nil {
				t.Fatalf("waiting for %v: none was refused", most)
			}
			time.Sleep(time.Until(end) - 25*time.Millisecond)
			if spend(b, guard.Normal) {
				t.Errorf("waiting for %v: there is something before %v", most, last.RetryAfter)
			}
			time.Sleep(time.Until(end) + time.Millisecond)
			if !spend(b, guard.Normal) {
				t.Errorf("waiting for %v: there is nothing after %v", most, last.RetryAfter)
			}
		}
	})
}

// Those that wait are served before a call that comes again.
func TestRetryAfterIncludesWaitersTime(t *testing.T) {
	inBothTimes(t, budget.Limit{Rate: 1, Per: time.Second, Reserve: -1}, func(t *testing.T, b *budget.Budget) {
		for _, c := range []struct {
			most, want time.Duration
			granted    int
		}{
			{10 * time.Second, 3500 * time.Millisecond, 3},
			{2700 * time.Millisecond, 2500 * time.Millisecond, 2},
		} {
			time.Sleep(time.Minute)
			spend(b, guard.Normal)
			all := spends(t, b, 3, c.most)
			time.Sleep(500 * time.Millisecond)
			e := <-spends(t, b, 1, 0)
			if e == nil || e.RetryAfter < c.want || e.RetryAfter > c.want+25*time.Millisecond {
				t.Fatalf("while three wait for %v: got %v, want about %v", c.most, e, c.want)
			}
			time.Sleep(e.RetryAfter + 10*time.Millisecond)
			if !spend(b, guard.Normal) {
				t.Errorf("while three wait for %v: there is nothing then", c.most)
			}
			granted := 0
			for range 3 {
				if e := <-all; e == nil {
					granted++
				}
			}
			if granted != c.granted {
				t.Errorf("of three that wait for %v, %d were granted", c.most, granted)
			}
		}
	})
}
