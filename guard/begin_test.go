package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// begin asks for a turn and fails the test if there is none.
func begin(w *world, g *guard.Guard[string], key string) *guard.Turn[string] {
	w.Helper()
	r, turn, err := g.Begin(context.Background(), key, nil)
	if err != nil || turn == nil {
		w.Fatalf("Begin returned %v, error %v, want a turn", r, err)
	}
	return turn
}

func TestBeginGivesOneTurnInTheFleet(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(3, policy())
		turn := begin(w, fleet[0], "k")
		var wg sync.WaitGroup
		for _, g := range fleet {
			for range 5 {
				wg.Go(func() {
					r, other, err := g.Begin(context.Background(), "k", nil)
					if err != nil || other != nil || r.Value != "v" || r.Source != guard.Waited {
						w.Errorf("Begin returned %v, turn %v, error %v", r, other, err)
					}
				})
				wg.Go(func() {
					if v := get(w, g, "k", never); v != "v" {
						w.Errorf("Get returned %q", v)
					}
				})
			}
		}
		time.Sleep(time.Second)
		if !turn.Wanted() || turn.Alone() || turn.Background() || turn.Fill.Attempt != 1 {
			w.Errorf("the turn says %v, %v, %v, attempt %d", turn.Wanted(), turn.Alone(), turn.Background(), turn.Fill.Attempt)
		}
		if !turn.Store("v") {
			w.Error("the value was not stored")
		}
		wg.Wait()
		if turn.Store("again") {
			w.Error("a turn that is over stored a value")
		}
		r, turn, err := fleet[1].Begin(context.Background(), "k", nil)
		if err != nil || turn != nil || r.Value != "v" || r.Source != guard.FromStore {
			w.Errorf("Begin returned %v, turn %v, error %v afterwards", r, turn, err)
		}
	})
}

func TestFailedTurnFailsAllWaitersOnce(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		turn := begin(w, fleet[0], "k")
		var wg sync.WaitGroup
		for _, g := range fleet {
			wg.Go(func() {
				_, turn, err := g.Begin(context.Background(), "k", nil)
				if turn != nil || err == nil {
					w.Errorf("turn %v, error %v", turn, err)
				}
			})
		}
		time.Sleep(time.Second)
		turn.Fail(errors.New("no"))
		wg.Wait()
	})
}

func TestReleasedTurnGoesToAWaiter(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		for i, from := range fleet {
			turn := begin(w, from, "k")
			taken := make(chan *guard.Turn[string])
			for range 3 {
				go func() {
					if _, turn, _ := fleet[1].Begin(context.Background(), "k", nil); turn != nil {
						taken <- turn
					}
				}()
			}
			time.Sleep(time.Second)
			turn.Release()
			next := <-taken
			synctest.Wait()
			if next.Fill.Attempt != 1 {
				w.Errorf("%d: attempt %d, want 1", i, next.Fill.Attempt)
			}
			next.Store("v")
			must(w, from.Delete(context.Background(), "k"))
		}
	})
}

func TestTurnPassesFromADepartedCaller(t *testing.T) {
	inWorlds(t, func(w *world) {
		elsewhere, g := w.open(), w.fleet(1, policy())[0]
		lease := held(w, elsewhere, "g:k")
		ctx, leave := context.WithCancel(context.Background())
		left := make(chan error)
		go func() {
			_, _, err := g.Begin(ctx, "k", nil)
			left <- err
		}()
		synctest.Wait()
		taken := make(chan *guard.Turn[string])
		go func() {
			_, turn, _ := g.Begin(context.Background(), "k", nil)
			taken <- turn
		}()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			w.Errorf("the caller that left got %v", err)
		}
		released(w, elsewhere, lease)
		start := time.Now()
		turn := <-taken
		if turn == nil || time.Since(start) > time.Second {
			w.Fatalf("turn %v after %v", turn, time.Since(start))
		}
		turn.Store("v")
		get(w, g, "k", never)
	})
}

