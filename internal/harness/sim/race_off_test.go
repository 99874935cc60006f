//go:build !race

package sim_test

import (
	"os"
	"testing"
)

// manySeeds is the number of seeds of a run without flags.
const manySeeds = 2000

// A failing seed is of use only if it fails again. The race detector schedules
// goroutines at random: this test is not for it.
func TestSimSameSeedIsTheSameHistory(t *testing.T) {
	if os.Getenv(worker) != "" {
		t.Skip("this is a worker")
	}
	n := manySeeds / 4
	sum := play(t, 1, uint64(n), "-twice")
	t.Logf("%d of %d seeds gave another trace the second time: %v", len(sum.Different), sum.Twice, sum.Different)
	// The scheduler chooses the caller that wakes last, and that one sends the next read.
	if len(sum.Different)*2 > sum.Twice {
		t.Errorf("that is more than one in 2")
	}
	sum.mustSaySomething(t)
}

// lockSeeds is how many seeds of package lock are played.
const lockSeeds = 20
