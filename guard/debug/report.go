package debug

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"html/template"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/measure"
)

// A Report is the content of the page, as JSON. Durations are seconds.
type Report struct {
	Time    time.Time `json:"time"`
	Process int       `json:"pid"`
	Guards  []Guard   `json:"guards"`
	Total   int       `json:"guards_total"` // Guards holds the busiest
	Nodes   []Node    `json:"nodes"`
	Budgets []Budget  `json:"budgets"`
	Locks   int       `json:"locks"`   // held by this process
	Lockers int       `json:"lockers"` // that report to the page
	Key     *Key      `json:"key,omitempty"`
}

// A Guard is the guards of one name.
type Guard struct {
	Name      string  `json:"name"`
	Instances int     `json:"instances"`
	Requests  uint64  `json:"requests"`
	Hit       float64 `json:"hit_ratio"`
	Stale     float64 `json:"stale_ratio"`
	Miss      float64 `json:"miss_ratio"`
	Failed    float64 `json:"error_ratio"`

	Sources map[string]uint64 `json:"sources"`
	Errors  map[string]uint64 `json:"errors"`
	Leases  map[string]uint64 `json:"leases"` // answers to requests for one
	Lost    uint64            `json:"leases_lost"`
	Refused uint64            `json:"fills_refused"`

	Fetching int      `json:"fetching"`
	Waiting  int      `json:"waiting"`
	Flights  []Flight `json:"flights"`
	InFlight int      `json:"flights_total"` // Flights holds some

	Stopped    []Stopped `json:"stopped"`
	MoreStops  int       `json:"stopped_unlisted"`
	LastErrors []Failure `json:"last_errors"`

	NearLive      bool   `json:"near_live"`
	NearEntries   int    `json:"near_entries"`
	NearEvictions uint64 `json:"near_evictions"`
	NearBypasses  uint64 `json:"near_bypasses"`
	Reserve       int    `json:"reserve_entries"`
	Queued        int    `json:"invalidations_queued"`

	// Rates are calls in a second, in the last minutes, oldest first.
	Rates Rates `json:"rates"`
}

// Rates are the series of a guard's chart.
type Rates struct {
	Step   float64   `json:"step"`
	Hits   []float64 `json:"hits"`
	Stale  []float64 `json:"stale"`
	Misses []float64 `json:"misses"`
	Failed []float64 `json:"errors"`
}

// A Flight is a key that is fetched or waited for.
type Flight struct {
	Key     string  `json:"key,omitempty"`
	Role    string  `json:"role"`
	Age     float64 `json:"age"`
	Callers int     `json:"callers"`
	Attempt int     `json:"attempt,omitempty"`
	Holder  string  `json:"holder,omitempty"` // "this process", or the other's token
}

// Stopped is a key that must not be fetched for a while.
type Stopped struct {
	Key  string  `json:"key,omitempty"`
	Kind string  `json:"kind"`
	Why  string  `json:"why,omitempty"`
	Left float64 `json:"left"`
	raw  string
}

// Form is the key for a form, in hexadecimal: a browser would change some bytes.
func (s Stopped) Form() string { return hex.EncodeToString([]byte(s.raw)) }

// A Failure is the error of a fetch.
type Failure struct {
	Key  string  `json:"key,omitempty"`
	Text string  `json:"error"`
	Ago  float64 `json:"ago"`
}

// A Key is the store's state of one key: the view of the whole fleet.
type Key struct {
	Guard       string  `json:"guard"`
	Key         string  `json:"key"`
	Holder      string  `json:"holder,omitempty"` // token of the lease
	Lease       float64 `json:"lease"`
	Pause       float64 `json:"pause"`
	Attempts    int     `json:"attempts"`
	Quarantined bool    `json:"quarantined"`
	Error       string  `json:"error,omitempty"`
}

// inspect asks the store for a key of the guard of that name.
func (p *Page) inspect(ctx context.Context, name, key string) *Key {
	one := &Key{Guard: clean(name), Key: shown(key)}
	for _, g := range p.registry.Guards() {
		if g.Name != name || len(g.Live) == 0 {
			continue
		}
		s, err := g.Live[0].Inspect(ctx, key)
		if err != nil {
			one.Error = clean(err.Error())
			return one
		}
		if !s.Holder.IsZero() {
			one.Holder = s.Holder.String()
		}
		one.Lease, one.Pause, one.Attempts, one.Quarantined = s.Lease.Seconds(), s.Pause.Seconds(), s.Attempts, s.Quarantined
		return one
	}
	one.Error = "this process has no guard of that name"
	return one
}

