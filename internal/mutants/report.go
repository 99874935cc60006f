package mutants

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the results for people.
func WriteTable(w io.Writer, results []Result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "mutant\tverdict\tcheck\tseconds\tof CPU")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%.1f\t%.1f\n", r.Name, r.Verdict, r.Check, r.Seconds, r.CPU)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\n"+Summary(results))
	return err
}

// Summary counts the results by verdict, and lists the mutants that are not OK.
func Summary(results []Result) string {
	count := map[Verdict]int{}
	cpu := 0.0
	var wrong []string
	for _, r := range results {
		count[r.Verdict]++
		cpu += r.CPU
		if !r.OK() {
			wrong = append(wrong, fmt.Sprintf("%s: %s (%s) %s", r.Verdict, r.Name, r.Check, r.Detail))
		}
	}
	text := fmt.Sprintf("%d mutants: %d killed, %d equivalent, %d survived, %d broken; %.0f s of processor time",
		len(results), count[Killed], count[Equivalent], count[Survived], count[Broken], cpu)
	return strings.Join(append([]string{text}, wrong...), "\n")
}

// WriteJSON writes the results as an array.
func WriteJSON(w io.Writer, results []Result) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(results)
}

// WritePage writes the page bench/mutants.md: each mutant, the source that it changes, and
// the check that must find it.
func WritePage(w io.Writer, all []Mutant) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Mutants\n\n<!-- Made by: go run ./internal/cmd/mutants -page > bench/mutants.md -->\n\n"+
		"Each of these %d mutants is the library with one rule taken out. `make mutants` tries them all: the check beside a mutant must fail.\n"+
		"[guarantees.md](../docs/guarantees.md) has the promises that the rules stand for. *Simulation* is [internal/harness/sim](../internal/harness/sim).\n\n"+
		"| mutant | changes | found by |\n|---|---|---|\n", len(all))
	for _, m := range all {
		var where []string
		for _, p := range m.Patches {
			if !slices.Contains(where, "`"+p.In+"`") {
				where = append(where, "`"+p.In+"`")
			}
		}
		found := m.Check.page()
		if m.Equivalent != "" {
			found = "nothing, and must not: " + m.Equivalent
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", m.Name, strings.Join(where, ", "), found)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// page is the check as the page names it.
func (c Check) page() string {
	if c.Seeds > 0 {
		return "simulation: " + c.String()
	}
	return "`" + c.Package + "`: `" + strings.Join(c.tests(), "`, `") + "`"
}
