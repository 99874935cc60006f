package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

// A table is shown while the modes are under way, on a terminal.
type table struct {
	out   *os.File // nil: not on a terminal
	lines int      // to go back over
}

func newTable(out *os.File) *table {
	if !term.IsTerminal(int(out.Fd())) {
		return &table{}
	}
	return &table{out: out}
}

func (t *table) show(c config, rows []row, since time.Duration) {
	if t.out == nil {
		return
	}
	t.back()
	left := max(0, c.last-since).Round(time.Second)
	fmt.Fprintf(t.out, "%d processes of each mode, %v to go\n\n", c.procs, left)
	writeRows(t.out, rows)
	t.lines = len(rows) + 3
}

// end leaves the place to the report.
func (t *table) end() {
	if t.out != nil {
		t.back()
	}
}

func (t *table) back() {
	if t.lines > 0 {
		fmt.Fprintf(t.out, "\x1b[%dA\x1b[J", t.lines)
		t.lines = 0
	}
}

func writeRows(w io.Writer, rows []row) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "mode\tcalls\tallowed\t429s\tcost\tanswers\tstale\tno answer\t")
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t$%d.%02d\t%d\t%s\t%s\t\n", r.Mode, r.Calls, r.Limit, r.Rejected,
			r.Cost/100, r.Cost%100, r.Answers, percent(r.StaleAnswers, r.Answers), percent(r.failed, r.failed+r.Answers))
	}
	_ = tw.Flush()
}

func percent(n, of int64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(n)/float64(of))
}

func writeText(w io.Writer, c config, rows []row) error {
	fmt.Fprintf(w, "%d processes of each mode want %d answers a second each, about %d quotes, for %v. The vendor\n"+
		"allows %d calls a second, and %d on top of that in any time (it bears %d); each costs $%d.%02d.\n\n",
		c.procs, c.demand, keys, c.last, c.limit, burst, vendorBurst, price/100, price%100)
	writeRows(w, rows)
	_, err := fmt.Fprintf(w, `
calls      that reached the vendor; allowed: by its terms, in this time
429s       of these, rejected; cost: of the others
stale      answers older than %v, and not yet refreshed
no answer  requests that ended with an error, or after %v without an answer
`, fresh, impatient)
	return err
}

func writeJSON(w io.Writer, rows []row) error {
	return json.NewEncoder(w).Encode(struct {
		Modes []row `json:"modes"`
	}{rows})
}
