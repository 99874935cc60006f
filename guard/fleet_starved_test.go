package guard_test

import (
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// Of 32 processes with 1000 callers each, few get any CPU time. A process that gets no answer
// within RedisTimeout fetches for itself, once.
func TestFleetStarvedOfCPUFetchesOncePerProcess(t *testing.T) {
	const processes, callersEach = 32, 1000
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
		t.Logf("%d fetches, %d of them without a lease", n, len(unguarded))
		if n > processes {
			t.Errorf("%d fetches, want at most one for each process", n)
		}
		for _, o := range out {
			if o.Err != nil {
				t.Errorf("%d callers got %v", o.N, o.Err)
			}
		}
	}
}
