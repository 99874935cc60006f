package guard_test

import (
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// Processes that are short of CPU do not conclude that Redis is away, with the default
// RedisTimeout.
func TestFleetStarvedOfCPUFetchesOnce(t *testing.T) {
	const processes, callersEach, allowed = 32, 1000, 2
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	cfg := fleetConfig(guard.Policy{})
	cfg.Redis.Addrs = []string{server.Addr()}
	cfg.Store.RedisTimeout = 0 // the default
	f := &fleetTest{T: t, Fleet: fleet.Run(t, processes, cfg), server: server}
	f.begin()
	for range rounds(1, 10) {
		key := f.newKey()
		out := f.wait(f.everybody(fleet.Get{
			Keys: []string{key}, Callers: callersEach, At: time.Now().Add(100 * time.Millisecond),
			Fetch: fleet.Fetch{Duration: 200 * time.Millisecond},
		})...)
		unguarded := f.Log.All(func(e fleet.Event) bool { return e.Kind == cache.Unguarded })
		n := len(f.fetches(key))
		t.Logf("%d fetches, %d of them without a lease: %v", n, len(unguarded), unguarded)
		if n > allowed {
			t.Errorf("%d fetches, want at most %d", n, allowed)
		}
		for _, o := range out {
			if o.Err != nil {
				t.Errorf("%d callers got %v", o.N, o.Err)
			}
		}
	}
}
