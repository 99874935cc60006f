package lock_test

import (
	"testing"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/lock"
)

func BenchmarkLockUnlockInMemory(b *testing.B) {
	s, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	l, err := lock.New(lock.Options{}, lock.On(s))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.Lock(b.Context(), "n")
		if err != nil {
			b.Fatal(err)
		}
		if err := k.Unlock(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
