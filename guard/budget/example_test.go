package budget_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// exampleClient is a client of an embedded server, which stands in for a Redis.
func exampleClient() (rdb *redis.Client, stop func()) {
	server, err := redistest.StartEmbedded()
	if err != nil {
		log.Fatal(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		_ = server.Stop()
	}
}

// A guard pays for its fetches. Once nothing is left, it serves stale values.
func ExampleNew() {
	rdb, stop := exampleClient()
	defer stop()
	limit := budget.Limit{Rate: 1, Per: time.Hour} // one call an hour, for the whole fleet
	allowance, err := budget.New(rdb, "vendor", limit, budget.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer allowance.Close()
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	quotes, err := guard.New[float64](store, "quotes", guard.Policy{
		TTL:          time.Minute,
		StaleIfError: time.Hour,
		Budget:       allowance,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer quotes.Close()

	ctx := context.Background()
	askVendor := func(context.Context, *guard.Fill[float64]) (float64, error) { return 1.08, nil }
	r, err := quotes.Load(ctx, "EURUSD", askVendor)
	fmt.Println(r.Value, r.Source, err)
	if err := quotes.Expire(ctx, "EURUSD"); err != nil {
		log.Fatal(err)
	}
	r, err = quotes.Load(ctx, "EURUSD", askVendor)
	fmt.Println(r.Value, r.Source, err)

	_, err = quotes.Load(ctx, "EURCHF", askVendor) // there is no stale value
	var exhausted *guard.ExhaustedError
	fmt.Println(errors.As(err, &exhausted))
	// Output:
	// 1.08 fetched <nil>
	// 1.08 stale <nil>
	// true
}

// A program pays for a call by itself: an estimate before the call, the rest after it.
func ExampleBudget_Spend() {
	rdb, stop := exampleClient()
	defer stop()
	limit := budget.Limit{Rate: 1000, Per: time.Hour, Burst: 1000, Reserve: -1}
	tokens, err := budget.New(rdb, "model", limit, budget.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer tokens.Close()

	ctx := context.Background()
	expense, err := tokens.Spend(ctx, guard.Spending{Cost: 800, MaxWait: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	used := 300 // as the response of the call says
	expense.Settle(used)

	// 700 are left.
	_, first := tokens.Spend(ctx, guard.Spending{Cost: 600})
	_, second := tokens.Spend(ctx, guard.Spending{Cost: 600})
	var exhausted *budget.ExhaustedError
	fmt.Println(first, errors.As(second, &exhausted))
	// Output: <nil> true
}

// A response that states a limit slows down the whole fleet.
func ExampleBudget_Learn() {
	rdb, stop := exampleClient()
	defer stop()
	limit := budget.Limit{Rate: 100, Per: time.Second, Burst: 10}
	allowance, err := budget.New(rdb, "vendor", limit, budget.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer allowance.Close()

	ctx := context.Background()
	advice, err := allowance.Learn(ctx, http.StatusTooManyRequests, http.Header{"Retry-After": {"60"}})
	_, refused := allowance.Spend(ctx, guard.Spending{Cost: 1})
	fmt.Println(advice.Pause, err, "refused:", refused != nil)

	if err := allowance.Resume(ctx); err != nil { // an operator ends the pause
		log.Fatal(err)
	}
	state, err := allowance.Peek(ctx)
	fmt.Println("paused:", state.Paused, err)
	// Output:
	// 1m0s <nil> refused: true
	// paused: 0s <nil>
}

// Advise only reads a response.
func ExampleAdvise() {
	header := http.Header{}
	header.Set("X-RateLimit-Limit", "60")
	header.Set("X-RateLimit-Remaining", "3")
	header.Set("X-RateLimit-Reset", "20")
	advice := budget.Advise(http.StatusOK, header, time.Now())
	fmt.Println(advice.Remaining, "of", advice.Limit, "until", advice.Reset)
	// Output: 3 of 60 until 20s
}

// An operator stops all calls of the fleet to an upstream for a while.
func ExampleBudget_Pause() {
	rdb, stop := exampleClient()
	defer stop()
	allowance, err := budget.New(rdb, "vendor", budget.Limit{Rate: 100, Per: time.Second}, budget.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer allowance.Close()

	ctx := context.Background()
	if err := allowance.Pause(ctx, 10*time.Minute); err != nil {
		log.Fatal(err)
	}
	state, err := allowance.Peek(ctx)
	fmt.Println("paused:", state.Paused.Round(time.Minute), err)
	// Output: paused: 10m0s <nil>
}
