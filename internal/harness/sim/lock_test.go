package sim_test

import (
	"sync"
	"testing"

	"github.com/stampedeguard/stampede/internal/harness/sim"
)

// lockViolations plays the seeds once, and returns the violations of a rule.
func lockViolations(t *testing.T, rule string) {
	t.Helper()
	lockRun.Do(func() {
		for seed := range uint64(lockSeeds) {
			r := sim.RunLocks(t, seed)
			lockGrants += r.Fetches
			for _, v := range r.Violations {
				lockBroken = append(lockBroken, lockViolation{seed, v})
			}
		}
	})
	for _, v := range lockBroken {
		if v.Rule == rule {
			t.Errorf("seed %d: %v", v.seed, v.Violation)
			return
		}
	}
	if lockGrants < 5*lockSeeds {
		t.Errorf("%d locks were granted in %d seeds", lockGrants, lockSeeds)
	}
}

type lockViolation struct {
	seed uint64
	sim.Violation
}

var (
	lockRun    sync.Once
	lockBroken []lockViolation
	lockGrants int
)

func TestLockRuleL1OneValidHolder(t *testing.T) { lockViolations(t, "L1") }

func TestLockRuleL2FencesRise(t *testing.T) { lockViolations(t, "L2") }

func TestLockRuleL3DeadHoldersLeaveNothingLocked(t *testing.T) { lockViolations(t, "L3") }
