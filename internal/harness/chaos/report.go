package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes one object.
func (r *Result) WriteJSON(w io.Writer) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// WriteText writes a table of the faults, the totals and the findings.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s Redis, %d processes (%d in all), %.0f calls/s each, %.0f s, seed %d\n\n",
		r.Topology, r.Procs, r.Started, r.Rate, r.Seconds, r.Seed)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "fault\ttimes\tserved\terrors\tworst ms\tduplicates\twrong\tstuck\t")
	for _, name := range r.FaultNames() {
		f := r.Faults[name]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.0f\t%d\t%d\t%d\t\n",
			name, f.Times, f.Served, sum(f.Errors), f.WorstMS, f.Duplicates, f.Wrong, f.Stuck)
	}
	fmt.Fprintf(t, "all\t\t%d\t%d\t%.0f\t%d\t%d\t%d\t\n", r.Served, sum(r.Errors), r.WorstMS, r.Duplicates, r.Wrong, r.Stuck)
	_ = t.Flush() // to b
	b.WriteString("\nerrors by kind (fetch and panic are those of the failing keys)\n")
	for _, name := range r.FaultNames() {
		if f := r.Faults[name]; len(f.Errors) > 0 {
			fmt.Fprintf(&b, "  %-16s %s\n", name, counts(f.Errors))
		}
	}
	r.totals(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Result) totals(b *strings.Builder) {
	line := func(name string, n int, format string, args ...any) {
		fmt.Fprintf(b, "  %-32s %7d  %s\n", name, n, fmt.Sprintf(format, args...))
	}
	b.WriteString("\nmust be 0\n")
	line("wrong_values", r.Wrong, "of %d served (%d by LoadMany), after %d Deletes, Sets and DeleteTags (%d)", r.Served, r.ServedMany, r.Invalidated, r.TagsDeleted)
	line("stuck_callers", r.Stuck, "")
	line("calm_duplicates", r.Calm, "")
	line("unexplained_duplicates", r.Unexplained, "")
	line("leaked_goroutines", r.LeakedGoroutines, "")
	b.WriteString("\nfor the record\n")
	line("duplicate_fetches", r.Duplicates, "of %d: %s", r.Fetches, counts(r.Explained))
	line("lost_leases", r.LostLeases, "%s", counts(r.LostLeasesBy))
	line("lost_invalidations", r.LostInvalidations, "by failovers (%d changes of a server's role); %d callers got an older value", r.RoleChanges, r.StaleAfterLost)
	line("starved", r.Starved, "times the machine had no time for a process, %.0f ms at worst", r.StarvedMS)
	if len(r.HeapGrowth) > 0 {
		least, most := growth(r.HeapGrowth)
		fmt.Fprintf(b, "  %-32s %7d  KiB at most in an idle process, %d at least\n", "heap growth", most>>10, least>>10)
	}
	fmt.Fprintf(b, "  events: %s\n", counts(r.Events))
	if r.ClockStepMS > 1 || r.ClockStepMS < -1 {
		fmt.Fprintf(b, "  the wall clock was set by %.1f ms during the run: what was found may be wrong\n", r.ClockStepMS)
	}
	for text, n := range r.Odd {
		fmt.Fprintf(b, "  other error, %d times: %s\n", n, text)
	}
	for _, l := range r.Lost {
		fmt.Fprintf(b, "  lost: %s\n", l)
	}
	for _, l := range r.Loose {
		fmt.Fprintf(b, "  duplicate while nothing was broken: %s\n", l)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(b, "FOUND %s\n", f)
	}
}

func growth(by map[int]int64) (least, most int64) {
	all := slices.Sorted(maps.Values(by))
	return all[0], all[len(all)-1]
}

func sum(m map[string]int) (n int) {
	for _, c := range m {
		n += c
	}
	return n
}

func counts(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
