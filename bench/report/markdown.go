package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Markdown writes the whole report.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	r.head(&b)
	r.summary(&b)
	r.systems(&b)
	for _, work := range r.Workloads {
		r.workload(&b, work)
	}
	r.growth(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) head(b *strings.Builder) {
	e := r.Env
	fmt.Fprintf(b, "# Measured against the field\n\n")
	fmt.Fprintf(b, "This page is written by `%s`; don't edit it. ", e.Command)
	fmt.Fprintf(b, "[README.md](README.md) has the adapters, each configured as its own documentation recommends, and the workloads.\n\n")
	fmt.Fprintf(b, "![Charts of the main rows](peers.svg)\n\n")
	fmt.Fprintf(b, "Run on %s: %d cores (%s, %s), Redis %s over loopback on the same cores, %s. %s, %s in all",
		e.Date, e.Cores, e.OS, e.CPU, e.Redis, e.Go, rounds(e.Rounds), e.Took.Round(time.Second))
	if e.Quick {
		b.WriteString(", quick mode: shorter and fewer cases")
	}
	fmt.Fprintf(b, ".\nThe load average was %.1f when it began", e.LoadBefore)
	if e.LoadBefore > 0.5 {
		b.WriteString(": **other work was using the machine**, so compare figures with each other and don't take them as they are")
	}
	for _, a := range e.Again {
		fmt.Fprintf(b, ".\nMeasured again by itself: %s, on %s, %s, %s, Redis %s, load average %.1f", a.Workload, a.Date, rounds(a.Rounds), a.Go, a.Redis, a.LoadBefore)
		if a.Quick {
			b.WriteString(", quick mode")
		}
	}
	b.WriteString(".\n\nIn each round the systems take turns in random order, so that noise hits all of them. " +
		"A figure is the median of the rounds, with the least and the greatest behind it. " +
		"Bytes and commands are the server's own counts; commands that scripts run are among them.\n\n")
}

func (r *Report) summary(b *strings.Builder) {
	b.WriteString("## Summary\n\n" +
		"The best peer is the best of the peers that did the work: in a stampede, those that fetched once. " +
		"The tables below name the peers that are left out, and the reasons. Where a peer wins, the row says so.\n\n" +
		"| workload | case | figure | stampede | best peer | ours : best peer | ours : limit | |\n" +
		"|---|---|---|--:|--:|--:|--:|---|\n")
	counts := map[Standing]int{}
	for _, w := range r.Workloads {
		for _, c := range w.Cases {
			for _, m := range w.Metrics {
				if !m.Headline {
					continue
				}
				v, ok := r.Compare(m, c)
				if !ok {
					continue
				}
				counts[v.Standing]++
				peer, rel := "none", "—"
				if v.Best != nil {
					peer, rel = fmt.Sprintf("%s (%s)", number(v.Theirs), v.Best.System), times(v.Ratio)
				}
				standing := string(v.Standing)
				if v.Standing == Loses {
					standing = "**" + standing + "**"
				}
				fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n",
					w.Title, c.Name, unit(m), number(v.Mine), peer, rel, limited(v.LimitName, v.LimitRatio), standing)
			}
		}
	}
	b.WriteString("\n")
	for _, s := range []Standing{First, Tied, Close, Alone, Loses} {
		fmt.Fprintf(b, "%s: %d. ", s, counts[s])
	}
	b.WriteString("\n\n“Alone” means that no peer did the work; “within the spread”, that each median is among the other's rounds.\n\n")
}

func (r *Report) systems(b *strings.Builder) {
	b.WriteString("## Systems\n\n| | version | configured by | |\n|---|---|---|---|\n")
	for _, s := range r.Systems {
		fmt.Fprintf(b, "| %s | %s | [its documentation](%s) | %s |\n", s.Name, s.Version, s.Link, s.Note)
	}
	names := make([]string, 0, len(r.Missing))
	for name := range r.Missing {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(b, "| %s | not built | | %s |\n", name, r.Missing[name])
	}
	b.WriteString("\n")
}

func (r *Report) workload(b *strings.Builder, w *Workload) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n", w.Title, w.About)
	for _, c := range w.Cases {
		if len(w.Cases) > 1 || c.Name != "" {
			fmt.Fprintf(b, "**%s**\n\n", c.Name)
		}
		head, rule := "| |", "|---|"
		for _, m := range w.Metrics {
			head += " " + unit(m) + " |"
			rule += "--:|"
			if m.Headline && m.Better != Neither {
				head += " : best peer |"
				rule += "--:|"
				if m.Limit != "" || m.LimitValue > 0 {
					head += " : limit |"
					rule += "--:|"
				}
			}
		}
		fmt.Fprintf(b, "%s |\n%s---|\n", head, rule)
		for _, s := range r.Systems {
			i := slices.IndexFunc(c.Results, func(res *Result) bool { return res.System == s.Name })
			if i >= 0 {
				r.row(b, w, c, c.Results[i], s)
			}
		}
		b.WriteString("\n")
	}
}