// A Node is a Redis node, as this process sees it.
type Node struct {
	Address    string `json:"address"`
	Breaker    string `json:"breaker"`
	Subscribed bool   `json:"subscribed"`
}

// A Budget is the last known state of a budget.
type Budget struct {
	Name      string  `json:"name"`
	Remaining int     `json:"remaining"`
	Burst     int     `json:"burst"`
	Allows    string  `json:"allows"`
	Spent     int64   `json:"spent"`
	Paused    float64 `json:"paused"`
}

// report describes the guards, or the one of that name.
func (p *Page) report(name string) *Report {
	rep := &Report{Time: time.Now(), Process: os.Getpid(), Guards: []Guard{}}
	all := slices.DeleteFunc(p.registry.Guards(), func(g measure.Named) bool { return len(g.Live) == 0 })
	rep.Total = len(all)
	if name != "" {
		all = slices.DeleteFunc(all, func(g measure.Named) bool { return g.Name != name })
	}
	if len(all) > p.opts.MaxGuards {
		calls := func(g *measure.Named) uint64 { t := totalsOf(g); return t.hits + t.stale + t.misses + t.failed }
		slices.SortStableFunc(all, func(a, b measure.Named) int { return cmp.Compare(calls(&b), calls(&a)) })
		all = all[:p.opts.MaxGuards]
	}
	for i := range all {
		rep.Guards = append(rep.Guards, p.reportGuard(&all[i]))
	}
	for _, n := range p.registry.Nodes() {
		node := Node{Address: clean(n.Addr), Breaker: "closed", Subscribed: n.Subscribed}
		if n.BreakerOpen {
			node.Breaker = "open"
		}
		rep.Nodes = append(rep.Nodes, node)
	}
	rep.Locks, rep.Lockers = p.registry.Locks()
	for _, b := range p.registry.Budgets() {
		rep.Budgets = append(rep.Budgets, Budget{
			Name: b.Name, Remaining: b.State.Remaining, Burst: b.Limit.Burst, Spent: b.State.Spent, Paused: b.State.Paused.Seconds(),
			Allows: fmt.Sprintf("%d in %v", b.Limit.Rate, b.Limit.Per),
		})
	}
	return rep
}

func (p *Page) reportGuard(n *measure.Named) Guard {
	s, t := &n.Stats, totalsOf(n)
	g := Guard{
		Name: n.Name, Instances: len(n.Live), Requests: t.hits + t.stale + t.misses + t.failed,
		Sources: map[string]uint64{}, Errors: map[string]uint64{}, Leases: measure.Leases(s), Lost: s.LeasesLost, Refused: s.FillsRefused,
		Fetching: s.Fetching, Waiting: s.Waiting, Flights: []Flight{},
		NearLive: s.NearLive, NearEntries: s.NearEntries, NearEvictions: s.NearEvictions, NearBypasses: s.NearBypasses,
		Reserve: s.ReserveEntries, Queued: s.Queued,
	}
	if g.Requests > 0 {
		of := float64(g.Requests)
		g.Hit, g.Stale, g.Miss, g.Failed = float64(t.hits)/of, float64(t.stale)/of, float64(t.misses)/of, float64(t.failed)/of
	}
	for _, c := range measure.Sources(s) {
		if c.Source != "" {
			g.Sources[c.Source] = c.N
		} else if c.N > 0 {
			g.Errors[c.Error] = c.N
		}
	}
	for _, live := range n.Live {
		some, total := live.InFlight(p.opts.MaxKeys - len(g.Flights))
		g.InFlight += total
		for _, f := range some {
			g.Flights = append(g.Flights, p.flight(&f))
		}
	}
	slices.SortFunc(g.Flights, func(a, b Flight) int { return cmp.Compare(b.Age, a.Age) })
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.watchLocked(n.Name)
	g.Stopped, g.MoreStops = w.stopsLocked(p.opts.HideKeys), w.unseen
	for _, f := range slices.Backward(w.errors) {
		one := Failure{Key: shown(f.key), Text: clean(f.text), Ago: time.Since(f.at).Seconds()}
		if p.opts.HideKeys {
			one.Key, one.Text = "", "hidden"
		}
		g.LastErrors = append(g.LastErrors, one)
	}
	g.Rates = w.ratesLocked()
	return g
}

