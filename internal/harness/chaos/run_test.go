package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/stampedeguard/stampede/internal/harness/chaos"
)

func TestMain(m *testing.M) {
	chaos.ChildMain()
	logging.Disable() // servers that are down are expected
	os.Exit(m.Run())
}

// A busy machine, with the race detector on, may take long for an answer, and
// may have little time for many callers.
func short(seed uint64) chaos.Options {
	return chaos.Options{
		Topology: chaos.Standalone, For: 12 * time.Second, Calm: 2 * time.Second, Seed: seed,
		Procs: 3, Rate: 60, RedisTimeout: 2 * time.Second,
	}
}

func TestPromisesHoldThroughFaults(t *testing.T) {
	opts := short(11)
	opts.Faults = []string{"kill", "cut", "restart", "script_flush", "full_lru"}
	var progress bytes.Buffer
	opts.Progress = &progress
	res, err := chaos.Run(t.Context(), opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	var text, object bytes.Buffer
	if err := res.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s\n%s", progress.String(), text.String())
	if !res.OK() {
		t.Error("a count that must be zero is not")
	}
	if res.Served < 300 || res.ServedMany < 30 || res.Fetches < 30 || res.Invalidated == 0 || res.TagsDeleted == 0 || len(res.Faults) < 3 {
		t.Errorf("served %d, by LoadMany %d, fetches %d, invalidations %d, of tags %d, faults %d: too little happened",
			res.Served, res.ServedMany, res.Fetches, res.Invalidated, res.TagsDeleted, len(res.Faults))
	}
	if err := res.WriteJSON(&object); err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(object.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"wrong_values", "stuck_callers", "duplicate_fetches", "lost_leases", "leaked_goroutines", "served", "errors", "faults",
	} {
		if _, ok := fields[name]; !ok {
			t.Errorf("the JSON object has no %q", name)
		}
	}
}

func TestInterruptedRunEndsAndReports(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	opts := short(12)
	opts.For = time.Hour
	begun := time.Now()
	res, err := chaos.Run(ctx, opts)
	if err != nil || !res.Interrupted {
		t.Errorf("interrupted %v, %v", res.Interrupted, err)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %v to end", took)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := chaos.Run(t.Context(), chaos.Options{
		Topology: chaos.Standalone, Faults: []string{"failover"}, Procs: 1, Calm: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`no fault "failover"`, "1 processes", "the rate", "lasts", "negative"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}
