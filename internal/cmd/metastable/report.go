package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

type report struct {
	Config  config    `json:"config"`
	Summary []summary `json:"summary"`
	Runs    []result  `json:"runs"`
}

// A result is one run.
type result struct {
	Mode      string    `json:"mode"`
	Trigger   string    `json:"trigger"`
	Load      int       `json:"load_per_s"`
	Before    float64   `json:"goodput_before"`
	Carried   bool      `json:"carried"` // before the trigger
	Recovered bool      `json:"recovered"`
	Seconds   int       `json:"recovered_after_s"` // since the trigger's end
	Goodput   []float64 `json:"goodput"`           // by seconds, from five before the trigger
	// The seconds in Goodput of the trigger's begin and of its end.
	TriggerAt  int `json:"trigger_at"`
	TriggerEnd int `json:"trigger_end"`
}

func (r result) String() string {
	after := "did not recover"
	switch {
	case !r.Carried:
		after = fmt.Sprintf("was not carried before (%.1f %%)", 100*r.Before)
	case r.Recovered:
		after = fmt.Sprintf("recovered after %d s", r.Seconds)
	}
	return fmt.Sprintf("%-19s %-8s %5d calls/s  %s", r.Mode, r.Trigger, r.Load, after)
}

// A summary is the greatest load from which a mode recovers.
type summary struct {
	Mode     string  `json:"mode"`
	Trigger  string  `json:"trigger"`
	Carried  int     `json:"carried_per_s"`          // the greatest load carried before
	Recovers int     `json:"recovers_per_s"`         // the greatest of these from which it recovers, and from all smaller ones
	Share    float64 `json:"share"`                  // of one by the other
	Seconds  int     `json:"slowest_recovery_s"`     // from these
	Within10 bool    `json:"within_10_s_of_trigger"` // all of them
}

func (r *report) summarize() {
	order := func(all []string) func(string) int { return func(s string) int { return slices.Index(all, s) } }
	modes, triggers := order(r.Config.Modes), order(r.Config.Triggers)
	slices.SortFunc(r.Runs, func(a, b result) int {
		return cmp.Or(cmp.Compare(triggers(a.Trigger), triggers(b.Trigger)), cmp.Compare(modes(a.Mode), modes(b.Mode)), cmp.Compare(a.Load, b.Load))
	})
	for _, trigger := range r.Config.Triggers {
		for _, mode := range r.Config.Modes {
			s := summary{Mode: mode, Trigger: trigger, Within10: true}
			recovers := true
			for _, one := range r.Runs {
				if one.Mode != mode || one.Trigger != trigger || !one.Carried {
					continue
				}
				s.Carried = one.Load
				if recovers = recovers && one.Recovered; recovers {
					s.Recovers, s.Seconds = one.Load, max(s.Seconds, one.Seconds)
				}
				s.Within10 = s.Within10 && one.Recovered && one.Seconds <= 10
			}
			if s.Carried > 0 {
				s.Share = float64(s.Recovers) / float64(s.Carried)
			}
			r.Summary = append(r.Summary, s)
		}
	}
}

func (r *report) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "trigger\tmode\tcarries\trecovers from\tshare\tafter")
	for _, s := range r.Summary {
		fmt.Fprintf(w, "%s\t%s\t%d/s\t%d/s\t%.0f %%\t%d s\n", s.Trigger, s.Mode, s.Carried, s.Recovers, 100*s.Share, s.Seconds)
	}
	_ = w.Flush()
}

var colors = map[string]string{"none": "#999999", "singleflight": "#d98324", "guard": "#2266cc", "guard-stale-budget": "#1a8f5a"}

// chart draws the goodput at the greatest load: one panel for each trigger.
func (r *report) chart() string {
	const width, height, left, top, gap = 340, 110, 50, 40, 46
	load := slices.Max(r.Config.Loads)
	var b strings.Builder
	rows := (len(r.Config.Triggers) + 1) / 2
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", 2*(width+left)+20, top+rows*(height+gap)+10)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#ffffff"/><text x="%d" y="16" font-size="13">Share of calls answered within %v, at %d calls/s</text>`+"\n", left, r.Config.Timeout, load)
	x := left
	for _, mode := range r.Config.Modes {
		fmt.Fprintf(&b, `<rect x="%d" y="23" width="10" height="3" fill="%s"/><text x="%d" y="29">%s</text>`+"\n", x, colors[mode], x+14, mode)
		x += 40 + 7*len(mode)
	}
	for i, trigger := range r.Config.Triggers {
		x0, y0 := left+(i%2)*(width+left), top+(i/2)*(height+gap)+14
		fmt.Fprintf(&b, `<g transform="translate(%d %d)"><text x="0" y="-4">%s</text><rect width="%d" height="%d" fill="none" stroke="#cccccc"/>`+"\n", x0, y0, trigger, width, height)
		fmt.Fprintf(&b, `<text x="-8" y="6" text-anchor="end">100 %%</text><text x="-8" y="%d" text-anchor="end">0</text>`+"\n", height)
		longest, shade := 1, false
		for _, one := range r.Runs {
			if one.Trigger == trigger && one.Load == load {
				longest = max(longest, len(one.Goodput)-1)
			}
		}
		scale := float64(width) / float64(longest)
		for _, one := range r.Runs {
			if one.Trigger != trigger || one.Load != load {
				continue
			}
			if !shade {
				shade = true
				fmt.Fprintf(&b, `<rect x="%.1f" width="%.1f" height="%d" fill="#f3d9d9"/>`+"\n", scale*float64(one.TriggerAt), scale*float64(one.TriggerEnd-one.TriggerAt), height)
			}
			var line strings.Builder
			for s, g := range one.Goodput {
				if g >= 0 {
					fmt.Fprintf(&line, "%.1f,%.1f ", scale*float64(s), float64(height)*(1-g))
				}
			}
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.6" points="%s"/>`+"\n", colors[one.Mode], strings.TrimSpace(line.String()))
		}
		fmt.Fprintf(&b, `<text x="0" y="%d">0 s</text><text x="%d" y="%d" text-anchor="end">%d s</text></g>`+"\n", height+13, width, height+13, longest)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
