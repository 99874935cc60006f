package guard_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A process that didn't run in time to hear Redis's answer, as its container had
// used up its share of the processor, doesn't take Redis to be away.
func TestFleetLateProcessIsNoOutage(t *testing.T) {
	const timeout = 250 * time.Millisecond
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	cfg := fleetConfig(policy())
	cfg.Store.RedisTimeout = timeout
	cfg.Redis.Addrs = []string{s.Addr()}
	f := &fleetTest{T: t, Fleet: fleet.Run(t, 1, cfg), server: s}
	f.begin()
	p := f.Processes()[0]
	for i := range rounds(12, 60) {
		key, done := fmt.Sprint("k", i), make(chan error, 1)
		f.must(s.Pause())
		go func() {
			if i%2 == 1 {
				_, err := p.Set(f.ctx, key, "set")
				done <- err
				return
			}
			all, err := p.Get(f.ctx, fleet.Get{Keys: []string{key}})
			if err == nil && (all[0].Err != nil || all[0].Source != guard.Fetched.String()) {
				err = fmt.Errorf("got %+v", all[0])
			}
			done <- err
		}()
		time.Sleep(timeout / 5) // until it is sent
		f.must(p.Stop())
		f.must(s.Resume())
		time.Sleep(2 * timeout)
		f.must(p.Cont())
		if err := <-done; err != nil {
			t.Errorf("round %d: %v", i, err)
		}
	}
	if all := f.Log.All(func(e fleet.Event) bool { return e.Kind == cache.Unguarded }); len(all) > 0 {
		t.Errorf("%d fetches without a lease", len(all))
	}
	late := len(f.Log.All(func(e fleet.Event) bool { return e.Kind == cache.ProcessLate }))
	t.Logf("late %d times", late)
	if late == 0 && bounds { // in some 4 rounds of 10; in the others the answer is met first
		t.Error("no process said that it was late")
	}
}
