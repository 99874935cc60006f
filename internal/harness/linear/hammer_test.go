package linear_test

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/linear"
)

// Many Gets of many keys, some of them much wanted, while keys are deleted. All
// are checked by the words of P3, and the most wanted keys are searched for a
// linearization too. With the tests, the processes are under the race detector.
func TestHammer(t *testing.T) {
	const processes = 4
	gets := 60_000
	if full {
		gets = 1_000_000
	}
	cfg := config(guard.Policy{TTL: time.Second, Stale: 200 * time.Millisecond})
	cfg.Store.RedisTimeout = 5 * time.Second // all are busy: that is no outage
	crew := linear.Run(t, processes, cfg)
	began := time.Now()
	must(t, crew.Carry(deadline(t, 20*time.Minute), linear.Load{
		Gets: gets / processes, Workers: 64,
		Keys: 10_000, Zipf: 1.1,
		DeleteEvery: processes * time.Second / 50,
		FetchMin:    time.Millisecond, FetchMax: 5 * time.Millisecond,
		TTLMin: 50 * time.Millisecond, TTLMax: 2 * time.Second,
		Calm: true,
	}))
	took := time.Since(began)
	histories := crew.Take()

	began = time.Now()
	s := stats{}
	var deleted []uint32 // keys that were
	for key, history := range histories {
		s.add(history)
		checkDirectly(t, key, history)
		if slices.ContainsFunc(history, func(o linear.Op) bool { return o.Kind == linear.Delete }) {
			deleted = append(deleted, key)
		}
	}
	t.Logf("%d keys in %v: %v; %d of the keys were deleted; checked by the words of P3 in %v",
		len(histories), took.Round(time.Millisecond), s, len(deleted), time.Since(began).Round(time.Millisecond))
	if s.gets != gets {
		t.Errorf("%d Gets got a value, want %d", s.gets, gets)
	}
	s.mustSaySomething(t, int(took.Seconds()*50/2)) // half of those it was to be

	began = time.Now()
	sample, ops := mostCalled(histories, 200), 0
	for _, key := range sample {
		history := histories[key]
		ops += len(history)
		if result := linear.Check(linear.Reduce(history), searchTimeout); result != porcupine.Ok {
			t.Errorf("key %d, %d calls: %v\n%s", key, len(history), result, describe(linear.Minimise(history, searchTimeout)))
		}
	}
	t.Logf("the %d most called keys, %d calls, are linearizable: searched in %v", len(sample), ops, time.Since(began).Round(time.Millisecond))
}

func mostCalled(histories map[uint32][]linear.Op, n int) []uint32 {
	keys := slices.SortedFunc(maps.Keys(histories), func(a, b uint32) int {
		return cmp.Compare(len(histories[b]), len(histories[a]))
	})
	return keys[:min(n, len(keys))]
}
