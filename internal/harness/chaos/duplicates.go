package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

type span struct{ from, to Stamp }

type spans []span

// meets reports whether one of the spans has an instant between two others.
func (s spans) meets(from, to Stamp) bool {
	for _, x := range s {
		if x.from < to && x.to > from {
			return true
		}
	}
	return false
}

// duplicates looks for fetches of one key that overlap.
func (c *checker) duplicates() {
	c.Verdict.Fetches = len(c.History.Fetches)
	byKey := map[string][]*Fetch{}
	for i := range c.History.Fetches {
		f := &c.History.Fetches[i]
		if kindOf(f.Key) != kindPrivate { // its callers are to fetch side by side
			byKey[f.Key] = append(byKey[f.Key], f)
		}
	}
	for _, all := range byKey {
		slices.SortFunc(all, func(a, b *Fetch) int { return cmp.Compare(a.Start, b.Start) })
		var running []*Fetch
		for _, f := range all {
			running = slices.DeleteFunc(running, func(r *Fetch) bool { return c.endOf(r) <= f.Start })
			c.fetch(f, running)
			running = append(running, f)
		}
	}
}

// endOf is when a fetch ended; one that did not say so ran until its process
// ended, or to the end of the run.
func (c *checker) endOf(f *Fetch) Stamp {
	if f.End != 0 {
		return f.End
	}
	if end, ok := c.ended[f.Proc]; ok {
		return end
	}
	return forever
}

// fetch judges one that began while others ran.
func (c *checker) fetch(f *Fetch, running []*Fetch) {
	because := ""
	duplicate := false
	for _, r := range running {
		if c.changed[f.Key].meets(r.Start.Add(-c.Terms.Reach), f.Start) {
			continue // its lease was ended
		}
		duplicate = true
		why := c.explain(r, f)
		if why == "" {
			c.Unexplained++
			c.find("duplicate: %q is fetched by process %d from %s to %s (token %s, error %q), and by process %d from %s (token %s)",
				f.Key, r.Proc, clock(r.Start), clock(c.endOf(r)), r.Token, r.Err, f.Proc, clock(f.Start), f.Token)
			because = ""
			break
		}
		because = why
	}
	if !duplicate {
		return
	}
	c.Duplicates++
	c.tally(c.during(f.Start)).Duplicates++
	if because != "" {
		c.Explained[because]++
		if c.faultAt(f.Start) == nil && len(c.Loose) < maxFindings {
			c.Loose = append(c.Loose, fmt.Sprintf("%q, fetched by process %d from %s, %s: %s",
				f.Key, f.Proc, clock(f.Start), c.sinceFault(f.Start), because))
		}
	}
	if f.Start < c.CalmUntil && (because == "" || !c.starvedBy(f.Start)) {
		c.Calm++
		c.find("duplicate while nothing was broken: %q, fetched by process %d from %s (%s)", f.Key, f.Proc, clock(f.Start), because)
	}
}

// sinceFault says how long nothing has been broken.
func (c *checker) sinceFault(at Stamp) string {
	for _, f := range slices.Backward(c.History.Faults) {
		if f.Until < at {
			return fmt.Sprintf("%v after %s", at.Sub(f.Until).Round(time.Millisecond), f.Name)
		}
	}
	return "before any fault"
}

// starvedBy reports whether the machine had no time for some process shortly
// before, so that leases and answers may have come too late for want of it.
func (c *checker) starvedBy(at Stamp) bool {
	for _, p := range c.Pauses {
		if !p.Frozen && p.From <= at && p.To >= at.Add(-2*c.Terms.Lease) {
			return true
		}
	}
	return false
}

// explain tells why f could begin while r ran, as far as that is known.
func (c *checker) explain(r, f *Fetch) string {
	switch {
	case !r.Leased || !f.Leased:
		return "unguarded"
	case f.TakenOver:
		return "lease_takenover"
	case c.lost[r.Token]:
		return "lease_lost"
	case f.Start.Sub(r.Start) >= c.Terms.Fetch:
		return "fetch_timeout"
	}
	// A fetch that fails after its lease is gone has no event for the loss.
	for _, x := range c.History.Faults {
		if f.Start >= x.Start && f.Start <= x.Until.Add(c.Terms.Lease+time.Second) {
			return "fault"
		}
	}
	return ""
}
