package lock_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
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

// The baseline is the least that a lock needs: SET NX PX, and a script that compares and
// deletes.
var compareAndDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// Both take turns in each round, so that a disturbance meets both. Medians.
func BenchmarkLockUnlockOnRedis(b *testing.B) {
	server := redistest.RunStandalone(b, redistest.StandaloneConfig{})
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "bench", RedisTimeout: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	l, err := lock.New(lock.Options{}, lock.On(s))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client := server.Client()
	ours := func() error {
		k, err := l.Lock(b.Context(), "n")
		if err != nil {
			return err
		}
		return k.Unlock(b.Context())
	}
	baseline := func() error {
		if err := client.SetNX(b.Context(), "baseline", "0123456789abcdef", 10*time.Second).Err(); err != nil {
			return err
		}
		return compareAndDelete.Run(b.Context(), client, []string{"baseline"}, "0123456789abcdef").Err()
	}
	b.ReportAllocs()
	var times [2][]time.Duration
	for b.Loop() {
		for i, f := range []func() error{ours, baseline} {
			began := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			times[i] = append(times[i], time.Since(began))
		}
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Nanoseconds())
	}
	b.ReportMetric(median(times[0]), "ours-ns")
	b.ReportMetric(median(times[1]), "baseline-ns")
	b.ReportMetric(median(times[0])/median(times[1]), "ratio")
}
