package guard_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
)

// A payer is a process with a guard that pays.
type payer struct {
	*guard.Guard[string]
	budget *budget.Budget
	events *recorder
}

// payers opens processes that pay for their fetches from one budget.
func payers(w *world, n int, l budget.Limit, p guard.Policy) []payer {
	all := make([]payer, n)
	for i := range all {
		b, err := budget.New(w.server.Client(), "vendor", l, budget.Options{Namespace: "test", Observer: awayTeller{w}})
		must(w, err)
		w.Cleanup(func() { _ = b.Close() })
		p.Budget = b
		r := &recorder{}
		p.Observer = r
		store := w.open()
		all[i] = payer{w.guard(store, p), b, r}
	}
	time.Sleep(time.Second) // fake: until the subscriptions are live
	return all
}

func aSecond(rate, burst int) budget.Limit {
	return budget.Limit{Rate: rate, Per: time.Second, Burst: burst, Reserve: -1}
}

func TestOneFetchIsPaidForOnce(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 3, aSecond(1, 10), policy())
		o := &origin{takes: 200 * time.Millisecond}
		guards := []*guard.Guard[string]{all[0].Guard, all[1].Guard, all[2].Guard}
		for _, a := range callers(guards, 50, "k", o.fetch) {
			must(w, a.err)
		}
		o.fetched(w, 1)
		if n := all[0].budget.Known().Spent + all[1].budget.Known().Spent + all[2].budget.Known().Spent; n < 1 {
			w.Error("nothing was spent")
		}
		st, err := all[0].budget.Peek(w.Context())
		must(w, err)
		if st.Spent != 1 {
			w.Errorf("%d were spent for one fetch", st.Spent)
		}
		if got := all[0].Stats().Budget.Spent; got != 1 {
			w.Errorf("Stats tells of %d", got)
		}
	})
}

func TestHitsAskNoBudget(t *testing.T) {
	inRedis(t, func(w *world) {
		g := payers(w, 1, aSecond(1, 1), policy())[0]
		o := &origin{}
		get(w, g.Guard, "k", o.fetch)
		var n int
		for range 100 { // with the budget exhausted, too
			before := w.server.CommandCount()
			get(w, g.Guard, "k", never)
			n += w.server.CommandCount() - before
		}
		if n > 2*100 { // GET and PTTL
			w.Errorf("%d commands for 100 hits", n)
		}
	})
}

func TestExhaustedBudgetServesStaleValues(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.StaleIfError = time.Hour; p.MaxBudgetWait = time.Minute })
		g := payers(w, 1, budget.Limit{Rate: 1, Per: time.Hour, Burst: 1}, p)[0]
		o := &origin{}
		get(w, g.Guard, "k", o.fetch)
		time.Sleep(2 * time.Minute)
		start := time.Now()
		r, err := g.Load(w.Context(), "k", func(ctx context.Context, _ *guard.Fill[string]) (string, error) { return never(ctx) })
		if err != nil || r.Source != guard.Stale || r.Value != "v1" {
			w.Errorf("got %+v, %v", r, err)
		}
		if d := time.Since(start); d > 0 {
			w.Errorf("it was served after %v", d)
		}
		if s := g.Stats(); s.BudgetRefused != 1 || s.Stale != 1 || g.events.count(cache.BudgetExhausted) != 1 {
			w.Errorf("the stats are %+v", s)
		}
	})
}

func TestCallerWaitsForTheBudgetUntilItsDeadline(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.MaxBudgetWait = 3 * time.Second })
		g := payers(w, 1, budget.Limit{Rate: 1, Per: 2 * time.Second, Burst: 1}, p)[0]
		o := &origin{}
		get(w, g.Guard, "a", o.fetch)
		start := time.Now()
		get(w, g.Guard, "b", o.fetch)
		if d := time.Since(start); !within(d, 2*time.Second, 20*time.Millisecond) {
			w.Errorf("the slot came after %v", d)
		}
		if s := g.Stats(); s.BudgetWaits != 1 {
			w.Errorf("%d waits", s.BudgetWaits)
		}
		// A deadline before the next slot: told at once, and nothing is spent.
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err := g.Get(ctx, "c", o.fetch)
		var exhausted *guard.ExhaustedError
		if !errors.As(err, &exhausted) || !within(exhausted.RetryAfter, 1900*time.Millisecond, 100*time.Millisecond) {
			w.Errorf("got %v", err)
		}
		if d := time.Since(start); d > 0 {
			w.Errorf("it was told after %v", d)
		}
		if s := g.Stats(); s.Errors.Exhausted != 1 {
			w.Errorf("the errors are %+v", s.Errors)
		}
		o.fetched(w, 2)
		// Other callers of the key are not held up by the refusal.
		time.Sleep(2 * time.Second)
		get(w, g.Guard, "c", o.fetch)
	})
}

