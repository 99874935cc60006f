package guard_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// The values of the reserve are all that differs between the two guards. They live in a real
// server: an embedded one would share its memory with them.
func TestReserveHeapKeepsWithinItsBound(t *testing.T) {
	const bound = 4 << 20
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test", RedisTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	grown := func(name string, size, n, maxBytes int) int {
		g, err := guard.New[record](s, name, guard.Policy{TTL: time.Hour, Reserve: guard.Reserve{MaxBytes: maxBytes}})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		fetch := func(_ context.Context, keys []string) (map[string]record, error) {
			values := make(map[string]record, len(keys))
			for _, key := range keys {
				values[key] = record{Name: strings.Repeat("n", size), Tags: []string{"a", "b"}}
			}
			return values, nil
		}
		before := heap()
		for i := 0; i < n; i += 500 {
			var keys []string
			for j := range 500 {
				keys = append(keys, fmt.Sprint("key", i+j))
			}
			if _, err := g.GetMany(context.Background(), keys, fetch); err != nil {
				t.Fatal(err)
			}
		}
		after := heap()
		if entries := g.Stats().ReserveEntries; maxBytes == bound && (entries == 0 || entries == n) {
			t.Errorf("%d of %d values are in the reserve: its bound was not met", entries, n)
		}
		runtime.KeepAlive(g)
		return after - before
	}
	for _, size := range []int{10, 1000, 50_000} {
		n := max(500, 3*bound/(size+1024)/500*500)
		grown(fmt.Sprint("warm", size), size, n, guard.Off) // the client's and the store's buffers
		without, with := grown(fmt.Sprint("without", size), size, n, guard.Off), grown(fmt.Sprint("with", size), size, n, bound)
		t.Logf("%d values of %d bytes: the heap grows by %d KiB with a reserve of %d KiB, by %d KiB without", n, size, with>>10, bound>>10, without>>10)
		if with-without > bound {
			t.Errorf("values of %d bytes: the heap grows by %d bytes more than without a reserve of %d", size, with-without, bound)
		}
	}
}

func heap() int {
	var m runtime.MemStats
	for range 3 { // pools are emptied by the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

type record struct {
	Name string
	Tags []string
}
