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
