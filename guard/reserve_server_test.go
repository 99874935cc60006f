package guard_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A dead or frozen server costs little, from the first moment on, for callers with keys in
// the reserve. When the server is back, it costs the origin little.
func TestDeadServerCostsNeitherCallersNorOrigin(t *testing.T) {
	for name, fault := range map[string]struct {
		away func(s *redistest.Server) error
		back func(ctx context.Context, s *redistest.Server) error
	}{
		"killed": {(*redistest.Server).Kill, func(ctx context.Context, s *redistest.Server) error { return s.RestartEmpty(ctx) }},
		"frozen": {(*redistest.Server).Pause, func(_ context.Context, s *redistest.Server) error { return s.Resume() }},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			const keys, rate = 50, 200
			server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
			fleet := []*guard.Guard[string]{onClient(t, server.Client(), policy()), onClient(t, server.Client(), policy())}
			w := &world{T: t}
			var fetches atomic.Int32
			fetch := func(context.Context) (string, error) {
				fetches.Add(1)
				time.Sleep(10 * time.Millisecond)
				return "v", nil
			}
			for _, g := range fleet {
				for g.Stats().ReserveEntries < keys { // its subscription may not be up at first
					for i := range keys {
						get(w, g, fmt.Sprint("k", i), fetch)
					}
				}
			}
			during, after := &load{}, &load{}
			fetches.Store(0)
			if err := fault.away(server); err != nil {
				t.Fatal(err)
			}
			runLoads(rate, keys, 3*time.Second, guarded(during, fleet[0], fetch), guarded(during, fleet[1], fetch))
			if n := fetches.Swap(0); n > 0 {
				t.Errorf("%d fetches during the outage", n)
			}
			p99, failed, n := during.after(time.Time{})
			t.Logf("during: %d calls, p99 %v", n, p99)
			if most := lenient(25 * time.Millisecond); failed > 0 || p99 > most {
				t.Errorf("during: %d of %d calls failed, p99 is %v, want at most %v", failed, n, p99, most)
			}
			if err := fault.back(t.Context(), server); err != nil {
				t.Fatal(err)
			}
			runLoads(rate, keys, 3*time.Second, guarded(after, fleet[0], fetch), guarded(after, fleet[1], fetch))
			p99, failed, n = after.after(time.Time{})
			t.Logf("after: %d calls, p99 %v, %d fetches", n, p99, fetches.Load())
			if most := lenient(25 * time.Millisecond); failed > 0 || p99 > most || fetches.Load() > keys+5 { // a process that is starved of CPU may lose a lease
				t.Errorf("after: %d of %d calls failed, p99 is %v, want at most %v; %d fetches", failed, n, p99, most, fetches.Load())
			}
		})
	}
}

// A Set that Redis refused has changed nothing: the last value is read again, and kept.
func TestRefusedSetLeavesTheLastValueInUse(t *testing.T) {
	beside(t)
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	admin := server.Client()
	g := onClient(t, server.Client(), policy())
	w := &world{T: t}
	get(w, g, "k", func(context.Context) (string, error) { return "old", nil })
	must(w, errors.Join(
		admin.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(),
		admin.ConfigSet(t.Context(), "maxmemory", "1").Err(),
	))
	if err := g.Set(t.Context(), "k", "new"); !errors.Is(err, cache.ErrRefused) || errors.Is(err, guard.ErrQueued) {
		t.Fatalf("Set: %v", err)
	}
	if n := g.Stats().ReserveEntries; n != 0 {
		t.Errorf("%d values in the reserve after Set", n)
	}
	for g.Stats().ReserveEntries == 0 {
		if v := get(w, g, "k", never); v != "old" {
			t.Fatalf("Redis answers %q", v)
		}
	}
	must(w, server.Kill())
	if r, err := g.Load(t.Context(), "k", func(context.Context, *guard.Fill[string]) (string, error) { return "fetched", nil }); err != nil || r.Value != "old" || r.Source != guard.FromReserve {
		t.Errorf("Redis is away: %+v, %v", r, err)
	}
}