func TestExhaustionIsToldToWaitersInOtherProcesses(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.MaxBudgetWait = 2 * time.Second })
		all := payers(w, 3, aSecond(1, 1), p)
		get(w, all[0].Guard, "other", (&origin{}).fetch)
		// The next slot would come in time, but then the vendor asks for a pause.
		time.AfterFunc(500*time.Millisecond, func() { _ = all[2].budget.Pause(context.Background(), time.Minute) })
		answers := callers([]*guard.Guard[string]{all[0].Guard, all[1].Guard}, 5, "k", never)
		remote := 0
		for _, a := range answers {
			var exhausted *budget.ExhaustedError
			if !errors.As(a.err, &exhausted) || exhausted.Budget != "vendor" {
				w.Fatalf("got %v", a.err)
			}
			if !within(exhausted.RetryAfter, 59*time.Second, 2*time.Second) {
				w.Errorf("retry after %v", exhausted.RetryAfter)
			}
			var r *guard.RemoteError
			if errors.As(a.err, &r) {
				remote++
			}
			if a.took > 1100*time.Millisecond {
				w.Errorf("it was told after %v", a.took)
			}
		}
		if remote != 5 {
			w.Errorf("%d heard of it from another process, want 5", remote)
		}
	})
}

func TestRefreshesGiveWayToCallers(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.Stale = time.Hour })
		g := payers(w, 1, budget.Limit{Rate: 1, Per: time.Hour, Burst: 10}, p)[0] // 2 kept for critical callers, 2 from refreshes
		o := &origin{}
		for i := range 6 {
			get(w, g.Guard, fmt.Sprint(i), o.fetch)
		}
		time.Sleep(2 * time.Minute)
		for range 100 {
			if v := get(w, g.Guard, "0", never); v != "v1" {
				w.Errorf("got %q", v)
			}
		}
		time.Sleep(100 * time.Millisecond)
		before := w.server.CommandCount()
		for range 100 { // refused lately: each stale hit asks for its value, and nothing else
			get(w, g.Guard, "0", never)
		}
		if n := w.server.CommandCount() - before; n > 205 {
			w.Errorf("%d commands for 100 stale hits", n)
		}
		for i := range 2 {
			get(w, g.Guard, fmt.Sprint("new", i), o.fetch)
		}
		if _, err := g.Get(w.Context(), "more", never); err == nil {
			w.Error("a caller used the part that is kept for critical ones")
		}
		o.fetched(w, 8)
	})
}

func TestFetchStatesItsCost(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.Cost = 30 })
		g := payers(w, 1, aSecond(10, 100), p)[0]
		_, err := g.Load(w.Context(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			if f.Cost != 30 || g.budget.Known().Spent != 30 {
				w.Errorf("the fetch is told of %d, and %d were spent", f.Cost, g.budget.Known().Spent)
			}
			f.Cost = 45
			return "v", nil
		})
		must(w, err)
		time.Sleep(time.Millisecond)
		if n := g.budget.Known().Spent; n != 45 {
			w.Errorf("%d were spent", n)
		}
	})
}

