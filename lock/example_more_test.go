package lock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/lock"
)

func ExampleNew() {
	store, err := cache.NewMemory(cache.MemoryOptions{}) // cache.NewRedis for more than one process
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	locks, err := lock.New(lock.Options{TTL: 5 * time.Second, Wait: time.Second}, lock.On(store))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	fmt.Println(locks.Held(), "locks are held")
	// Output: 0 locks are held
}

// At most two exports run at a time in the fleet.
func ExampleNew_semaphore() {
	ctx := context.Background()
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	locks, _ := lock.New(lock.Options{Holders: 2}, lock.On(store))
	defer locks.Close()

	for range 3 {
		_, err := locks.TryLock(ctx, "export")
		fmt.Println(errors.Is(err, lock.ErrHeld))
	}
	// Output:
	// false
	// false
	// true
}

// Locks and guards share a store. TakeOver replaces a holder after its process has died.
func ExampleOn() {
	store, err := cache.NewRedis(redis.NewClient(&redis.Options{Addr: "localhost:6379"}), cache.Options{Namespace: "app"})
	if err != nil {
		return
	}
	locks, err := lock.New(lock.Options{TakeOver: true}, lock.On(store))
	_, _ = locks, err
}

// Programs in other languages take the lock "app:lock" by SET NX PX.
func ExamplePlain() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	locks, err := lock.New(lock.Options{}, lock.Plain(client))
	if err != nil {
		return
	}
	_ = locks.Do(context.Background(), "app:lock", func(context.Context, *lock.Lock) error { return nil })
}

// The processes of one machine need no server.
func ExampleFiles() {
	dir, err := os.MkdirTemp("", "locks")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	backend, err := lock.Files(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	locks, err := lock.New(lock.Options{}, backend)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	err = locks.Do(context.Background(), "backup", func(_ context.Context, k *lock.Lock) error {
		fmt.Println(k.Name(), k.Fence() > 0)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: backup true
}

func ExampleLocker_Lock() {
	ctx := context.Background()
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	locks, _ := lock.New(lock.Options{}, lock.On(store))
	defer locks.Close()

	k, err := locks.Lock(ctx, "order/7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(k.Context().Err() == nil) // the context for all work under the lock
	if err := k.Unlock(ctx); err != nil {
		fmt.Println(err) // lock.ErrLost: it was not held any more
	}
	fmt.Println(k.Context().Err() == nil)
	// Output:
	// true
	// false
}

func ExampleLocker_TryLock() {
	ctx := context.Background()
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	locks, _ := lock.New(lock.Options{}, lock.On(store))
	defer locks.Close()

	k, _ := locks.TryLock(ctx, "order/7")
	_, err := locks.TryLock(ctx, "order/7")
	var held *lock.HeldError
	fmt.Println(errors.As(err, &held) && held.Holder == k.ID())
	// Output: true
}

// An operator ends the lock of a holder that hangs.
func ExampleLocker_Unlock() {
	ctx := context.Background()
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	locks, _ := lock.New(lock.Options{}, lock.On(store))
	defer locks.Close()
	_, _ = locks.Lock(ctx, "order/7")

	state, err := locks.Inspect(ctx, "order/7")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, holder := range state.Holders {
		ended, err := locks.Unlock(ctx, "order/7", holder.ID)
		fmt.Println(ended, err)
	}
	// Output: true <nil>
}

// A step of ten seconds must not be interrupted: the lock is extended first.
func ExampleLock_Extend() {
	ctx := context.Background()
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	locks, _ := lock.New(lock.Options{TTL: time.Second, NoRenew: true}, lock.On(store))
	defer locks.Close()

	err := locks.Do(ctx, "order/7", func(ctx context.Context, k *lock.Lock) error {
		if err := k.Extend(ctx, 15*time.Second); err != nil {
			return err
		}
		fmt.Println(k.Valid() > 10*time.Second)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: true
}

// The votes for a lock on three servers.
func ExampleLock_Status() {
	ctx := context.Background()
	var backends []lock.Backend
	for range 3 {
		store, _ := cache.NewMemory(cache.MemoryOptions{})
		defer store.Close()
		backends = append(backends, lock.On(store))
	}
	locks, _ := lock.New(lock.Options{}, backends...)
	defer locks.Close()
	k, err := locks.Lock(ctx, "order/7")
	if err != nil {
		fmt.Println(err)
		return
	}
	yes := 0
	for _, vote := range k.Status() {
		if vote.State == lock.VoteYes {
			yes++
		}
	}
	fmt.Println(yes >= 2)
	// Output: true
}

// All processes that do the same jobs need the same policy.
func ExampleNewWorker() {
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	mails, err := lock.NewWorker(store, "mails", lock.WorkerPolicy{
		MaxAttempts: 3,
		Keep:        time.Hour,
		Backoff:     func(failures int) time.Duration { return time.Duration(failures) * time.Second },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mails.Close()
	status, err := mails.Status(context.Background(), "welcome/7")
	fmt.Println(status.State, err)
	// Output: free <nil>
}

// A failed job is tried again later, by any worker.
func ExampleWorker_TryDo() {
	ctx := context.Background()
	store, _ := cache.NewMemory(cache.MemoryOptions{})
	defer store.Close()
	mails, err := lock.NewWorker(store, "mails", lock.WorkerPolicy{MaxAttempts: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mails.Close()

	_, err = mails.TryDo(ctx, "welcome/7", func(context.Context, *lock.Attempt) error {
		return errors.New("no route to host")
	})
	fmt.Println(err)
	status, _ := mails.Status(ctx, "welcome/7")
	fmt.Println(status.State, "after", status.Attempts, "attempt:", status.Cause)
	_ = mails.Forget(ctx, "welcome/7")
	status, _ = mails.Status(ctx, "welcome/7")
	fmt.Println(status.State)
	// Output:
	// no route to host
	// failed after 1 attempt: no route to host
	// free
}
