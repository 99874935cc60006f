package lock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/lock"
)

type game struct{ moves []string }

// A turn-based game: one action at a time for each game, whichever process the players'
// requests reach.
func ExampleLocker_Do() {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	locks, err := lock.New(lock.Options{}, lock.On(store))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()

	g := &game{}
	for _, move := range []string{"e4", "e5"} {
		err := locks.Do(context.Background(), "game/17", func(ctx context.Context, k *lock.Lock) error {
			g.moves = append(g.moves, move)
			return nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(g.moves)
	// Output: [e4 e5]
}

// A scheduled job: the process that finds the lock held leaves the job to its holder.
func ExampleLocker_TryDo() {
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	locks, _ := lock.New(lock.Options{}, lock.On(store))
	defer locks.Close()

	report := func(ctx context.Context, k *lock.Lock) error {
		err := locks.TryDo(ctx, "report", func(context.Context, *lock.Lock) error { return nil })
		fmt.Println("another process:", errors.Is(err, lock.ErrHeld))
		return nil
	}
	if err := locks.TryDo(context.Background(), "report", report); err != nil {
		fmt.Println(err)
	}
	// Output: another process: true
}

// A cache lookup under a lock, as articles show it, tells how often it has asked in vain. A
// guard does the same in one call: it has no spins, as waiters get the value with the message
// that wakes them.
func ExampleLock_Spins() {
	ctx := context.Background()
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	locks, _ := lock.New(lock.Options{}, lock.On(store))
	defer locks.Close()
	quotes, _ := guard.New[string](store, "quotes", guard.Policy{TTL: time.Minute})
	defer quotes.Close()

	values := map[string]string{} // the cache
	fetch := func(context.Context) (string, error) { return "1.08", nil }

	k, err := locks.Lock(ctx, "quotes/EURUSD")
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, ok := values["EURUSD"]; !ok {
		values["EURUSD"], _ = fetch(ctx)
	}
	_ = k.Unlock(ctx)
	fmt.Println(values["EURUSD"], "after", k.Spins(), "spins")

	quote, _ := quotes.Get(ctx, "EURUSD", fetch)
	fmt.Println(quote)
	// Output:
	// 1.08 after 0 spins
	// 1.08
}

// The database refuses the write of a holder after the lock has gone to another holder.
func ExampleLock_Fence() {
	var locks *lock.Locker
	var db *sql.DB
	transfer := func(ctx context.Context, account, balance int64) error {
		return locks.Do(ctx, fmt.Sprint("account/", account), func(ctx context.Context, k *lock.Lock) error {
			r, err := db.ExecContext(ctx,
				"UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2", balance, int64(k.Fence()), account)
			if err != nil {
				return err
			}
			if n, err := r.RowsAffected(); err != nil || n == 0 {
				return errors.Join(lock.ErrLost, err)
			}
			return nil
		})
	}
	_ = transfer
}

// A lock on three independent servers outlives the loss of any one of them.
func ExampleNew_quorum() {
	var backends []lock.Backend
	for _, addr := range []string{"a:6379", "b:6379", "c:6379"} {
		store, err := cache.NewRedis(redis.NewClient(&redis.Options{Addr: addr}), cache.Options{Namespace: "app"})
		if err != nil {
			return
		}
		backends = append(backends, lock.On(store))
	}
	locks, err := lock.New(lock.Options{TTL: 5 * time.Second}, backends...)
	_, _ = locks, err
}

// One process of the fleet consumes the feed. When it dies another one goes on.
func ExampleLocker_Lead() {
	var locks *lock.Locker
	consume := func(ctx context.Context, fence uint64) error { <-ctx.Done(); return nil }
	run := func(ctx context.Context) error {
		return locks.Lead(ctx, "feed", func(ctx context.Context, k *lock.Lock) error {
			return consume(ctx, k.Fence()) // until ctx ends: the lock is lost, or the process stops
		})
	}
	_ = run
}

func ExampleWorker_Do() {
	ctx := context.Background()
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()

	invoices, err := lock.NewWorker(store, "invoices", lock.WorkerPolicy{MaxAttempts: 5})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer invoices.Close()
	for range 2 {
		report, err := invoices.Do(ctx, "2026-11", func(ctx context.Context, a *lock.Attempt) error {
			fmt.Println("attempt", a.Number)
			return nil
		})
		fmt.Println(report.Done, report.ByOther, err)
	}
	// Output:
	// attempt 1
	// true false <nil>
	// true true <nil>
}
