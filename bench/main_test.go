package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/report"
)

func TestMain(m *testing.M) {
	if fleet.IsChild() {
		fleet.RunChild()
		return
	}
	os.Exit(m.Run())
}

// Real processes, a real server: what a run measures reaches all three files.
func TestRunMeasuresAndDraws(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	err := run(t.Context(), []string{
		"-run", "failing,cancelled,delete", "-systems", "stampede;singleflight", "-rounds", "1",
		"-json", file("r.json"), "-md", file("r.md"), "-svg", file("r.svg"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var r report.Report
	if err := r.ReadFile(file("r.json")); err != nil {
		t.Fatal(err)
	}
	fetches := map[string]float64{}
	for _, res := range r.Workloads[0].Cases[0].Results {
		if len(res.Failed) > 0 {
			t.Errorf("%s failed: %s", res.System, res.Failed[0])
			continue
		}
		fetches[res.System] = res.Figures["fetches"].Median()
	}
	if fetches["stampede"] != 1 || fetches["singleflight"] != 4 {
		t.Errorf("fetches of a failing key by 4 processes: %v, want 1 with stampede and 4 with singleflight", fetches)
	}
	for _, name := range []string{"r.md", "r.svg"} {
		b, err := os.ReadFile(file(name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "singleflight") {
			t.Errorf("%s doesn't name a system that was measured", name)
		}
	}
	again := file("again.md")
	if err := run(t.Context(), []string{"-run", "none", "-json", file("r.json"), "-md", again}); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(file("r.md"))
	b, err := os.ReadFile(again)
	if err != nil || string(a) != string(b) {
		t.Errorf("drawn again from the JSON, the tables differ (%v)", err)
	}
}

func TestUnknownNamesAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-run", "stampedes"}, {"-systems", "memcached"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("run %v: no error", args)
		}
	}
}
