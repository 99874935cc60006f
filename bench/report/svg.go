package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// The charts are horizontal bars with the figure written behind each, and bars
// that say why there are none. That is little enough to draw here: the charts
// library of the examples has no bars of different colours in one series and no
// words in place of a bar.

// A panel is one chart: a case of a workload by one metric.
type panel struct {
	workload, kase, metric string
	title, sub             string
	log                    bool
}

var panels = []panel{
	{"stampede", "8 × 1000", "fetches", "Stampede: fetches of one cold key", "8 processes × 1000 callers; fewer is better; logarithmic", true},
	{"stampede", "8 × 1000", "last caller", "Stampede: until the last of 8000 callers has the value", "ms after the fetch’s end; fetch 130 ms", false},
	{"killed", "", "last answered", "The process that fetches is killed", "ms until all survivors’ callers have the value; default settings", false},
	{"failing", "", "last caller", "A fetch that fails after 130 ms", "ms until the last of 40 callers in 4 processes is told", false},
	{"expiry", "", "blocked", "A hot key expires every second", "% of calls that wait for the fetch", false},
	{"outage", "stopped", "answered", "Redis stops answering", "% of calls answered; higher is better", false},
	{"warm", "1 KiB, one key, 64 callers", "calls a second", "Hits that ask Redis", "calls a second, 64 callers, 1 KiB; higher is better", false},
	{"near", "1 KiB, one key, 64 callers", "calls a second", "Hits kept in the process", "calls a second, 64 callers, 1 KiB; higher is better; logarithmic", true},
}

// Of one panel, in pixels.
const (
	panelWidth = 520
	labelWidth = 150
	barsWidth  = 225
	barHeight  = 20
	headHeight = 52
)

const style = `text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-size:14px;font-weight:600}.s{fill:#6e7781;font-size:11px}` +
	`.n{fill:#6e7781}.o{fill:#1f6feb}.p{fill:#a0a8b2}.l{fill:#d0d7de}.b{font-weight:600}.bg{fill:#fff}` +
	`@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s,.n{fill:#8b949e}.o{fill:#58a6ff}.p{fill:#6e7681}.l{fill:#30363d}.bg{fill:#0d1117}}`

// SVG draws the main rows as one picture, which follows the reader's light or
// dark scheme.
func (r *Report) SVG(w io.Writer) error {
	var b strings.Builder
	const columns = 2
	var heights [columns]int
	for _, p := range panels {
		c := r.find(p)
		if c == nil {
			continue
		}
		col := 0
		for i := range heights {
			if heights[i] < heights[col] {
				col = i
			}
		}
		heights[col] += r.panel(&b, p, c, col*panelWidth, heights[col])
	}
	height := 0
	for _, h := range heights {
		height = max(height, h)
	}
	e := r.Env
	foot := fmt.Sprintf("%s: %d cores, Redis %s over loopback, %s; median of %s", e.Date, e.Cores, e.Redis, e.Go, rounds(e.Rounds))
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="Stampede beside its peers: the figures are in peers.md"><style>%s</style><rect class="bg" width="100%%" height="100%%"/>%s<text class="s" x="16" y="%d">%s</text></svg>`+"\n",
		columns*panelWidth, height+30, columns*panelWidth, height+30, style, b.String(), height+16, html.EscapeString(foot))
	return err
}

func (r *Report) find(p panel) *Case {
	for _, w := range r.Workloads {
		if w.Name != p.workload {
			continue
		}
		for _, c := range w.Cases {
			if c.Name == p.kase {
				return c
			}
		}
	}
	return nil
}

// panel draws one chart at x, y and returns its height.
func (r *Report) panel(b *strings.Builder, p panel, c *Case, x, y int) int {
	fmt.Fprintf(b, `<g transform="translate(%d %d)"><text class="t" x="16" y="26">%s</text><text class="s" x="16" y="42">%s</text>`,
		x, y, html.EscapeString(p.title), html.EscapeString(p.sub))
	top := 0.0
	for _, res := range c.Results {
		if f := res.Figures[p.metric]; f != nil {
			top = max(top, f.Median())
		}
	}
	row := 0
	for _, s := range r.Systems {
		var res *Result
		for _, candidate := range c.Results {
			if candidate.System == s.Name {
				res = candidate
			}
		}
		if res == nil {
			continue
		}
		r.bar(b, p, s, res, top, headHeight+row*barHeight)
		row++
	}
	b.WriteString("</g>")
	return headHeight + row*barHeight + 16
}

func (r *Report) bar(b *strings.Builder, p panel, s System, res *Result, top float64, y int) {
	bar, text := "p", ""
	switch {
	case s.Ours:
		bar, text = "o", " b"
	case s.Limit:
		bar = "l"
	}
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d" text-anchor="end">%s</text>`, strings.TrimSpace(text), labelWidth, y+14, html.EscapeString(s.Name))
	f := res.Figures[p.metric]
	if f == nil {
		fmt.Fprintf(b, `<text class="n" x="%d" y="%d">failed</text>`, labelWidth+8, y+14)
		return
	}
	width := 0.0
	switch v := f.Median(); {
	case top <= 0:
	case p.log:
		width = barsWidth * math.Log10(1+v) / math.Log10(1+top)
	default:
		width = barsWidth * v / top
	}
	fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, bar, labelWidth+8, y+3, max(width, 1), barHeight-6)
	label := number(f.Median())
	if !s.Ours && !res.Rival && res.WhyNot != "" && (p.metric == "last caller" || p.metric == "last answered") {
		label += " (" + short(res) + ")"
	}
	fmt.Fprintf(b, `<text class="n%s" x="%.1f" y="%d">%s</text>`, text, labelWidth+14+width, y+14, html.EscapeString(label))
}

// short says in a word or two why a system is no rival.
func short(res *Result) string {
	if f := res.Figures["fetches"]; f != nil {
		return number(f.Median()) + " fetches"
	}
	if f := res.Figures["survivors' fetches"]; f != nil {
		return "no sharing"
	}
	return "not comparable"
}
