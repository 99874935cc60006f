package lock_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/lock"
	"github.com/stampedeguard/stampede/lock/locktest"
)

func TestRedisKeepsContract(t *testing.T) {
	t.Parallel()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	locktest.Run(t, locktest.All, func(t *testing.T) func() lock.Backend {
		flush(t, server)
		return func() lock.Backend { return lock.On(redisStore(t, server)) }
	})
}

func TestClusterKeepsContract(t *testing.T) {
	t.Parallel()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	n := 0
	locktest.Run(t, locktest.All, func(t *testing.T) func() lock.Backend {
		n++
		namespace := "test" + string(rune('a'+n))
		return func() lock.Backend {
			s, err := cache.NewRedis(cluster.Client(), cache.Options{Namespace: namespace, RedisTimeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return lock.On(s)
		}
	})
}

func TestMemoryKeepsContract(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.All, func(t *testing.T) func() lock.Backend {
		first := memoryStore(t)
		return func() lock.Backend {
			s := first.Join()
			t.Cleanup(func() { _ = s.Close() })
			return lock.On(s)
		}
	})
}

func TestPlainRedisKeepsContract(t *testing.T) {
	t.Parallel()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	locktest.Run(t, locktest.Features{}, func(t *testing.T) func() lock.Backend {
		flush(t, server)
		return func() lock.Backend { return lock.Plain(server.Client()) }
	})
}

func TestFilesKeepContract(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Features{Fences: true, Semaphores: true}, func(t *testing.T) func() lock.Backend {
		dir := t.TempDir()
		return func() lock.Backend {
			b, err := lock.Files(dir)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	})
}

func TestFilesOfDeadProcessesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("process-%016x", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n < 3; n++ {
		b, err := lock.Files(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer runtime.KeepAlive(b)
		if all, err := os.ReadDir(dir); err != nil || len(all) != n {
			t.Errorf("%d live processes have the files %v, %v", n, all, err)
		}
	}
}

func flush(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}
