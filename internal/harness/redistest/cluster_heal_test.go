//go:build unix

package redistest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// slotsAsSeen lists the masters and their slots as a node knows them.
func slotsAsSeen(t *testing.T, s *redistest.Server) string {
	t.Helper()
	text, err := s.Client().ClusterNodes(t.Context()).Result()
	must(t, err)
	var all []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 8 {
			all = append(all, f[0]+" "+strings.Join(f[8:], " "))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// soon bounds the waits of a test.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func nodes(c *redistest.Cluster) []*redistest.Server { return append(c.Masters(), c.Replicas()...) }

// agreed fails the test unless all nodes name the same owners.
func agreed(t *testing.T, c *redistest.Cluster) {
	t.Helper()
	want := slotsAsSeen(t, c.Masters()[0])
	for _, s := range nodes(c)[1:] {
		if got := slotsAsSeen(t, s); got != want {
			t.Errorf("%s knows\n%s\nthe first master\n%s", s.Addr(), got, want)
		}
	}
}

// The slots go forth and back, as that is when a new owner's epoch is often not the
// greatest: it has not heard yet of the one before it.
func TestReplicasLearnOfSlotsMovedInQuickSuccession(t *testing.T) {
	t.Parallel()
	ctx := soon(t)
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{Replicas: true})
	for slot := range 30 { // the first master has them
		to := 1 + slot%2
		must(t, cluster.MoveSlot(ctx, slot, 0, to))
		if slot%3 > 0 {
			must(t, cluster.MoveSlot(ctx, slot, to, 0))
		}
	}
	agreed(t, cluster)
}

func TestHealCompletesAMoveThatWasInterrupted(t *testing.T) {
	t.Parallel()
	ctx := soon(t)
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{Replicas: true})
	c := cluster.Client()
	for i := range 10 {
		must(t, c.Set(ctx, fmt.Sprintf("{tag}%d", i), i, 0).Err())
	}
	slot, err := cluster.Slot(ctx, "{tag}")
	must(t, err)
	from := masterIndex(t, cluster, "{tag}")
	to := (from + 1) % 3
	must(t, cluster.OpenSlot(ctx, slot, from, to))
	port := cluster.Masters()[to].Addr()[strings.LastIndexByte(cluster.Masters()[to].Addr(), ':')+1:]
	must(t, cluster.Masters()[from].Client().Do(ctx, "MIGRATE", "127.0.0.1", port, "{tag}0", 0, 5000).Err())

	must(t, cluster.Heal(ctx))
	agreed(t, cluster)
	if got := masterIndex(t, cluster, "{tag}"); got != to {
		t.Errorf("the slot is at master %d, want %d", got, to)
	}
	for i := range 10 {
		if got := c.Get(ctx, fmt.Sprintf("{tag}%d", i)).Val(); got != fmt.Sprint(i) {
			t.Errorf("key %d: %q", i, got)
		}
	}
}

// Either end of a move may die in the middle of it. Its replica, which takes over,
// does not know of the move, and the end itself comes back with open slots.
func TestHealEndsAMoveThatAFailoverInterrupted(t *testing.T) {
	for name, dies := range map[string]func(from, to int) int{
		"source": func(from, _ int) int { return from },
		"target": func(_, to int) int { return to },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := soon(t)
			cluster := redistest.RunCluster(t, redistest.ClusterConfig{Replicas: true, Args: []string{"--appendonly", "yes"}})
			c := cluster.Client()
			for i := range 3 {
				must(t, c.Set(ctx, fmt.Sprintf("{tag}%d", i), i, 0).Err())
			}
			slot, err := cluster.Slot(ctx, "{tag}")
			must(t, err)
			from := masterIndex(t, cluster, "{tag}")
			to := (from + 1) % 3
			must(t, cluster.OpenSlot(ctx, slot, from, to))
			must(t, c.Set(ctx, "{tag}new", "at the target", 0).Err())

			dead := dies(from, to)
			must(t, cluster.KillMaster(dead))
			eventually(t, "the replica takes over", func() bool {
				return cluster.Replicas()[dead].Client().Do(ctx, "ROLE").Val().([]any)[0] == "master"
			})
			must(t, cluster.Masters()[dead].Restart(ctx))
			must(t, cluster.Heal(ctx))
			must(t, cluster.WaitReady(ctx))
			agreed(t, cluster)
			for _, s := range nodes(cluster) {
				if seen := slotsAsSeen(t, s); strings.Contains(seen, "[") {
					t.Errorf("%s has open slots:\n%s", s.Addr(), seen)
				}
			}
			owner, err := cluster.MasterFor(ctx, "{tag}0")
			must(t, err)
			for _, s := range nodes(cluster) {
				state := s.Client().Do(ctx, "ROLE").Val().([]any)[0]
				n := s.Client().ClusterCountKeysInSlot(ctx, slot).Val()
				if s != owner && state == "master" && n > 0 {
					t.Errorf("%s has %d keys of a slot that is not its own", s.Addr(), n)
				}
			}
			eventually(t, "the keys are served", func() bool { return c.Get(ctx, "{tag}0").Val() == "0" })
		})
	}
}

// This state remains when a master dies before its replica has learned of a slot:
// the replica takes over without it, and the master comes back as a replica.
func TestHealGivesAwayASlotThatNoNodeOwns(t *testing.T) {
	t.Parallel()
	ctx := soon(t)
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{Replicas: true})
	for _, s := range nodes(cluster) {
		must(t, s.Client().Do(ctx, "CLUSTER", "DELSLOTS", 77).Err())
	}
	must(t, cluster.Heal(ctx))
	must(t, cluster.WaitReady(ctx))
	agreed(t, cluster)
}
