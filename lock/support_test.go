package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/lock"
)

// redisStore is a store on the server, as of a process of its own.
func redisStore(t *testing.T, server *redistest.Server) *cache.Redis {
	t.Helper()
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test", RedisTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func memoryStore(t *testing.T) *cache.Memory {
	t.Helper()
	s, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newLocker(t *testing.T, opts lock.Options, backends ...lock.Backend) *lock.Locker {
	t.Helper()
	l, err := lock.New(opts, backends...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// within is a context for calls that must not hang.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func mustLock(t *testing.T, l *lock.Locker, name string) *lock.Lock {
	t.Helper()
	k, err := l.Lock(within(t), name)
	if err != nil {
		t.Fatalf("Lock(%q): %v", name, err)
	}
	return k
}

func mustUnlock(t *testing.T, k *lock.Lock) {
	t.Helper()
	if err := k.Unlock(t.Context()); err != nil {
		t.Fatalf("Unlock: %v", err)
	}
}
