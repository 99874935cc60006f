package main

import (
	"fmt"
	"html/template"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-analyze/charts"
)

// Why go-analyze/charts: it draws SVG in pure Go, so that the page needs
// neither a script nor a network, it is kept up (releases through 2026), and it
// brings four small modules. go-echarts has the browser load a megabyte of
// script from a CDN. gonum/plot has better axes and is as alive, but importing
// it brings TeX and PDF modules from hosts this module needs nothing else of.
//
// The library draws with fixed colours. They are replaced by CSS variables, so
// that one drawing serves light and dark; and as text in an SVG shrinks with
// it, each chart is drawn twice, and the page shows the one that fits.

// A series is a line of a chart: its value at each instant.
type series struct {
	style string // the CSS class that gives it its colour
	at    func(t time.Duration) float64
}

// A chart is values over time, from the common start to until.
type chart struct {
	until    time.Duration
	series   []series
	top      float64 // of the y axis, which starts at 0
	labels   int     // on the y axis
	yLabel   func(v float64) string
	describe string // for readers without sight
}

// styles stand for colours: the n-th is drawn as rgb(n+1,2,3), and then replaced by
// its CSS.
var styles = []struct{ name, css string }{
	{modeNone, "var(--none)"},
	{modeSingleflight, "var(--singleflight);stroke-dasharray:7 4"},
	{modeGuard, "var(--guard)"},
	{sceneCrash, "var(--crash)"},
	{sceneError, "var(--error);stroke-dasharray:7 4"},
	{"text", "var(--muted)"},
	{"grid", "var(--grid)"},
	{"ground", "none"},
}

func token(name string) charts.Color {
	for i, s := range styles {
		if s.name == name {
			return charts.Color{R: uint8(i + 1), G: 2, B: 3, A: 255}
		}
	}
	panic("no style " + name)
}

var (
	tokens  = regexp.MustCompile(`rgb\((\d+),2,3\)`)
	fonts   = regexp.MustCompile(`;font-family:[^"]*`)
	opening = regexp.MustCompile(`<svg [^>]*>`)
	upright = regexp.MustCompile(`d="M (\d+) \d+\nL (\d+) \d+"`)
	text    = regexp.MustCompile(`<text x="(\d+)" y="(\d+)" style="`)
)

// draw returns the chart for wide and for narrow pages.
func (c chart) draw() (template.HTML, error) {
	wide, err := c.svg("wide", 800, 300, 7)
	if err != nil {
		return "", err
	}
	narrow, err := c.svg("narrow", 328, 250, 4)
	return template.HTML(wide + narrow), err
}

func (c chart) svg(class string, width, height, labels int) (string, error) {
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: width, Height: height})
	if err := p.LineChart(c.options(labels)); err != nil {
		return "", fmt.Errorf("drawing a chart: %w", err)
	}
	b, err := p.Bytes()
	if err != nil {
		return "", fmt.Errorf("drawing a chart: %w", err)
	}
	svg := fonts.ReplaceAllString(string(b), "")
	svg = tokens.ReplaceAllStringFunc(svg, func(s string) string {
		n, _ := strconv.Atoi(tokens.FindStringSubmatch(s)[1])
		return styles[n-1].css
	})
	svg = centreLabels(svg)
	head := fmt.Sprintf(`<svg class="%s" viewBox="0 0 %d %d" role="img" aria-label="%s">`,
		class, width, height, template.HTMLEscapeString(c.describe))
	return opening.ReplaceAllLiteralString(svg, head), nil
}

// centreLabels puts each label of the x axis, the lowest texts, under its tick.
// The library spreads them between the first, which begins at the axis, and the
// last, which ends there, so that those between are off by half a label.
func centreLabels(svg string) string {
	var ticks []string
	for _, m := range upright.FindAllStringSubmatch(svg, -1) {
		if m[1] == m[2] {
			ticks = append(ticks, m[1])
		}
	}
	lowest, count := 0, 0
	for _, m := range text.FindAllStringSubmatch(svg, -1) {
		if y, _ := strconv.Atoi(m[2]); y > lowest {
			lowest, count = y, 1
		} else if y == lowest {
			count++
		}
	}
	if count != len(ticks) {
		return svg // drawn otherwise than expected: better roughly right
	}
	return text.ReplaceAllStringFunc(svg, func(s string) string {
		m := text.FindStringSubmatch(s)
		if y, _ := strconv.Atoi(m[2]); y != lowest {
			return s
		}
		x := ticks[0]
		ticks = ticks[1:]
		return fmt.Sprintf(`<text x="%s" y="%s" style="text-anchor:middle;`, x, m[2])
	})
}

