package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"
)

// Calm is the name under which is counted what happened while nothing was
// broken.
const Calm = "calm"

// A Tally counts what happened to callers who came during one kind of fault.
type Tally struct {
	Times      int            `json:"times"`
	Served     int            `json:"served"`
	Errors     map[string]int `json:"errors"` // by kind
	WorstMS    float64        `json:"worst_latency_ms"`
	Duplicates int            `json:"duplicate_fetches"`
	Wrong      int            `json:"wrong_values"`
	Stuck      int            `json:"stuck_callers"`
}

// A Verdict is what [Check] makes of a history.
type Verdict struct {
	Served      int            `json:"served"`
	Errors      map[string]int `json:"errors"`
	Fetches     int            `json:"fetches"`
	Invalidated int            `json:"invalidations"` // Deletes and Sets acknowledged
	WorstMS     float64        `json:"worst_latency_ms"`

	Wrong       int `json:"wrong_values"`
	Stuck       int `json:"stuck_callers"`
	Duplicates  int `json:"duplicate_fetches"`
	Calm        int `json:"calm_duplicates"`
	Unexplained int `json:"unexplained_duplicates"`
	// Explained counts the other duplicates by what explains them.
	Explained map[string]int `json:"explained_duplicates"`

	LostLeases        int            `json:"lost_leases"`
	LostLeasesBy      map[string]int `json:"lost_leases_by"`
	LostInvalidations int            `json:"lost_invalidations"`
	StaleAfterLost    int            `json:"stale_after_lost_invalidation"`

	LeakedGoroutines int            `json:"leaked_goroutines"`
	HeapGrowth       map[int]int64  `json:"heap_growth_bytes"` // by process
	Starved          int            `json:"starved"`           // pauses that no fault explains
	StarvedMS        float64        `json:"starved_worst_ms"`
	Events           map[string]int `json:"events"`

	Faults map[string]*Tally `json:"faults"`

	// Findings tell the first of what must not be, one line each; Lost, of the
	// values that callers got as a failover had lost an invalidation.
	Findings []string `json:"findings"`
	Lost     []string `json:"lost"`
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
	sets     map[source]*Change
	pauses   map[int][]Pause
	ended    map[int]Stamp    // processes that were killed, or closed
	lost     map[string]bool  // tokens of leases known to be lost
	changed  map[string]spans // by key: when its lease may have been ended
	lossy    map[*Change]bool // changes that were found lost
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
			HeapGrowth: map[int]int64{}, Events: map[string]int{}, Findings: []string{}, Lost: []string{},
			Faults: map[string]*Tally{Calm: {Times: 1, Errors: map[string]int{}}},
		},
		barriers: map[string]*barriers{}, sets: map[source]*Change{}, pauses: map[int][]Pause{},
		ended: map[int]Stamp{}, lost: map[string]bool{}, changed: map[string]spans{}, lossy: map[*Change]bool{},
	}
	c.index()
	for i := range h.Gets {
		c.get(&h.Gets[i])
	}
	c.duplicates()
	c.LostInvalidations = len(c.lossy)
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
	if ch.Op == opExpire || !ch.acknowledged() {
		return
	}
	c.Invalidated++
	b := c.barriers[ch.Key]
	if b == nil {
		b = &barriers{}
		c.barriers[ch.Key] = b
	}
	b.add(ch, c.firmAt(ch))
}

// firmAt is when a change is certain to count: at once, unless a fault about
// then may have lost it.
func (c *checker) firmAt(ch *Change) (firm Stamp) {
	if !c.Terms.Replicas {
		return 0
	}
	for _, f := range c.History.Faults {
		if f.Loses && ch.End >= f.Start.Add(-time.Second) && ch.Start <= f.Until {
			firm = max(firm, f.Until.Add(c.Terms.HardTTL))
		}
	}
	return firm
}

