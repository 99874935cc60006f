package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// Calm is the name of the tally for times without a fault.
const Calm = "calm"

// A Tally counts the outcomes of callers that came during one kind of fault.
type Tally struct {
	Times      int            `json:"times"`
	Served     int            `json:"served"`
	Errors     map[string]int `json:"errors"` // by kind
	WorstMS    float64        `json:"worst_latency_ms"`
	Duplicates int            `json:"duplicate_fetches"`
	Wrong      int            `json:"wrong_values"`
	Stuck      int            `json:"stuck_callers"`
}

// A Verdict is the result of [Check] for a history.
type Verdict struct {
	Served      int            `json:"served"`
	Errors      map[string]int `json:"errors"`
	Fetches     int            `json:"fetches"`
	ServedMany  int            `json:"served_by_get_many"` // of Served
	Reserved    int            `json:"served_by_reserve"`  // of Served
	Invalidated int            `json:"invalidations"`      // Deletes, Sets and DeleteTags acknowledged
	TagsDeleted int            `json:"tags_deleted"`       // of them
	WorstMS     float64        `json:"worst_latency_ms"`

	Wrong       int `json:"wrong_values"`
	Stuck       int `json:"stuck_callers"`
	Duplicates  int `json:"duplicate_fetches"`
	Calm        int `json:"calm_duplicates"`
	Unexplained int `json:"unexplained_duplicates"`
	// Explained counts the other duplicates by their explanation.
	Explained map[string]int `json:"explained_duplicates"`

	LostLeases        int            `json:"lost_leases"`
	LostLeasesBy      map[string]int `json:"lost_leases_by"`
	RoleChanges       int            `json:"role_changes"` // of servers: two in a failover
	LostInvalidations int            `json:"lost_invalidations"`
	StaleAfterLost    int            `json:"stale_after_lost_invalidation"`

	LeakedGoroutines int            `json:"leaked_goroutines"`
	HeapGrowth       map[int]int64  `json:"heap_growth_bytes"` // by process
	Starved          int            `json:"starved"`           // pauses that no fault explains
	StarvedMS        float64        `json:"starved_worst_ms"`
	Events           map[string]int `json:"events"`

	Faults map[string]*Tally `json:"faults"`

	// Findings tell the first violations, one line each; Lost, of the
	// values that callers got as a failover had lost an invalidation; Loose, of the
	// explained duplicates while nothing was broken.
	Findings []string `json:"findings"`
	Lost     []string `json:"lost"`
	Loose    []string `json:"loose_duplicates"`
}

// OK reports whether all is zero that must be.
func (v *Verdict) OK() bool {
	return v.Wrong == 0 && v.Stuck == 0 && v.Calm == 0 && v.Unexplained == 0 && v.LeakedGoroutines == 0
}

const maxFindings = 40

func (v *Verdict) find(format string, args ...any) {
	if len(v.Findings) < maxFindings {
		v.Findings = append(v.Findings, fmt.Sprintf(format, args...))
	}
}

// A checker holds the history in the order in which it is asked for.
type checker struct {
	*History
	*Verdict
	barriers map[string]*barriers
	own      map[ownKey]*barriers // of one process, also those that it has queued
	sets     map[source]*Change
	pauses   map[int][]Pause
	ended    map[int]Stamp    // processes that were killed, or closed
	lost     map[string]bool  // tokens of leases known to be lost
	changed  map[string]spans // by key: when its lease may have been ended
	lossy    map[*Change]bool // changes that were found lost
}

// An ownKey is a key as one process has changed it.
type ownKey struct {
	proc int
	key  string
}

type source struct {
	proc int
	seq  uint64
}

// Check judges a history. It sorts its Faults.
func Check(h *History) *Verdict {
	c := &checker{
		History: h,
		Verdict: &Verdict{
			Errors: map[string]int{}, Explained: map[string]int{}, LostLeasesBy: map[string]int{},
			HeapGrowth: map[int]int64{}, Events: map[string]int{}, Findings: []string{}, Lost: []string{}, Loose: []string{},
			Faults: map[string]*Tally{Calm: {Times: 1, Errors: map[string]int{}}},
		},
		barriers: map[string]*barriers{}, own: map[ownKey]*barriers{}, sets: map[source]*Change{}, pauses: map[int][]Pause{},
		ended: map[int]Stamp{}, lost: map[string]bool{}, changed: map[string]spans{}, lossy: map[*Change]bool{},
	}
	c.index()
	for i := range h.Gets {
		c.get(&h.Gets[i])
	}
	c.duplicates()
	c.RoleChanges, c.LostInvalidations = len(h.Failovers), len(c.lossy)
	c.processes()
	return c.Verdict
}

func (c *checker) index() {
	slices.SortFunc(c.History.Faults, func(a, b Fault) int { return cmp.Compare(a.Start, b.Start) })
	for _, f := range c.History.Faults {
		c.tally(f.Name).Times++
	}
	for i := range c.Changes {
		c.change(&c.Changes[i])
	}
	for _, b := range c.barriers {
		b.sort()
	}
	for _, b := range c.own {
		b.sort()
	}
	for _, p := range c.Pauses {
		c.pauses[p.Proc] = append(c.pauses[p.Proc], p)
	}
	for _, l := range c.Lives {
		if l.End != 0 {
			c.ended[l.Proc] = l.End
		}
	}
	for _, e := range c.History.Events {
		c.Verdict.Events[e.Kind]++
		if losses[e.Kind] {
			c.LostLeases++
			c.LostLeasesBy[e.Kind]++
		}
		if e.Token != "" && (e.Kind == "lease_lost" || e.Kind == "fill_refused") {
			c.lost[e.Token] = true
		}
	}
}

