//go:build unix

package redistest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func TestClusterServesAllSlots(t *testing.T) {
	t.Parallel()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	c := cluster.Client()
	serving := map[string]bool{}
	for i := range 50 {
		key := fmt.Sprint("key", i)
		must(t, c.Set(t.Context(), key, i, 0).Err())
		master, err := cluster.MasterFor(t.Context(), key)
		must(t, err)
		serving[master.Addr()] = true
		direct := master.Client()
		if got := direct.Get(t.Context(), key).Val(); got != fmt.Sprint(i) {
			t.Errorf("%s is not at %s: %q", key, master.Addr(), got)
		}
	}
	if len(serving) != 3 {
		t.Errorf("50 keys are on %d masters, want 3", len(serving))
	}
}

func TestClusterNodesStopTogether(t *testing.T) {
	t.Parallel()
	cluster, err := redistest.StartCluster(t.Context(), redistest.ClusterConfig{Replicas: true})
	must(t, err)
	if n := len(cluster.Addrs()); n != 6 {
		t.Errorf("%d nodes, want 6", n)
	}
	must(t, cluster.Stop())
	for _, s := range append(cluster.Masters(), cluster.Replicas()...) {
		if !gone(s.Pid()) {
			t.Errorf("process %d lives after Stop", s.Pid())
		}
	}
	must(t, cluster.Stop())
}

func TestMovedSlotTakesItsKeysAlong(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	c := cluster.Client()
	for i := range 250 { // more than one MIGRATE takes
		must(t, c.Set(ctx, fmt.Sprintf("{tag}%d", i), i, 0).Err())
	}
	slot, err := cluster.Slot(ctx, "{tag}")
	must(t, err)
	from := masterIndex(t, cluster, "{tag}")
	to := (from + 1) % 3

	must(t, cluster.MoveSlot(ctx, slot, from, to))
	if got := masterIndex(t, cluster, "{tag}"); got != to {
		t.Errorf("slot is at master %d, want %d", got, to)
	}
	if n := cluster.Masters()[from].Client().DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys stayed behind", n)
	}
	for i := range 250 {
		if got := c.Get(ctx, fmt.Sprintf("{tag}%d", i)).Val(); got != fmt.Sprint(i) {
			t.Fatalf("key %d: %q", i, got)
		}
	}
	// An old client is told where the slot went.
	err = cluster.Masters()[from].Client().Get(ctx, "{tag}0").Err()
	if err == nil || !strings.HasPrefix(err.Error(), "MOVED ") {
		t.Errorf("old owner: %v, want MOVED", err)
	}
	must(t, cluster.WaitReady(ctx))
}

func TestOpenSlotAsksForMissingKeys(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	slot, err := cluster.Slot(ctx, "k")
	must(t, err)
	from := masterIndex(t, cluster, "k")
	must(t, cluster.OpenSlot(ctx, slot, from, (from+1)%3))
	err = cluster.Masters()[from].Client().Get(ctx, "k").Err()
	if err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
		t.Errorf("got %v, want ASK", err)
	}
	must(t, cluster.Client().Set(ctx, "k", "v", 0).Err())
	must(t, cluster.MoveSlot(ctx, slot, from, (from+1)%3))
	if got := cluster.Client().Get(ctx, "k").Val(); got != "v" {
		t.Errorf("after the move: %q", got)
	}
}

func TestReplicaTakesOverFromAKilledMaster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{Replicas: true})
	c := cluster.Client()
	must(t, c.Set(ctx, "k", "v", 0).Err())
	i := masterIndex(t, cluster, "k")
	if n := cluster.Masters()[i].Client().Wait(ctx, 1, 0).Val(); n != 1 {
		t.Fatalf("%d replicas have the key, want 1", n)
	}

	must(t, cluster.KillMaster(i))
	eventually(t, "the replica serves the key", func() bool {
		s, err := cluster.MasterFor(ctx, "k")
		return err == nil && s == cluster.Replicas()[i]
	})
	must(t, cluster.WaitReady(ctx))
	eventually(t, "the client finds it", func() bool { return c.Get(ctx, "k").Val() == "v" })
}

func TestKilledMasterWithoutReplicaLeavesTheOthersServing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{
		Args: []string{"--cluster-require-full-coverage", "no"},
	})
	c := cluster.Client()
	i := masterIndex(t, cluster, "k")
	var elsewhere string
	for n := 0; elsewhere == ""; n++ {
		if key := fmt.Sprint("key", n); masterIndex(t, cluster, key) != i {
			elsewhere = key
		}
	}
	must(t, cluster.KillMaster(i))
	if err := c.Get(ctx, "k").Err(); err == nil || errors.Is(err, redis.Nil) {
		t.Errorf("key of the killed master: %v", err)
	}
	must(t, c.Set(ctx, elsewhere, "v", 0).Err())
}

func masterIndex(t *testing.T, cluster *redistest.Cluster, key string) int {
	t.Helper()
	s, err := cluster.MasterFor(t.Context(), key)
	must(t, err)
	for i, m := range cluster.Masters() {
		if m == s {
			return i
		}
	}
	t.Fatalf("%s is served by a replica", key)
	return -1
}