func (r *Report) row(b *strings.Builder, w *Workload, c *Case, res *Result, s System) {
	name := s.Name
	if s.Ours {
		name = "**" + name + "**"
	}
	fmt.Fprintf(b, "| %s |", name)
	for _, m := range w.Metrics {
		f := res.Figures[m.Name]
		if f == nil {
			b.WriteString(" — |")
		} else {
			fmt.Fprintf(b, " %s |", spread(f))
		}
		if !m.Headline || m.Better == Neither {
			continue
		}
		best, any := r.best(m, c)
		if f == nil || !any {
			b.WriteString(" |")
		} else {
			fmt.Fprintf(b, " %s |", times(ratio(f.Median(), best)))
		}
		if m.Limit != "" || m.LimitValue > 0 {
			if f == nil {
				b.WriteString(" |")
			} else {
				fmt.Fprintf(b, " %s |", limited(r.limit(m, c, f.Median())))
			}
		}
	}
	var notes []string
	if !res.Rival && res.WhyNot != "" {
		notes = append(notes, res.WhyNot)
	}
	if len(res.Failed) > 0 {
		notes = append(notes, fmt.Sprintf("%s failed: %s", rounds(len(res.Failed)), res.Failed[0]))
	}
	fmt.Fprintf(b, " %s |\n", strings.ReplaceAll(strings.Join(notes, "; "), "|", "\\|"))
}

// best is the figure of the best peer.
func (r *Report) best(m Metric, c *Case) (float64, bool) {
	found := false
	var best float64
	for _, res := range c.Results {
		f := res.Figures[m.Name]
		if f == nil || !r.rival(m, res) {
			continue
		}
		if v := f.Median(); !found || better(m, v, best) {
			best, found = v, true
		}
	}
	return best, found
}

func (r *Report) growth(b *strings.Builder) {
	if len(r.Growth) == 0 {
		return
	}
	b.WriteString("## Cost of a stampede for each process\n\n" +
		"This library alone: one cold key, a fetch of 130 ms, all processes at once. Each column but the last two is for one process: " +
		"commands the server executed (those run by scripts are among them), bytes in both directions, CPU time.\n\n" +
		"| processes | callers in each | commands | KiB | CPU ms | CPU µs a caller | fetches | last caller after the fetch, ms |\n" +
		"|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, g := range r.Growth {
		kib := Figure{}
		for _, s := range g.Bytes.Samples {
			kib.Samples = append(kib.Samples, s/1024)
		}
		fmt.Fprintf(b, "| %d | %d | %s | %s | %s | %s | %s | %s |\n", g.Procs, g.Callers,
			spread(&g.Commands), spread(&kib), spread(&g.CPU), number(g.CPU.Median()*1000/float64(g.Callers)), spread(&g.Fetches), spread(&g.Overhead))
	}
	b.WriteString("\n")
}

func unit(m Metric) string {
	if m.Unit == "" {
		return m.Name
	}
	return m.Name + ", " + m.Unit
}

// spread is the median, and the range if there is one.
func spread(f *Figure) string {
	if len(f.Samples) == 0 {
		return "—"
	}
	m, lo, hi := number(f.Median()), number(f.Min()), number(f.Max())
	if lo == hi {
		return m
	}
	return fmt.Sprintf("%s <sub>%s–%s</sub>", m, lo, hi)
}

func rounds(n int) string {
	if n == 1 {
		return "1 round"
	}
	return strconv.Itoa(n) + " rounds"
}

// number has three digits that count.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "—"
	case a >= 1e6:
		return significant(v/1e6) + " M"
	case a >= 1e4:
		return significant(v/1e3) + " k"
	case a == math.Trunc(a):
		return strconv.FormatFloat(v, 'f', 0, 64)
	default:
		return significant(v)
	}
}

func significant(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func times(ratio float64) string {
	if math.IsNaN(ratio) || math.IsInf(ratio, 0) {
		return "—"
	}
	if ratio >= 100 {
		return fmt.Sprintf("%.0f×", ratio)
	}
	return fmt.Sprintf("%.2f×", ratio)
}

func limited(name string, ratio float64) string {
	if name == "" {
		return "—"
	}
	return times(ratio) + " " + name
}
