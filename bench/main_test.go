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

// Real processes and a real server: the figures of a run reach all three files.
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
	seen := 0
	for _, w := range r.Workloads {
		for _, c := range w.Cases {
			for _, res := range c.Results {
				if len(res.Failed) > 0 {
					t.Errorf("%s, %s, %s: %s", w.Name, c.Name, res.System, res.Failed[0])
				}
				// The other figures depend on how much of the machine there is.
				for name, f := range res.Figures {
					if seen++; w.Name == "delete" && res.System == "stampede" && f.Median() != 0 {
						t.Errorf("stampede, %s: %s is %v", c.Name, name, f.Median())
					}
					if strings.Contains(name, "fetches") && f.Median() < 1 {
						t.Errorf("%s, %s: %v fetches of a cold key", w.Name, res.System, f.Median())
					}
				}
			}
		}
	}
	if want := 2*2 + 2*4 + 2*2*2; seen != want {
		t.Errorf("%d figures, want %d", seen, want)
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