// during is the fault in which an instant lies.
func (c *checker) during(at Stamp) string {
	faults := c.History.Faults
	i := sort.Search(len(faults), func(i int) bool { return faults[i].Start > at }) - 1
	if i >= 0 && at <= faults[i].Until {
		return faults[i].Name
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

// wrong says why a caller must not have got its value; "" if it may.
func (c *checker) wrong(g *Get) string {
	o := g.Origin
	switch {
	case o == nil:
		return "no value that was ever made: " + g.Damage
	case o.Key != g.Key:
		return fmt.Sprintf("it is of key %q", o.Key)
	case kindOf(g.Key) == kindPrivate && (o.Proc != g.Proc || o.Caller != g.Caller):
		return fmt.Sprintf("it is private to caller %d of process %d", o.Caller, o.Proc)
	}
	b := c.barriers[g.Key]
	if b == nil {
		return ""
	}
	at := c.latest(o)
	if ch := b.before(g.Start, at); ch != nil {
		return fmt.Sprintf("%s, but process %d called %s at %s, which returned at %s",
			describe(o), ch.Proc, ch.Op, clock(ch.Start), clock(ch.End))
	}
	if ch := b.doubtful(g.Start, at); ch != nil {
		c.StaleAfterLost++
		if !c.lossy[ch] && len(c.Verdict.Lost) < maxFindings {
			c.Verdict.Lost = append(c.Verdict.Lost, fmt.Sprintf("process %d called %s of %q at %s, which returned at %s; process %d called Get at %s and got, from %s, a value %s",
				ch.Proc, ch.Op, ch.Key, clock(ch.Start), clock(ch.End), g.Proc, clock(g.Start), g.Source, describe(o)))
		}
		c.lossy[ch] = true
	}
	return ""
}

// latest is the last instant at which the value can have become current: when
// the fetch started, or the Set returned. A Set that failed may do so any time.
func (c *checker) latest(o *Origin) Stamp {
	if !o.Set {
		return o.At
	}
	if ch := c.sets[source{o.Proc, o.Seq}]; ch != nil && ch.acknowledged() {
		return ch.End
	}
	return forever
}

const forever = Stamp(1<<63 - 1)

func describe(o *Origin) string {
	if o.Set {
		return fmt.Sprintf("set by process %d, called at %s", o.Proc, clock(o.At))
	}
	return fmt.Sprintf("fetched by process %d from %s", o.Proc, clock(o.At))
}

func clock(s Stamp) string { return time.Unix(0, int64(s)).UTC().Format("15:04:05.000000") }

// processes compares what idle processes had before and after.
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

// barriers are the acknowledged Deletes and Sets of one key.
type barriers struct {
	firm    []*Change // by their end
	newest  []*Change // newest[i] is the one of firm[:i+1] that started last
	doubted []doubted
}

type doubted struct {
	*Change
	firm Stamp // from then on it counts
}

func (b *barriers) add(ch *Change, firm Stamp) {
	if firm > 0 {
		b.doubted = append(b.doubted, doubted{ch, firm})
		return
	}
	b.firm = append(b.firm, ch)
}

func (b *barriers) sort() {
	slices.SortFunc(b.firm, func(x, y *Change) int { return cmp.Compare(x.End, y.End) })
	var newest *Change
	for _, ch := range b.firm {
		if newest == nil || ch.Start > newest.Start {
			newest = ch
		}
		b.newest = append(b.newest, newest)
	}
}

// before returns a change that had returned before call, and had started after
// a value that is no younger than at: that value is gone.
func (b *barriers) before(call, at Stamp) *Change {
	n := sort.Search(len(b.firm), func(i int) bool { return b.firm[i].End >= call })
	if n > 0 && b.newest[n-1].Start > at {
		return b.newest[n-1]
	}
	for _, d := range b.doubted {
		if d.End < call && d.Start > at && call > d.firm {
			return d.Change
		}
	}
	return nil
}

// doubtful is before for the changes that may have been lost.
func (b *barriers) doubtful(call, at Stamp) *Change {
	for _, d := range b.doubted {
		if d.End < call && d.Start > at {
			return d.Change
		}
	}
	return nil
}

// FaultNames returns the names in the verdict, the calm first.
func (v *Verdict) FaultNames() []string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(v.Faults)), func(n string) bool { return n == Calm })
	return append([]string{Calm}, names...)
}
