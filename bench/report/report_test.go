package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stampedeguard/stampede/bench/report"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := report.Median(c.samples); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.samples, got, c.want)
		}
	}
}

func load(t *testing.T) *report.Report {
	t.Helper()
	var r report.Report
	if err := r.ReadFile("testdata/report.json"); err != nil {
		t.Fatal(err)
	}
	return &r
}

// The fixture has a case that we win, one that a peer wins, one without a
// rival and one that is tied.
func TestCompareNamesTheBestRival(t *testing.T) {
	r := load(t)
	w := r.Workloads[0]
	for _, c := range []struct {
		kase, metric string
		standing     report.Standing
		best         string
		ratio, limit float64
	}{
		{"won", "last caller", report.First, "good", 0.5, 0.1},
		{"lost", "last caller", report.Loses, "good", 2, 0.2},
		{"alone", "last caller", report.Alone, "", 0, 0.1},
		{"tied", "fetches", report.Tied, "good", 1, 0},
		{"close", "last caller", report.Close, "good", 1.05, 0.21},
	} {
		kase := w.Case(c.kase)
		var m report.Metric
		for _, m = range w.Metrics {
			if m.Name == c.metric {
				break
			}
		}
		v, ok := r.Compare(m, kase)
		if !ok {
			t.Errorf("%s: nothing to compare", c.kase)
			continue
		}
		best := ""
		if v.Best != nil {
			best = v.Best.System
		}
		if v.Standing != c.standing || best != c.best || math.Abs(v.Ratio-c.ratio) > 1e-9 || math.Abs(v.LimitRatio-c.limit) > 1e-9 {
			t.Errorf("%s: %q beside %q, ratio %v, to the limit %v; want %q, %q, %v, %v",
				c.kase, v.Standing, best, v.Ratio, v.LimitRatio, c.standing, c.best, c.ratio, c.limit)
		}
	}
}

func TestMarkdownNamesLossesAndGaps(t *testing.T) {
	var b strings.Builder
	if err := load(t).Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| Work | lost | last caller, ms | 20 | 10 (good) | 2.00× | 0.20× fetch | **a peer wins** |",
		"| Work | won | last caller, ms | 10 | 20 (good) | 0.50× | 0.10× fetch | first |",
		"| Work | alone | last caller, ms | 10 | none | — | 0.10× fetch | alone |",
		"20 <sub>18–25</sub>",
		"| bad | — |", "1 round failed: it hung",
		"| lostpeer | not built | | why it is missing |",
		"| 4 | 100 | 9 | 2 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the tables lack %q", want)
		}
	}
	if t.Failed() {
		t.Log(b.String())
	}
}

// A workload that was measured again by itself is marked as such in the merged run.
func TestMarkdownNamesRepeatedMeasurements(t *testing.T) {
	r := load(t)
	before := r.Env
	for _, later := range []report.Env{{Date: "2030-01-01", Rounds: 1}, {Date: "2030-01-02", Rounds: 3, Go: "go9", Redis: "9.0", LoadBefore: 2.5}} {
		r.Env.Remeasured([]string{"work"}, later)
	}
	if r.Env.Date != before.Date || r.Env.Rounds != before.Rounds {
		t.Errorf("the run itself is now of %s, with %d rounds", r.Env.Date, r.Env.Rounds)
	}
	var b strings.Builder
	if err := r.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	want := "Measured again by itself: work, on 2030-01-02, 3 rounds, go9, Redis 9.0, load average 2.5"
	if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "2030-01-01") {
		t.Errorf("want %q, once, in\n%.1000s", want, b.String())
	}
}

func TestSVGIsWellFormed(t *testing.T) {
	r := load(t)
	r.Workloads[0].Name, r.Workloads[0].Cases[0].Name = "stampede", "8 × 1000"
	var b strings.Builder
	if err := r.SVG(&b); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{">ours<", ">good<", ">10<", ">20<", ">failed<"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
}
