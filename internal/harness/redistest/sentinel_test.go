//go:build unix

package redistest_test

import (
	"testing"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func TestSentinelClientFollowsAForcedFailover(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := redistest.RunSentinel(t, redistest.SentinelConfig{})
	c := s.Client()
	must(t, c.Set(ctx, "k", "v", 0).Err())
	if n := s.Servers()[0].Client().Wait(ctx, 1, 0).Val(); n != 1 {
		t.Fatalf("%d replicas have the key, want 1", n)
	}

	must(t, s.Failover(ctx))
	master, err := s.Master(ctx)
	must(t, err)
	if master != s.Servers()[1] {
		t.Errorf("master is %s, want the replica %s", master.Addr(), s.Servers()[1].Addr())
	}
	eventually(t, "the client writes to the new master", func() bool {
		return c.Set(ctx, "k", "new", 0).Err() == nil && master.Client().Get(ctx, "k").Val() == "new"
	})
}

func TestSentinelsReplaceAKilledMaster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := redistest.RunSentinel(t, redistest.SentinelConfig{})
	c := s.Client()
	must(t, c.Ping(ctx).Err())

	killed, err := s.KillMaster(ctx)
	must(t, err)
	master, err := s.WaitNewMaster(ctx, killed)
	must(t, err)
	if master != s.Servers()[1] {
		t.Errorf("master is %s, want the replica %s", master.Addr(), s.Servers()[1].Addr())
	}
	eventually(t, "the client writes again", func() bool { return c.Set(ctx, "k", "v", 0).Err() == nil })
}

func TestSentinelServersStopTogether(t *testing.T) {
	t.Parallel()
	s, err := redistest.StartSentinel(t.Context(), redistest.SentinelConfig{})
	must(t, err)
	must(t, s.Stop())
	for _, server := range append(s.Servers(), s.Sentinels()...) {
		if !gone(server.Pid()) {
			t.Errorf("process %d lives after Stop", server.Pid())
		}
	}
}