func TestUnguardedFetchesArePaidFromTheShare(t *testing.T) {
	inRedis(t, func(w *world) {
		all := payers(w, 2, aSecond(10, 1), policy())
		time.Sleep(5 * time.Second) // until each has seen the other
		w.server.SetError("LOADING for the test")
		start := time.Now()
		var wg sync.WaitGroup
		o := &origin{}
		var mu sync.Mutex
		refused := 0
		for i, g := range all {
			wg.Go(func() {
				for n := 0; time.Since(start) < 10*time.Second; n++ {
					_, err := g.Get(w.Context(), fmt.Sprint(i, n), o.fetch)
					var exhausted *guard.ExhaustedError
					if err != nil && !errors.As(err, &exhausted) {
						w.Errorf("got %v", err)
						return
					}
					if err != nil {
						mu.Lock()
						refused++
						mu.Unlock()
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if n := o.n.Load(); n < 80 || n > 10*10+2+1 || refused == 0 {
			w.Errorf("%d fetches in 10 s without Redis, of a limit of 100; %d refused", n, refused)
		}
		w.server.SetError("")
		time.Sleep(5 * time.Second)
	})
}

func TestUnwantedFetchEndsItsBudgetWait(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.MaxBudgetWait = time.Hour; p.FetchTimeout = time.Minute })
		all := payers(w, 2, budget.Limit{Rate: 1, Per: time.Minute, Burst: 1}, p)
		get(w, all[0].Guard, "other", (&origin{}).fetch)
		// Two callers, or their flight would heed the deadline of the one.
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				time.Sleep(100 * time.Millisecond)
				_, _ = all[0].Get(ctx, "k", never)
			})
		}
		wg.Wait()
		time.Sleep(200 * time.Millisecond)
		if n := len(all[0].Stats().InFlight); n != 0 {
			w.Errorf("%d flights are left", n)
		}
		time.Sleep(time.Minute)
		o := &origin{}
		get(w, all[1].Guard, "k", o.fetch) // neither the lease nor the slot was kept
	})
}

func TestDeleteEndsTheWaitForABudget(t *testing.T) {
	inRedis(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.MaxBudgetWait = time.Hour; p.FetchTimeout = time.Minute })
		all := payers(w, 2, budget.Limit{Rate: 1, Per: 30 * time.Second, Burst: 1}, p)
		get(w, all[0].Guard, "other", (&origin{}).fetch)
		done := make(chan error, 1)
		o := &origin{}
		go func() { _, err := all[0].Get(context.Background(), "k", o.fetch); done <- err }()
		time.Sleep(5 * time.Second)
		must(w, all[1].Delete(w.Context(), "k"))
		if err := <-done; err != nil { // it goes round, and fetches when there is a slot
			w.Error(err)
		}
		o.fetched(w, 1)
		if st, _ := all[0].budget.Peek(w.Context()); st.Spent != 2 {
			w.Errorf("%d were spent for two fetches", st.Spent)
		}
	})
}

// An awayTeller tells a test why its budget lives on its share.
type awayTeller struct{ w *world }

func (a awayTeller) Observe(e cache.Event) { a.w.Logf("%s %v", e.Kind, e.Err) }

// One call of GetMany's fetch is one call of the upstream.
func TestBatchIsPaidForByTheCall(t *testing.T) {
	inRedis(t, func(w *world) {
		g := payers(w, 1, aSecond(1, 3), policy(func(p *guard.Policy) { p.MaxBatch = 2 }))[0]
		calls := 0
		many := func(keys ...string) (map[string]string, error) {
			return g.GetMany(w.Context(), keys, func(_ context.Context, keys []string) (map[string]string, error) {
				calls++
				got := map[string]string{}
				for _, k := range keys {
					got[k] = "v"
				}
				return got, nil
			})
		}
		got, err := many("a", "b", "c", "d", "e")
		must(w, err)
		st, err := g.budget.Peek(w.Context())
		must(w, err)
		if len(got) != 5 || calls != 3 || st.Spent != 3 {
			w.Errorf("%d values by %d calls for %d", len(got), calls, st.Spent)
		}
		got, err = many("a", "f")
		batch, ok := errors.AsType[*guard.BatchError](err)
		if !ok || got["a"] != "v" || calls != 3 {
			w.Fatalf("with nothing left: %v, %v, %d calls", got, err, calls)
		}
		if exhausted, ok := errors.AsType[*guard.ExhaustedError](batch.Errs["f"]); !ok || exhausted.RetryAfter <= 0 {
			w.Errorf("the key that could not be paid for: %v", batch.Errs["f"])
		}
		time.Sleep(2 * time.Second) // fake
		if got, err = many("f"); err != nil || got["f"] != "v" {
			w.Errorf("when there is something again: %v, %v", got, err)
		}
	})
}