// losses are the events that tell of a lease that ended early, or of a fetch
// without one.
var losses = map[string]bool{
	"lease_lost": true, "lease_takenover": true, "fill_refused": true, "unguarded": true,
}

func (c *checker) change(ch *Change) {
	end := ch.End
	if !ch.acknowledged() { // it may be carried out later, or never
		end = max(ch.Start, ch.End).Add(c.Terms.Late)
	}
	c.changed[ch.Key] = append(c.changed[ch.Key], span{ch.Start, end})
	if ch.Op == opSet {
		c.sets[source{ch.Proc, ch.Seq}] = ch
	}
	if ch.Op == opExpire || ch.End == 0 {
		return
	}
	if kindOf(ch.Key) == kindReserve && ch.known() {
		addTo(c.own, ownKey{ch.Proc, ch.Key}, ch, c.firmAt(ch))
	}
	if !ch.acknowledged() {
		return
	}
	c.Invalidated++
	if ch.Op == opDeleteTag {
		c.TagsDeleted++
	}
	addTo(c.barriers, ch.Key, ch, c.firmAt(ch))
}

// faultAt is the fault in which an instant lies; nil: none.
func (c *checker) faultAt(at Stamp) *Fault {
	faults := c.History.Faults
	i := sort.Search(len(faults), func(i int) bool { return faults[i].Start > at }) - 1
	if i >= 0 && at <= faults[i].Until {
		return &faults[i]
	}
	return nil
}

// during is its name.
func (c *checker) during(at Stamp) string {
	if f := c.faultAt(at); f != nil {
		return f.Name
	}
	return Calm
}

func (c *checker) tally(name string) *Tally {
	t := c.Verdict.Faults[name]
	if t == nil {
		t = &Tally{Errors: map[string]int{}}
		c.Verdict.Faults[name] = t
	}
	return t
}

func (c *checker) get(g *Get) {
	fault := c.during(g.Start)
	t := c.tally(fault)
	if late := c.late(g); late > c.Terms.Patience {
		c.Stuck++
		t.Stuck++
		c.find("stuck (%s): caller %d of %q in process %d is %v late, context of %v, error %q",
			fault, g.Caller, g.Key, g.Proc, late, g.Deadline.Sub(g.Start), g.Err)
	}
	if g.End == 0 {
		return
	}
	took := float64(c.ran(g.Proc, g.Start, g.End)) / 1e6
	t.WorstMS, c.WorstMS = max(t.WorstMS, took), max(c.WorstMS, took)
	if g.Err != "" {
		c.Errors[g.Err]++
		t.Errors[g.Err]++
		return
	}
	c.Served++
	t.Served++
	if g.Many {
		c.ServedMany++
	}
	if g.Source == guard.FromReserve.String() {
		c.Reserved++
	}
	if why := c.wrong(g); why != "" {
		c.Wrong++
		t.Wrong++
		c.find("wrong value (%s): caller %d of %q in process %d, called %s, from %s: %s",
			fault, g.Caller, g.Key, g.Proc, clock(g.Start), g.Source, why)
	}
}

// late is how long after its deadline a caller was still out.
func (c *checker) late(g *Get) time.Duration {
	out := g.End
	if out == 0 {
		out = g.Seen
	}
	from := g.Deadline
	for _, p := range c.pauses[g.Proc] {
		if p.From < out && p.To > from {
			from = p.To
		}
	}
	return out.Sub(from)
}

// ran is how long the process ran between two instants.
func (c *checker) ran(proc int, from, to Stamp) time.Duration {
	d := to.Sub(from)
	for _, p := range c.pauses[proc] {
		if p.Frozen && p.From < to && p.To > from {
			d -= min(p.To, to).Sub(max(p.From, from))
		}
	}
	return d
}

// processes compares the resources of idle processes before and after.
func (c *checker) processes() {
	for _, l := range c.Lives {
		if l.Before == nil || l.After == nil {
			continue
		}
		c.HeapGrowth[l.Proc] = int64(l.After.Heap) - int64(l.Before.Heap)
		if more := l.After.Goroutines - l.Before.Goroutines; more > 0 {
			c.LeakedGoroutines += more
			c.find("leak: process %d has %d goroutines idle, had %d", l.Proc, l.After.Goroutines, l.Before.Goroutines)
		}
	}
	for _, p := range c.Pauses {
		if !p.Frozen {
			c.Starved++
			c.StarvedMS = max(c.StarvedMS, float64(p.To.Sub(p.From))/1e6)
		}
	}
}

// FaultNames returns the names in the verdict, the calm first.
func (v *Verdict) FaultNames() []string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(v.Faults)), func(n string) bool { return n == Calm })
	return append([]string{Calm}, names...)
}
