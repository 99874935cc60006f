package cache_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// A slowRelease hook holds back each script of two keys, as a release is.
type slowRelease struct{ by time.Duration }

func (h *slowRelease) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *slowRelease) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && args[2] == 2 {
			time.Sleep(h.by)
		}
		return next(ctx, cmd)
	}
}

func (h *slowRelease) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A process that was no longer watched while it still held a lease would look dead.
func TestCloseReleasesItsLeasesWhileItIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		client := redis.NewClient(server.Options())
		h := &slowRelease{}
		client.AddHook(h)
		store := func(c *redis.Client) *cache.Redis {
			s, err := cache.NewRedis(c, cache.Options{Namespace: "test"})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		leaving, other := store(client), store(server.Client())
		time.Sleep(time.Second) // until the subscriptions are live
		first, err := leaving.Acquire(t.Context(), "k", lasting())
		if err != nil || first.Verdict != cache.Granted {
			t.Fatal(first.Verdict, err)
		}
		h.by = 200 * time.Millisecond // less than RedisTimeout
		closed := make(chan error, 1)
		go func() { closed <- leaving.Close() }()
		synctest.Wait()
		ask := lasting()
		for range 3 {
			a, err := other.Acquire(t.Context(), "k", ask)
			if err != nil || a.Verdict != cache.Held || a.Unwatched {
				t.Fatalf("while its process is closed the lease is %v, unwatched %v, %v", a.Verdict, a.Unwatched, err)
			}
			ask.LastHeld, ask.Suspect = a.Holder, a.Holder
			time.Sleep(60 * time.Millisecond)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		a, err := other.Acquire(t.Context(), "k", ask)
		if err != nil || a.Verdict != cache.Granted || a.Lease.TakenOver || a.Lease.Attempt != 1 {
			t.Errorf("after it was closed: %v, %+v, %v", a.Verdict, a.Lease, err)
		}
		if err := errors.Join(other.Close(), client.Close()); err != nil {
			t.Error(err)
		}
	})
}
