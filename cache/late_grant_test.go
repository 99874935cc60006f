package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// afterAcquire calls f when an acquire was carried out, before its answer is
// handed on. Acquire is the one script of six keys.
type afterAcquire struct {
	mu sync.Mutex
	f  func()
}

func (h *afterAcquire) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.f = f
}

func (h *afterAcquire) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *afterAcquire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); len(args) > 2 && args[2] == 6 {
			h.mu.Lock()
			f := h.f
			h.mu.Unlock()
			if f != nil {
				f()
			}
		}
		return err
	}
}

func (h *afterAcquire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func hooked(t *testing.T) (*cache.Redis, *afterAcquire, *redis.Client) {
	t.Helper()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client := server.Client()
	h := &afterAcquire{}
	client.AddHook(h)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, h, server.Client()
}

func lasting() cache.Ask {
	return cache.Ask{TTL: 20 * time.Second, RenewFor: 30 * time.Second, MaxAttempts: 3, Window: time.Minute}
}

func TestGrantThatComesAsItsCallerLeavesIsNotLeftBehind(t *testing.T) {
	s, h, admin := hooked(t)
	var keys []string
	for i := range 500 {
		key := fmt.Sprint("k", i)
		ctx, cancel := context.WithCancel(context.Background())
		h.set(cancel)
		a, err := s.Acquire(ctx, key, lasting())
		cancel()
		if err == nil && a.Verdict == cache.Granted {
			if err := s.Release(context.Background(), a.Lease); err != nil {
				t.Fatal(err)
			}
		}
		keys = append(keys, "test:{"+key+"}:lease")
	}
	h.set(nil)
	eventually(t, func() bool { return admin.Exists(t.Context(), keys...).Val() == 0 })
}

func TestCloseThatOvertakesAGrantReleasesIt(t *testing.T) {
	s, h, admin := hooked(t)
	carriedOut, answer := make(chan struct{}), make(chan struct{})
	h.set(func() { close(carriedOut); <-answer })
	done := make(chan error, 1)
	go func() {
		a, err := s.Acquire(context.Background(), "k", lasting())
		if err == nil {
			err = fmt.Errorf("answered %v", a.Verdict)
		}
		done <- err
	}()
	<-carriedOut
	h.set(nil)
	if err := s.Close(); err != nil {
		t.Log(err) // the call is still under way in the client
	}
	close(answer)
	if err := <-done; !errors.Is(err, cache.ErrClosed) && !errors.Is(err, cache.ErrUnavailable) {
		t.Errorf("Acquire: %v", err)
	}
	eventually(t, func() bool { return admin.Exists(t.Context(), "test:{k}:lease").Val() == 0 })
}
