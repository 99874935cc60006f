package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"time"
)

//go:embed report.html.tmpl
var pageSource string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"ms": func(v float64) string { return fmt.Sprintf("%.1f", v) },
}).Parse(pageSource))

// A page is the data of the template.
type page struct {
	Procs   int
	Callers int
	Total   int
	Fetch   time.Duration
	Redis   string
	Rows    []row

	None, Single, Guard, Crash, Error row

	Fetches, Answers, Trouble template.HTML

	CrashStory []moment
	ErrorStory []moment
	Notes      []string
}

// A moment is an instant of a scene, in milliseconds from its start.
type moment struct {
	At   float64
	Text string
}

// writeHTML writes a page that needs nothing but itself.
func writeHTML(c config, outcomes []*outcome, rows []row) error {
	p := page{
		Procs: c.procs, Callers: c.callers, Total: c.procs * c.callers, Fetch: c.fetch,
		Redis: "an embedded Redis server", Rows: rows,
		None: rows[0], Single: rows[1], Guard: rows[2], Crash: rows[3], Error: rows[4],
		CrashStory: crashMoments(outcomes[3]), ErrorStory: errorMoments(outcomes[4]),
	}
	if c.redisURL != "" {
		p.Redis = "a Redis server"
	}
	for _, o := range outcomes {
		p.Notes = append(p.Notes, o.notes...)
	}
	cold, trouble := outcomes[:3], outcomes[3:]
	byMode := func(o *outcome) string { return o.mode }
	byName := func(o *outcome) string { return o.name }
	for into, chart := range map[*template.HTML]chart{
		&p.Fetches: fetchChart(cold), &p.Answers: answerChart(cold, byMode), &p.Trouble: answerChart(trouble, byName),
	} {
		var err error
		if *into, err = chart.draw(); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		return fmt.Errorf("making the page: %w", err)
	}
	if err := os.WriteFile(c.html, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

func crashMoments(o *outcome) []moment {
	at := func(t time.Time) float64 { return ms(t.Sub(o.start)) }
	first := o.fetches[0]
	m := []moment{
		{0, "all callers ask"},
		{at(first.arrived), fmt.Sprintf("the fetch of process %d reaches the origin", first.proc)},
		{at(o.killed), fmt.Sprintf("process %d is killed", first.proc)},
	}
	for _, f := range o.fetches[1:] {
		m = append(m, moment{at(f.arrived), fmt.Sprintf("the fetch of process %d reaches the origin", f.proc)})
		if !f.ended.IsZero() {
			m = append(m, moment{at(f.ended), "the origin has answered it"})
		}
	}
	return append(m, moment{
		ms(percentile(o.latencies(), 100)),
		fmt.Sprintf("the last of the %d callers left has the value", len(o.answers)),
	})
}

func errorMoments(o *outcome) []moment {
	m := []moment{{0, "all callers ask"}}
	for _, f := range o.fetches {
		m = append(m, moment{ms(f.arrived.Sub(o.start)), fmt.Sprintf("the fetch of process %d reaches the origin", f.proc)})
		if !f.ended.IsZero() {
			m = append(m, moment{ms(f.ended.Sub(o.start)), "the origin answers with an error"})
		}
	}
	return append(m, moment{
		ms(percentile(o.latencies(), 100)),
		fmt.Sprintf("the last of %d callers knows", len(o.answers)),
	})
}