func TestTurnEndsAtFetchTimeoutOrClose(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.FetchTimeout = time.Second }))
		turn := begin(w, fleet[0], "k")
		_, _, err := fleet[1].Begin(context.Background(), "k", nil)
		if !errors.Is(err, guard.ErrFetchTimeout) {
			w.Errorf("a waiter got %v, want ErrFetchTimeout", err)
		}
		if turn.Context().Err() == nil || turn.Store("late") {
			w.Error("the turn outlived FetchTimeout")
		}
		turn = begin(w, fleet[0], "other")
		must(w, fleet[0].Close())
		if turn.Context().Err() == nil || turn.Store("late") {
			w.Error("the turn outlived its guard")
		}
		start := time.Now()
		get(w, fleet[1], "other", (&origin{}).fetch)
		if took := time.Since(start); took > 100*time.Millisecond {
			w.Errorf("the lease was left behind for %v", took)
		}
	})
}

func TestDeleteCancelsATurn(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		turn := begin(w, g, "k")
		must(w, g.Delete(context.Background(), "k"))
		<-turn.Context().Done()
		if turn.Store("old") {
			w.Error("a value from before the Delete was stored")
		}
		next := begin(w, g, "k")
		next.Store("new")
	})
}

func TestPrivateTurnsRunSideBySide(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		turn := begin(w, g, "k")
		alone := make(chan *guard.Turn[string])
		go func() {
			_, turn, _ := g.Begin(context.Background(), "k", nil)
			alone <- turn
		}()
		synctest.Wait()
		turn.Fill.Private = true
		if turn.Store("mine") {
			w.Error("a private value was stored")
		}
		waiter := <-alone
		if waiter == nil || !waiter.Alone() || !waiter.Fill.Private {
			w.Fatalf("a waiter got %v, want a turn of its own", waiter)
		}
		other := begin(w, g, "k")
		if !other.Alone() || other.Fill.TTL <= 0 {
			w.Errorf("alone %v, %v left of the marker", other.Alone(), other.Fill.TTL)
		}
		other.Store("mine")
		waiter.Store("mine")
	})
}

func TestTurnRefreshesAValueThatIsServed(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Second, time.Minute }))[0]
		begin(w, g, "k").Store("v1")
		time.Sleep(2 * time.Second)
		turns := make(chan *guard.Turn[string], 10)
		for range 3 {
			r, turn, err := g.Begin(context.Background(), "k", func(turn *guard.Turn[string]) { turns <- turn })
			if err != nil || turn != nil || r.Value != "v1" || r.Source != guard.Stale {
				w.Errorf("Begin returned %v, turn %v, error %v", r, turn, err)
			}
			synctest.Wait()
		}
		if len(turns) != 1 {
			w.Fatalf("%d turns to refresh the value, want 1", len(turns))
		}
		turn := <-turns
		if !turn.Background() || turn.Fill.Stale == nil || *turn.Fill.Stale != "v1" {
			w.Errorf("background %v, stale %v", turn.Background(), turn.Fill.Stale)
		}
		turn.Fail(guard.ErrNotModified)
		if r, _, _ := g.Begin(context.Background(), "k", nil); r.Value != "v1" || r.Source != guard.FromStore {
			w.Errorf("%v after the refresh", r)
		}
	})
}

func TestTurnWithoutRedisStoresNothing(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		w.server.SetError("LOADING for the test")
		turn := begin(w, g, "k")
		if turn.Store("v") {
			w.Error("stored without a store")
		}
		w.server.SetError("")
	})
}

func TestTurnSettlesItsBudget(t *testing.T) {
	inWorlds(t, func(w *world) {
		b := &purse{}
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Budget, p.Cost = b, 3 }))[0]
		turn := begin(w, g, "k")
		if turn.Fill.Cost != 3 {
			w.Errorf("cost %d, want 3", turn.Fill.Cost)
		}
		turn.Fill.Cost = 5
		turn.Store("v")
		if b.settled != 5 {
			w.Errorf("settled %d, want 5", b.settled)
		}
	})
}

// A purse is a budget without limits.
type purse struct{ settled int }

