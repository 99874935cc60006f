package work

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

// A hot key expires again and again.
func expiry() *Workload {
	const (
		keyTTL = time.Second
		takes  = 200 * time.Millisecond
	)
	return &Workload{
		Spec: report.Workload{
			Name: "expiry", Title: "Expiry of a hot key under load",
			About: "4 processes × 100 calls a second of one key with a TTL of 1 s; the fetch takes 200 ms. " +
				"A call is blocked if it takes more than 100 ms. The first TTL, in which the key is cold, doesn't count. " +
				"On fetches, the rivals are the systems that block fewer than 1 % of calls.",
			Metrics: []report.Metric{
				{Name: "blocked", Unit: "% of calls", Better: report.Lower, Headline: true, Open: true, Floor: 0.1},
				{Name: "fetches a TTL", Better: report.Lower, Headline: true, LimitValue: 1, LimitName: "one"},
				{Name: "p99", Unit: "ms", Better: report.Lower, Headline: true, Open: true, Floor: 1},
			},
		},
		Rounds: 3,
		Limit:  40 * time.Second,
		Takes:  fetching,
		Run: func(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
			f, err := fleet.StartFleet(ctx, 4, s, peer.Options{Addr: b.Server.Addr(), TTL: keyTTL})
			if err != nil {
				return err
			}
			defer f.Stop()
			lasts := 7 * keyTTL
			if b.Quick {
				lasts = 4 * keyTTL
			}
			start := soon()
			events, err := f.Do(ctx, fleet.Order{
				Do: fleet.Load, Key: "hot", Rate: 100, For: lasts, At: start, Deadline: 20 * time.Second,
				Fetch: fleet.Origin{Takes: takes, Value: "v", Size: 1024},
			})
			if err != nil {
				return err
			}
			from, to := start.Add(keyTTL), start.Add(lasts)
			calls := between(fleet.Calls(events), from, to)
			blocked := 0
			for _, c := range calls {
				if c.Took > takes/2 {
					blocked++
				}
			}
			emit("", "blocked", percent(blocked, len(calls)))
			emit("", "fetches a TTL", float64(began(fleet.Fetches(events), from, to))/(float64(to.Sub(from))/float64(keyTTL)))
			emit("", "p99", ms(percentile(calls, 99)))
			return nil
		},
		Rival: func(_ peer.System, r *report.Result) (bool, string) {
			f := r.Figures["blocked"]
			return f != nil && f.Median() < 1, "blocks callers"
		},
	}
}