func (p *Page) flight(f *guard.Flight) Flight {
	one := Flight{Key: shown(f.Key), Role: f.Role, Age: f.Age.Seconds(), Callers: f.Callers, Attempt: f.Attempt}
	if p.opts.HideKeys {
		one.Key = ""
	}
	switch {
	case !f.Holder.IsZero():
		one.Holder = f.Holder.String()
	case f.Attempt > 0:
		one.Holder = "this process"
	}
	return one
}

// ratesLocked are the differences of the samples.
func (w *watched) ratesLocked() Rates {
	r := Rates{Step: sampleEvery.Seconds(), Hits: []float64{}, Stale: []float64{}, Misses: []float64{}, Failed: []float64{}}
	rate := func(to *[]float64, before, now uint64) {
		*to = append(*to, float64(now-min(before, now))/r.Step)
	}
	for i := 1; i < len(w.history); i++ {
		a, b := w.history[i-1], w.history[i]
		rate(&r.Hits, a.hits, b.hits)
		rate(&r.Stale, a.stale, b.stale)
		rate(&r.Misses, a.misses, b.misses)
		rate(&r.Failed, a.failed, b.failed)
	}
	return r
}

// Top is the largest value of the chart.
func (r Rates) Top() float64 {
	return max(slices.Max(append(r.Hits, 0)), slices.Max(append(r.Stale, 0)), slices.Max(append(r.Misses, 0)), slices.Max(append(r.Failed, 0)))
}

// The size of a chart in its own units.
const (
	chartWidth  = 300
	chartHeight = 60
)

// Line is a series as the points of an SVG polyline.
func (r Rates) Line(name string) template.HTMLAttr {
	values := map[string][]float64{"hits": r.Hits, "stale": r.Stale, "misses": r.Misses, "errors": r.Failed}[name]
	top := max(r.Top(), 1e-9)
	var b strings.Builder
	for i, v := range values {
		x := float64(chartWidth) * float64(samples-len(values)+i+1) / samples
		fmt.Fprintf(&b, "%.1f,%.1f ", x, chartHeight-1-(chartHeight-2)*v/top)
	}
	return template.HTMLAttr(`points="` + b.String() + `"`) //nolint:gosec // numbers only
}

// Text describes the chart for readers that do not see it.
func (r Rates) Text() string {
	last := func(v []float64) string {
		if len(v) == 0 {
			return "none"
		}
		return strconv.FormatFloat(v[len(v)-1], 'f', 1, 64)
	}
	return fmt.Sprintf("Calls per second in the last %d minutes, at most %.1f. Now: hits %s, stale %s, misses %s, errors %s.",
		int(samples*sampleEvery/time.Minute), r.Top(), last(r.Hits), last(r.Stale), last(r.Misses), last(r.Failed))
}

// longestText bounds a key or an error text on the page.
const longestText = 200

// shown is a key for people: a Go string literal if it has bytes that cannot be printed.
func shown(key string) string {
	cut := key
	if len(cut) > longestText {
		cut = cut[:longestText]
	}
	quoted := strconv.Quote(cut)
	if quoted == `"`+cut+`"` {
		quoted = cut
	}
	if len(key) > longestText {
		return fmt.Sprintf("%s… (%d bytes)", quoted, len(key))
	}
	return quoted
}

// clean is a text without control characters, cut.
func clean(text string) string {
	long := len(text) > longestText
	if long {
		text = text[:longestText]
	}
	text = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if long {
		text += "…"
	}
	return text
}

func percent(f float64) string { return strconv.FormatFloat(100*f, 'f', 1, 64) + " %" }

func ago(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// count groups the digits of a number.
func count(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// anchor is an HTML id for a guard's name, which has letters, digits and "._-" only.
func anchor(name string) string { return "g-" + name }