func (p *purse) Spend(context.Context, guard.Spending) (guard.Expense, error) { return p, nil }
func (p *purse) Exhausted(guard.Priority) bool                                { return false }
func (p *purse) Known() guard.BudgetState                                     { return guard.BudgetState{} }
func (p *purse) Settle(n int)                                                 { p.settled += n }

func TestTurnTakesAnotherKeysTurnUnpaid(t *testing.T) {
	inWorlds(t, func(w *world) {
		b := &purse{}
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Budget, p.Cost = b, 3 }))
		turn := begin(w, fleet[0], "page")
		held := begin(w, fleet[1], "held")
		if also := turn.Also("held"); also != nil {
			w.Error("a turn of a key that another process fetches")
		}
		held.Fail(errors.New("no"))
		also := turn.Also("variant")
		if also == nil {
			w.Fatal("no turn of a key that no caller fetches")
		}
		turn.Store("index")
		waited := make(chan string)
		go func() { waited <- get(w, fleet[1], "variant", never) }()
		synctest.Wait()
		if !also.Store("v") || <-waited != "v" {
			w.Error("the value did not reach the waiter")
		}
		if b.settled != 6 {
			w.Errorf("settled %d, want 6 for two fetches", b.settled)
		}
	})
}

func TestTurnTellsTheAgeOfItsStaleValue(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		begin(w, g, "k").Store("v")
		time.Sleep(2 * time.Second)
		_, turn, err := g.Begin(context.Background(), "k", nil, guard.MaxAge(0))
		if err != nil || turn == nil {
			w.Fatalf("turn %v, error %v", turn, err)
		}
		time.Sleep(time.Second)
		if age := turn.StaleAge(); age < 3*time.Second || age > 3*time.Second+100*time.Millisecond {
			w.Errorf("the age is %v, want 3s", age)
		}
		turn.Release()
	})
}

func TestImpatientTurnsShareTheSlots(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.WaitTimeout, p.OnWaitTimeout, p.MaxUnguarded = time.Second, guard.StaleOrFetch, 1
		}))[0]
		holder := begin(w, g, "k")
		turns := make(chan *guard.Turn[string], 2)
		for range 2 {
			go func() {
				_, turn, _ := g.Begin(context.Background(), "k", nil)
				turns <- turn
			}()
		}
		time.Sleep(1500 * time.Millisecond)
		if len(turns) != 1 {
			w.Errorf("%d turns with one slot", len(turns))
		}
		(<-turns).Store("mine")
		if turn := <-turns; turn == nil || !turn.Alone() {
			w.Errorf("the slot was not given back: %v", turn)
		} else {
			must(w, g.Close())
			<-turn.Context().Done() // in this bubble it would be a deadlock if the turn outlived its guard
		}
		holder.Release()
	})
}

// For the race detector: a caller of WhileWanted asks from a goroutine of its own.
func TestTurnMayEndWhileItIsAskedAbout(t *testing.T) {
	inMemory(t, func(w *world) {
		turn := begin(w, w.fleet(1, policy())[0], "k")
		var wg sync.WaitGroup
		wg.Go(func() { turn.Store("v") })
		turn.Wanted()
		wg.Wait()
		if turn.Wanted() {
			w.Error("a turn that is over is wanted")
		}
	})
}

func TestRefreshThatHangsHoldsUpNothing(t *testing.T) {
	inMemory(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.TTL, p.Stale, p.FetchTimeout = time.Second, time.Hour, time.Second })
		g := w.fleet(1, p)[0]
		begin(w, g, "k").Store("v1")
		begun, hangs := make(chan struct{}, 2), make(chan struct{})
		defer close(hangs)
		for range 2 {
			time.Sleep(10 * time.Second)
			_, _, err := g.Begin(ctx, "k", func(*guard.Turn[string]) { begun <- struct{}{}; <-hangs })
			must(w, err)
		}
		synctest.Wait()
		if len(begun) != 2 {
			w.Errorf("%d refreshes began, want 2", len(begun))
		}
		closed := make(chan error, 1)
		go func() { closed <- g.Close() }()
		select {
		case err := <-closed:
			must(w, err)
		case <-time.After(time.Minute):
			w.Error("Close waits for the refresh")
		}
	})
}
