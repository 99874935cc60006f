package mutants

import (
	"encoding/json"
	"fmt"
	"io"
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

// Summary counts the results by verdict, and names what is wrong.
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