// options are the library's. Its x axis knows no numbers, only points with
// labels, so the time is cut into many, and few of them have a label.
func (c chart) options(labels int) charts.LineChartOption {
	step := tickOf(c.until, labels)
	const fine = 50 // points between two labels
	points := fine*int(math.Ceil(float64(c.until)/float64(step))) + 1
	names := make([]string, points)
	values := make([][]float64, len(c.series))
	var colours []charts.Color
	for i, s := range c.series {
		colours = append(colours, token(s.style))
		for k := range points {
			t := time.Duration(k) * step / fine
			names[k] = strconv.FormatInt(t.Milliseconds(), 10)
			values[i] = append(values[i], s.at(t))
		}
	}
	o := charts.NewLineChartOptionWithData(values)
	o.Theme = charts.MakeTheme(charts.ThemeOption{
		AxisStrokeColor: token("grid"), AxisSplitLineColor: token("grid"),
		BackgroundColor: token("ground"), TextColor: token("text"), SeriesColors: colours,
	})
	font := charts.FontStyle{FontSize: 9.5, FontColor: token("text")}
	o.Padding = charts.NewBox(4, 12, 24, 8)
	o.Symbol = charts.SymbolNone
	o.LineStrokeWidth = 2.5
	o.Legend.Show = charts.Ptr(false)
	o.XAxis = charts.XAxisOption{
		Labels: names, LabelCount: points/fine + 1, BoundaryGap: charts.Ptr(false), LabelFontStyle: font,
	}
	o.YAxis = []charts.YAxisOption{{
		Min: charts.Ptr(0.0), Max: charts.Ptr(c.top), RangeValuePaddingScale: charts.Ptr(0.0),
		LabelCount: c.labels, LabelFontStyle: font, ValueFormatter: c.yLabel,
	}}
	return o
}

// tickOf is a round step, in whole milliseconds, of which at most n make span.
func tickOf(span time.Duration, n int) time.Duration {
	for unit := time.Millisecond; ; unit *= 10 {
		for _, f := range []time.Duration{1, 2, 5} {
			if step := f * unit; step*time.Duration(n) >= span {
				return step
			}
		}
	}
}

// fetchChart is how many fetches had reached the origin, on a scale where 1 and
// 1000 can both be read: 0, 1, 10, 100, …
func fetchChart(outcomes []*outcome) chart {
	c := chart{yLabel: func(v float64) string {
		if v < 0.5 {
			return "0"
		}
		return strconv.Itoa(int(math.Pow10(int(math.Round(v)) - 1)))
	}}
	most := 1
	var said []string
	for _, o := range outcomes {
		most = max(most, len(o.fetches))
		c.until = max(c.until, percentile(o.latencies(), 100))
		said = append(said, fmt.Sprintf("%s %d", o.mode, len(o.fetches)))
		c.series = append(c.series, series{o.mode, func(t time.Duration) float64 {
			n := 0
			for _, f := range o.fetches {
				if f.arrived.Sub(o.start) <= t {
					n++
				}
			}
			if n == 0 {
				return 0
			}
			return 1 + math.Log10(float64(n))
		}})
	}
	c.top = 1 + math.Ceil(math.Log10(float64(most)))
	c.labels = int(c.top) + 1
	c.describe = "Fetches that had reached the origin, over time; in the end: " + strings.Join(said, ", ")
	return c
}

// answerChart is how many percent of the callers had their answer.
func answerChart(outcomes []*outcome, style func(*outcome) string) chart {
	c := chart{top: 100, labels: 5, yLabel: func(v float64) string { return fmt.Sprintf("%.0f%%", v) }}
	var said []string
	for _, o := range outcomes {
		sorted := o.latencies()
		last := percentile(sorted, 100)
		c.until = max(c.until, last)
		said = append(said, fmt.Sprintf("%s %s", style(o), tidy(last)))
		c.series = append(c.series, series{style(o), func(t time.Duration) float64 {
			n := 0
			for n < len(sorted) && sorted[n] <= t {
				n++
			}
			return 100 * float64(n) / float64(max(len(sorted), 1))
		}})
	}
	c.describe = "Callers that had their answer, over time; the last: " + strings.Join(said, ", ")
	return c
}
