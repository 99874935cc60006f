// Package work holds the workloads: the work of the systems, and its figures.
package work

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A Bench is where workloads run.
type Bench struct {
	Server *redistest.Server // for all but those that break theirs
	Client *redis.Client     // of Server, for looking at it
	Quick  bool              // shorter, and fewer cases
}

// A Workload runs one system at a time through all its cases.
type Workload struct {
	Spec   report.Workload
	Rounds int                    // at most; 0 is as many as asked for
	Limit  time.Duration          // of a turn: a peer that hangs costs no more
	Takes  func(peer.System) bool // which systems can do it
	// Run emits its figures. It may have emitted some when it fails.
	Run func(ctx context.Context, b *Bench, s peer.System, emit Emit) error
	// Rival reports whether a peer did the work, and if not, the reason.
	Rival func(s peer.System, r *report.Result) (bool, string)
}

// Emit takes a figure of a case.
type Emit func(kase, metric string, value float64)

// All returns the workloads in the order of the report.
func All() []*Workload {
	return []*Workload{
		stampede(), killed(), failing(), expiry(), cancelled(), outage(), deletion(), flush(), warm(), warmNear(), miss(),
	}
}

// fetching are the systems that fetch, once for each way of fetching: a near
// cache of ours, or of go-redis/cache, changes nothing about that.
func fetching(s peer.System) bool {
	return !s.Limit && s.Name != "stampede, near" && s.Name != "go-redis/cache, TinyLFU"
}

const ttl = time.Minute

// soon is a common start for several processes.
func soon() time.Time { return time.Now().Add(40 * time.Millisecond) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func firstEnd(fetches []fleet.Span) time.Time {
	return slices.MinFunc(fetches, func(a, b fleet.Span) int { return a.To.Compare(b.To) }).To
}

func lastReturn(calls []fleet.Call) time.Time {
	return slices.MaxFunc(calls, func(a, b fleet.Call) int { return a.Ended().Compare(b.Ended()) }).Ended()
}

func failed(calls []fleet.Call) int {
	n := 0
	for _, c := range calls {
		if c.Err != "" {
			n++
		}
	}
	return n
}

// between are the calls that began in that time.
func between(calls []fleet.Call, from, to time.Time) []fleet.Call {
	var in []fleet.Call
	for _, c := range calls {
		if !c.From.Before(from) && c.From.Before(to) {
			in = append(in, c)
		}
	}
	return in
}

func began(fetches []fleet.Span, from, to time.Time) int {
	n := 0
	for _, f := range fetches {
		if !f.From.Before(from) && f.From.Before(to) {
			n++
		}
	}
	return n
}

// percentile of the calls' durations, by the nearest rank.
func percentile(calls []fleet.Call, p int) time.Duration {
	if len(calls) == 0 {
		return 0
	}
	s := slices.SortedFunc(slices.Values(calls), func(a, b fleet.Call) int { return cmp.Compare(a.Took, b.Took) })
	return s[min(len(s)-1, len(s)*p/100)].Took
}

func percent(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}
