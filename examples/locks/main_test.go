package main

import (
	"os"
	"testing"

	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

func TestMain(m *testing.M) {
	spawn.Main("contender", contend)
	os.Exit(m.Run())
}

func TestOursHasNoOverlapsAndNoDeadlocks(t *testing.T) {
	reports, err := all(1, "stampede")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range reports[0].Faults {
		if f.Overlaps > 0 || f.Deadlocks > 0 {
			t.Errorf("%+v", f)
		}
		// Of different processes, on a quiet machine.
		bound := map[string]float64{"contention": 2, "killed holder": 300}[f.Name]
		if bound > 0 && os.Getenv("STAMPEDE_BOUNDS") == "1" && (f.HandOver == 0 || f.HandOver > bound) {
			t.Errorf("%s: %v ms from one process to the next, want %v at most", f.Name, f.HandOver, bound)
		}
	}
}

func TestBlindDeleteOverlaps(t *testing.T) {
	reports, err := all(1, "SET NX PX, blind DEL")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range reports[0].Faults {
		if f.Name == "late unlock" && f.Overlaps == 0 {
			t.Errorf("%+v", f)
		}
	}
}
