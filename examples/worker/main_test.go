package main

import (
	"os"
	"testing"

	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

func TestMain(m *testing.M) {
	spawn.Main("worker", work)
	os.Exit(m.Run())
}

func TestKilledWorkersLeaveJobDoneAtMostOnce(t *testing.T) {
	o, err := run(4, true, true)
	if err != nil {
		t.Fatal(err)
	}
	if o.Done > 1 || o.Attempts > maxAttempts || o.MaxAtOnce != 1 || o.Kills != maxKills {
		t.Errorf("%+v", o)
	}
}
