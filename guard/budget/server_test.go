package budget_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func TestCheckIsOneRoundTrip(t *testing.T) {
	s := server(t)
	rdb := s.Client()
	var counter redistest.Counter
	rdb.AddHook(&counter)
	b := open(t, rdb, budget.Limit{Rate: 1000, Per: time.Second, Burst: 1000}, patient)
	if !spend(b, guard.Normal) {
		t.Fatal("refused") // and the script is loaded
	}
	before := counter.All()
	for range 100 {
		e, err := b.Spend(t.Context(), guard.Spending{Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		e.Settle(1)
	}
	sent := 0
	for name, n := range counter.All() {
		if n -= before[name]; n > 0 && name != "evalsha" {
			t.Errorf("%d %s were sent", n, name)
		} else {
			sent += int(n)
		}
	}
	if sent < 100 || sent > 103 { // a beat may fall among them
		t.Errorf("%d commands for 100 calls, want one for each", sent)
	}
}

func TestScriptsAreLoadedAgainWhenRedisForgotThem(t *testing.T) {
	s := server(t)
	rdb := s.Client()
	b := open(t, rdb, budget.Limit{Rate: 10, Per: time.Second, Burst: 10}, patient)
	for range 2 {
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if !spend(b, guard.Normal) {
			t.Error("refused")
		}
	}
}

func TestMissingPermissionIsAnError(t *testing.T) {
	s := server(t)
	admin := s.Client()
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-zadd").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.Options()
	o.Username, o.Password = "poor", "pw"
	rdb := redis.NewClient(o)
	defer rdb.Close()
	if b, err := budget.New(rdb, "vendor", budget.Limit{Rate: 1, Per: time.Second}, patient); err == nil {
		_ = b.Close()
		t.Error("a user without ZADD was let in")
	}
	// And the commands that New names are enough.
	cmds := strings.Fields("+eval +evalsha +time +get +set +zadd +zrem +zcard +zrange +zscore +zremrangebyscore +pexpire +ping +pubsub +subscribe +unsubscribe")
	args := []any{"ACL", "SETUSER", "able", "on", ">pw", "~test:*", "&test:*", "+hello"}
	for _, c := range cmds {
		args = append(args, c)
	}
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	o = s.Options()
	o.Username, o.Password = "able", "pw"
	rdb = redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	b := open(t, rdb, budget.Limit{Rate: 10, Per: time.Second, MaxInFlight: 1}, patient)
	e, err := b.Spend(t.Context(), guard.Spending{Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Pause(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
	e.Settle(3)
	if st, err := b.Peek(t.Context()); err != nil || st.Away || st.InFlight != 0 || st.Spent != 3 {
		t.Errorf("the state is %+v, %v", st, err)
	}
}

func TestBudgetWorksOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.RunCluster(t, redistest.ClusterConfig{})
	l := budget.Limit{Rate: 1, Per: time.Minute, Burst: 3, MaxInFlight: 2, Reserve: -1}
	a, b := open(t, c.Client(), l, patient), open(t, c.Client(), l, patient)
	for i := range 3 {
		e, err := a.Spend(t.Context(), guard.Spending{Cost: 1})
		if (err == nil) != (i < 2) {
			t.Fatalf("call %d: %v", i, err)
		}
		if i == 1 {
			e.Settle(1)
		}
		if i == 0 {
			t.Cleanup(func() { e.Settle(1) })
		}
		if i == 1 && !spend(b, guard.Normal) {
			t.Error("the other process was refused")
		}
	}
}

// While Redis is away each process spends its share; the spent units are charged
// when Redis is back.
func TestShareWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	const procs = 4
	s := server(t)
	proxy := redistest.RunProxy(t, s.Addr())
	l := budget.Limit{Rate: 200, Per: time.Second, Burst: 8, Reserve: -1}
	all := make([]*budget.Budget, procs)
	for i := range all {
		rdb := redis.NewClient(proxy.Options())
		t.Cleanup(func() { _ = rdb.Close() })
		all[i] = open(t, rdb, l, budget.Options{RedisTimeout: time.Second})
	}
	for _, b := range all { // all have seen all
		if st, err := b.Peek(t.Context()); err != nil || st.Processes != procs {
			t.Fatalf("%+v, %v", st, err)
		}
	}
	before := all[0].Known().Spent
	proxy.Cut()
	for _, b := range all {
		_ = spend(b, guard.Normal)
		if st, err := b.Peek(t.Context()); err != nil || !st.Away {
			t.Fatalf("it doesn't know that Redis is away: %+v, %v", st, err)
		}
	}
	start := time.Now()
	var mu sync.Mutex
	var at []time.Time
	var wg sync.WaitGroup
	for _, b := range all {
		wg.Go(func() {
			for time.Since(start) < 2*time.Second {
				_, err := b.Spend(t.Context(), guard.Spending{Cost: 1, MaxWait: 50 * time.Millisecond})
				if err == nil {
					mu.Lock()
					at = append(at, time.Now())
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	n := float64(len(at))
	if most := 200*took.Seconds() + 8 + procs; n > most || n < 0.5*200*2 {
		t.Errorf("%v calls in %v without Redis, at most %v are stated", n, took, most)
	}
	if err := proxy.Restore(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "all to be back", func() bool {
		for _, b := range all {
			if st, _ := b.Peek(t.Context()); st.Away {
				return false
			}
		}
		return true
	})
	// A settlement may still be on its way.
	waitFor(t, "all calls to be charged", func() bool {
		st, err := all[0].Peek(t.Context())
		return err == nil && st.Spent-before >= int64(n)
	})
}

// A debt is a debt when Redis is away, and when it comes and goes.
func TestDebtIsNotForgottenWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	s := server(t)
	proxy := redistest.RunProxy(t, s.Addr())
	rdb := redis.NewClient(proxy.Options())
	t.Cleanup(func() { _ = rdb.Close() })
	b := open(t, rdb, budget.Limit{Rate: 1, Per: time.Second, Burst: 2, Reserve: -1}, patient)
	if _, err := b.Spend(t.Context(), guard.Spending{Cost: 1000}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		proxy.Cut()
		waitFor(t, "it to know that Redis is away", func() bool {
			if _, err := b.Spend(t.Context(), guard.Spending{Cost: 1}); err == nil {
				t.Error("granted in debt")
			}
			st, _ := b.Peek(t.Context())
			return st.Away
		})
		_, err := b.Spend(t.Context(), guard.Spending{Cost: 1, MaxWait: 3 * time.Second})
		var exhausted *budget.ExhaustedError
		if !errors.As(err, &exhausted) || exhausted.RetryAfter < 5*time.Minute {
			t.Errorf("away, with a debt of 1000 s: %v", err)
		}
		if err := proxy.Restore(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "Redis to be back", func() bool { st, _ := b.Peek(t.Context()); return !st.Away })
	}
}

func TestPauseDuringAnOutageIsReportedLater(t *testing.T) {
	t.Parallel()
	s := server(t)
	proxy := redistest.RunProxy(t, s.Addr())
	l := budget.Limit{Rate: 1000, Per: time.Second, Burst: 100}
	rdb := redis.NewClient(proxy.Options())
	t.Cleanup(func() { _ = rdb.Close() })
	a, b := open(t, rdb, l, patient), open(t, s.Client(), l, patient)
	proxy.Cut()
	if err := a.Pause(t.Context(), time.Minute); err == nil {
		t.Error("told a Redis that is away")
	}
	if spend(a, guard.Critical) {
		t.Error("granted in a pause")
	}
	if !spend(b, guard.Normal) {
		t.Error("the other can't know yet")
	}
	if err := proxy.Restore(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the pause to be told", func() bool { return !spend(b, guard.Critical) && b.Known().Paused > 30*time.Second })
}

func TestProcessThatNeverReachedRedisAssumesOthers(t *testing.T) {
	s := server(t)
	proxy := redistest.RunProxy(t, s.Addr())
	proxy.Cut()
	rdb := redis.NewClient(proxy.Options())
	t.Cleanup(func() { _ = rdb.Close() })
	b, err := budget.New(rdb, "vendor", budget.Limit{Rate: 10, Per: time.Second}, budget.Options{Namespace: "test", Processes: 5})
	if err != nil {
		t.Fatal("a Redis that is away is an error: ", err)
	}
	t.Cleanup(func() { _ = b.Close() }) // which can't be told to Redis
	_, err = b.Spend(t.Context(), guard.Spending{Cost: 1})
	var exhausted *budget.ExhaustedError
	if !errors.As(err, &exhausted) || exhausted.RetryAfter > 500*time.Millisecond || exhausted.RetryAfter < 10*time.Millisecond {
		t.Errorf("a fifth of 10/s has something within 500ms: %v", err)
	}
	if _, err := b.Spend(t.Context(), guard.Spending{Cost: 1, MaxWait: time.Second}); err != nil {
		t.Error(err)
	}
}

func waitFor(t *testing.T, what string, true func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !true(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// BenchmarkCheck reports the time that a check takes of Redis's one thread, mean
// and median, from INFO commandstats and latencystats (Redis 7), which count the
// commands of a script as part of it. It is time on the clock: on a busy machine the mean
// tells of the others, so there is a script that does nothing beside it.
func BenchmarkCheck(b *testing.B) {
	b.Run("baseline", func(b *testing.B) {
		s := server(b)
		rdb, nothing := s.Client(), redis.NewScript("return 1")
		_ = nothing.Run(b.Context(), rdb, nil).Err()
		measure(b, s, func() { _ = nothing.Run(b.Context(), rdb, nil).Err() })
	})
	plenty := budget.Limit{Rate: 1 << 30, Per: time.Second, Burst: 1 << 30}
	bounded := plenty
	bounded.MaxInFlight = 100
	for _, c := range []struct {
		name string
		l    budget.Limit
	}{
		{"granted", plenty},
		{"exhausted", budget.Limit{Rate: 1, Per: time.Hour, Burst: 1}},
		{"in-flight", bounded}, // and settled, in a round trip of its own
	} {
		b.Run(c.name, func(b *testing.B) {
			s := server(b)
			bud := open(b, s.Client(), c.l, patient)
			_ = spend(bud, guard.Normal)
			cost := 1
			if c.name == "exhausted" {
				cost = math.MaxInt32 // each asks for less than was refused before, or it would not ask
			}
			measure(b, s, func() {
				if e, err := bud.Spend(b.Context(), guard.Spending{Cost: cost}); err == nil {
					e.Settle(cost)
				} else {
					cost--
				}
			})
		})
	}
}

func measure(b *testing.B, s *redistest.Server, check func()) {
	if err := s.ResetCommands(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		check()
	}
	stat := func(section, command, field string) float64 {
		info, err := s.Client().Info(b.Context(), section).Result()
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(info, command+":")
		_, rest, _ = strings.Cut(rest, field+"=")
		x, err := strconv.ParseFloat(rest[:max(0, strings.IndexAny(rest, ",\r"))], 64)
		if err != nil {
			b.Fatalf("no %s of %s in %s", field, command, info)
		}
		return x
	}
	calls := stat("commandstats", "cmdstat_evalsha", "calls")
	b.ReportMetric(stat("commandstats", "cmdstat_evalsha", "usec")/calls, "redis-µs/script")
	b.ReportMetric(stat("latencystats", "latency_percentiles_usec_evalsha", "p50"), "redis-µs/script-p50")
	b.ReportMetric(calls/float64(b.N), "scripts/op")
}

// A cost beyond all measure, at the slowest rate, is a debt for ages, and no number
// that Redis can't hold: a command that it refuses would be taken for an outage.
func TestHugeDebtsStayNumbers(t *testing.T) {
	s := server(t)
	b := open(t, s.Client(), budget.Limit{Rate: 1, Per: 366 * 24 * time.Hour, Burst: math.MaxInt32, MaxInFlight: 100}, patient)
	for i := range 3 {
		e, err := b.Spend(t.Context(), guard.Spending{Cost: 1, Priority: guard.Critical})
		if err != nil {
			t.Fatal(i, err)
		}
		if i == 2 {
			e.Settle(math.MaxInt)
		}
	}
	for range 3 {
		_, err := b.Spend(t.Context(), guard.Spending{Cost: math.MaxInt, Priority: guard.Critical})
		var exhausted *budget.ExhaustedError
		if !errors.As(err, &exhausted) || exhausted.RetryAfter < 24*time.Hour {
			t.Errorf("got %v, want it to say that it takes years", err)
		}
	}
	if st, err := b.Peek(t.Context()); err != nil || st.Away || st.Spent < math.MaxInt32 || st.Remaining != 0 {
		t.Errorf("the state is %+v, %v", st, err)
	}
}

// A refund during a known outage is made once, when Redis is back. It does not pay for
// units that were spent meanwhile.
func TestRefundWhileRedisIsAwayIsMadeLater(t *testing.T) {
	t.Parallel()
	s := server(t)
	proxy := redistest.RunProxy(t, s.Addr())
	l := budget.Limit{Rate: 1, Per: time.Hour, Burst: 100, Reserve: -1}
	rdb := redis.NewClient(proxy.Options())
	t.Cleanup(func() { _ = rdb.Close() })
	a, b := open(t, rdb, l, patient), open(t, s.Client(), l, patient)
	var held []guard.Expense
	for _, c := range []int{60, 10, 10, 10} {
		e, err := a.Spend(t.Context(), guard.Spending{Cost: c})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, e)
	}
	for range 2 { // nothing is made twice
		proxy.Cut()
		waitFor(t, "it to know that Redis is away", func() bool { st, _ := a.Peek(t.Context()); return st.Away })
		held[0].Settle(0)
		held[1].Settle(15)
		if st, err := b.Peek(t.Context()); err != nil || st.Remaining < 10 {
			t.Errorf("while one is away the other has %+v, %v", st, err)
		}
		if err := proxy.Restore(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "Redis to be back", func() bool { st, _ := a.Peek(t.Context()); return !st.Away })
		// The debt may still be on its way.
		waitFor(t, "35 of 100 to be spent", func() bool {
			st, err := b.Peek(t.Context())
			return err == nil && st.Spent == 35 && st.Remaining == 65
		})
	}
	// Units that Redis has forgotten are not refunded, and not set off against a debt.
	proxy.Cut()
	waitFor(t, "it to know that Redis is away", func() bool { st, _ := a.Peek(t.Context()); return st.Away })
	if err := s.Client().Del(t.Context(), "test:budget:{vendor}:state").Err(); err != nil {
		t.Fatal(err)
	}
	held[2].Settle(0)
	held[3].Settle(15)
	if err := proxy.Restore(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "Redis to be back", func() bool { st, _ := a.Peek(t.Context()); return !st.Away })
	waitFor(t, "the 5 to be spent since all was forgotten", func() bool {
		st, err := b.Peek(t.Context())
		return err == nil && st.Spent == 5 && st.Remaining == 95
	})
}

// observing keeps the events of a budget.
type observing chan cache.Event

func (o observing) Observe(e cache.Event) { o <- e }

func TestBudgetSaysWhichRedisIsAwayAndWhy(t *testing.T) {
	const nobody = "127.0.0.1:1" // listens there
	rdb := redis.NewClient(&redis.Options{Addr: nobody})
	defer rdb.Close()
	events := make(observing, 100)
	b, err := budget.New(rdb, "vendor", perSecond(1, 1), budget.Options{Namespace: "test", RedisTimeout: 100 * time.Millisecond, Observer: events})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Kind != cache.BudgetAway || !strings.Contains(e.Err.Error(), "Redis at "+nobody+": dial tcp "+nobody+": connect: connection refused") {
		t.Errorf("the event is %s: %v", e.Kind, e.Err)
	}
	if err := b.Close(); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Close: %v", err)
	}
}
