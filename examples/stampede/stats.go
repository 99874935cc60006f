package main

import (
	"math"
	"time"
)

// percentile is the smallest value that at least p percent of the values don't
// exceed (nearest rank). The values are in ascending order; of none it is 0.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// latencies are the callers' latencies in ascending order.
func (o *outcome) latencies() []time.Duration {
	all := make([]time.Duration, len(o.answers))
	for i, a := range o.answers {
		all[i] = a.After
	}
	return all
}

// takeover is the time from the kill to the next fetch's arrival at the origin.
func (o *outcome) takeover() (time.Duration, bool) {
	for _, f := range o.fetches {
		if f.arrived.After(o.killed) {
			return f.arrived.Sub(o.killed), true
		}
	}
	return 0, false
}

// overhead is the time from the end of the fetch that served the last caller
// until that caller had its answer. A failed caller doesn't know which fetch it
// was: for it, the last that ended before counts.
func (o *outcome) overhead() time.Duration {
	if len(o.answers) == 0 {
		return 0
	}
	last := o.answers[len(o.answers)-1]
	if last.Fetch >= 1 && last.Fetch <= len(o.fetches) {
		return last.After - o.fetches[last.Fetch-1].ended.Sub(o.start)
	}
	end := time.Duration(0)
	for _, f := range o.fetches {
		if t := f.ended.Sub(o.start); !f.ended.IsZero() && t <= last.After {
			end = max(end, t)
		}
	}
	return last.After - end
}
