package work

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

// Keys that no caller has asked for before.
func miss() *Workload {
	return &Workload{
		Spec: report.Workload{
			Name: "miss", Title: "Miss",
			About: "One process; each call is of a key of its own, and the fetch takes no time: the cost of finding nothing and storing 1 KiB. " +
				"The limit is naive cache-aside, GET and SET, which protects from nothing.",
			Metrics: []report.Metric{
				{Name: "calls a second", Better: report.Higher, Headline: true, Limit: "naive"},
				{Name: "p50", Unit: "µs", Better: report.Lower},
				{Name: "p99", Unit: "µs", Better: report.Lower},
				{Name: "CPU", Unit: "µs a call", Better: report.Lower},
				{Name: "allocs a call", Better: report.Lower},
				{Name: "commands a call", Better: report.Lower},
			},
		},
		Limit: 30 * time.Second,
		Takes: fetching,
		Run: func(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
			f, err := fleet.StartFleet(ctx, 1, s, peer.Options{Addr: b.Server.Addr(), TTL: ttl})
			if err != nil {
				return err
			}
			defer f.Stop()
			for _, n := range []int{1, 64, 512} {
				kase := plural(n, "caller")
				m, err := startMeter(ctx, b.Client)
				if err != nil {
					return err
				}
				events, err := f.Do(ctx, fleet.Order{
					Do: fleet.Loop, Key: kase, Keys: -1, Callers: n, For: 400 * time.Millisecond,
					Fetch: fleet.Origin{Value: "v", Size: 1024},
				})
				if err != nil {
					return err
				}
				commands, _, err := m.read(ctx)
				if err != nil {
					return err
				}
				if err := emitLoop(emit, kase, events[0].Loop); err != nil {
					return err
				}
				if all := events[0].Loop.Fetches; all > 0 {
					emit(kase, "commands a call", commands/float64(all))
				}
			}
			return nil
		},
		Rival: func(s peer.System, _ *report.Result) (bool, string) {
			switch {
			case s.Name == "sturdyc":
				return false, "stores nothing in Redis"
			case !s.Fleet:
				return false, "protects no other process"
			}
			return true, ""
		},
	}
}
