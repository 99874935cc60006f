// Package report holds the figures of a run and draws them: JSON, Markdown, SVG.
// The JSON is complete: the others can be drawn from it again.
package report

import (
	"slices"
	"time"
)

// A Report is one run.
type Report struct {
	Env       Env
	Systems   []System
	Missing   map[string]string `json:",omitempty"` // systems that could not be built, and why
	Workloads []*Workload
	Growth    []Growth `json:",omitempty"`
}

// Env is where and how the run was made.
type Env struct {
	Command     string
	Date        string // day
	Go, OS, CPU string // versions and kinds, never names of machines
	Cores       int
	Redis       string
	Rounds      int
	Quick       bool `json:",omitzero"`
	Took        time.Duration
	// LoadBefore is the machine's load average over a minute when the run began:
	// the load of other work, and not of this run.
	LoadBefore float64
	// Again are the workloads that were measured again by themselves since.
	Again []Again `json:",omitempty"`
}

// Again is when and how a workload was measured again.
type Again struct {
	Workload, Date, Go, Redis string
	Rounds                    int
	Quick                     bool `json:",omitzero"`
	LoadBefore                float64
}

// Remeasured notes that these workloads are of a later run than the rest.
func (e *Env) Remeasured(workloads []string, later Env) {
	for _, w := range workloads {
		e.Again = append(slices.DeleteFunc(e.Again, func(a Again) bool { return a.Workload == w }), Again{
			Workload: w, Date: later.Date, Go: later.Go, Redis: later.Redis,
			Rounds: later.Rounds, Quick: later.Quick, LoadBefore: later.LoadBefore,
		})
	}
}

// A System is one of the measured systems.
type System struct {
	Name, Version, Link, Note string
	Ours, Limit, Near, Fleet  bool
}

// A Workload is one kind of work, in one or more cases.
type Workload struct {
	Name, Title, About string
	Metrics            []Metric
	Cases              []*Case
}

// A Metric is one kind of figure of a workload.
type Metric struct {
	Name, Unit string
	Better     Direction `json:",omitzero"` // Neither: told, not judged
	// Headline metrics are in the summary, with the best peer beside them.
	Headline bool `json:",omitzero"`
	// Open metrics are compared with all peers, and not only with the rivals.
	Open bool `json:",omitzero"`
	// Floor is a difference without importance: figures no further apart count as
	// equal.
	Floor float64 `json:",omitzero"`
	// Limit is the system that gives the limit of this figure; or LimitValue is the
	// limit, called LimitName.
	Limit      string  `json:",omitzero"`
	LimitValue float64 `json:",omitzero"`
	LimitName  string  `json:",omitzero"`
}

// A Direction tells the better figures.
type Direction int

// Directions.
const (
	Neither Direction = iota
	Lower
	Higher
)

// A Case is a workload's parameters.
type Case struct {
	Name    string
	Results []*Result
}

// A Result is the figures of one system in one case.
type Result struct {
	System  string
	Figures map[string]*Figure `json:",omitempty"`
	Failed  []string           `json:",omitempty"` // of its rounds, why
	// Rival reports whether the system did the work, so that its figures are
	// compared with ours. WhyNot tells the reason if it did not.
	Rival  bool   `json:",omitzero"`
	WhyNot string `json:",omitzero"`
}

// A Figure is one metric over all rounds.
type Figure struct{ Samples []float64 }

// Median of the samples.
func (f *Figure) Median() float64 { return Median(f.Samples) }

// Min of the samples.
func (f *Figure) Min() float64 { return slices.Min(f.Samples) }

// Max of the samples.
func (f *Figure) Max() float64 { return slices.Max(f.Samples) }

func (f *Figure) spans(v float64) bool { return f.Min() <= v && v <= f.Max() }

// Median returns the middle of the samples, or the mean of the two in the
// middle; 0 of none.
func Median(samples []float64) float64 {
	n := len(samples)
	if n == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(samples))
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// Growth is the cost of a stampede for each process of this library, by the number
// of processes and of callers in each.
type Growth struct {
	Procs, Callers int
	// For each process: commands the server executed, those run by scripts
	// included; bytes in both directions; CPU time in milliseconds.
	Commands, Bytes, CPU Figure
	Fetches, Overhead    Figure // in all; ms from the fetch's end to the last caller
}

// Case returns the case of that name, adding it if there is none.
func (w *Workload) Case(name string) *Case {
	for _, c := range w.Cases {
		if c.Name == name {
			return c
		}
	}
	c := &Case{Name: name}
	w.Cases = append(w.Cases, c)
	return c
}

// Result returns that system's result, adding it if there is none.
func (c *Case) Result(system string) *Result {
	for _, r := range c.Results {
		if r.System == system {
			return r
		}
	}
	r := &Result{System: system, Figures: map[string]*Figure{}}
	c.Results = append(c.Results, r)
	return r
}

// Add adds a sample.
func (r *Result) Add(metric string, value float64) {
	f := r.Figures[metric]
	if f == nil {
		f = &Figure{}
		r.Figures[metric] = f
	}
	f.Samples = append(f.Samples, value)
}

// System returns the system of that name.
func (r *Report) System(name string) System {
	for _, s := range r.Systems {
		if s.Name == name {
			return s
		}
	}
	return System{Name: name}
}
