package work

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

// Redis loses everything under load.
func flush() *Workload {
	const keys = 5
	return &Workload{
		Spec: report.Workload{
			Name: "flush", Title: "FLUSHALL under load",
			About: "4 processes × 200 calls a second, spread over 5 warm keys; the fetch takes 50 ms. After a second all keys are flushed. " +
				"The figures are of the second after that. A system with hits in memory for the rest of that second needs no fetch.",
			Metrics: []report.Metric{
				{Name: "fetches a key", Better: report.Lower, Headline: true, LimitValue: 1, LimitName: "one"},
				{Name: "failed calls", Unit: "%", Better: report.Lower, Headline: true, Open: true},
				{Name: "p99", Unit: "ms", Better: report.Lower},
			},
		},
		Limit: 15 * time.Second,
		Takes: fetching,
		Run: func(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
			f, err := fleet.StartFleet(ctx, 4, s, peer.Options{Addr: b.Server.Addr(), TTL: ttl})
			if err != nil {
				return err
			}
			defer f.Stop()
			order := fleet.Order{Key: "hot", Keys: keys, Deadline: 5 * time.Second, Fetch: fleet.Origin{Takes: 50 * time.Millisecond, Value: "v", Size: 1024}}
			order.Do = fleet.Preset
			if _, err := f.Do(ctx, order); err != nil {
				return err
			}
			start := soon()
			order.Do, order.Rate, order.For, order.At = fleet.Load, 200, 2*time.Second, start
			for _, p := range f {
				if err := p.Send(order); err != nil {
					return err
				}
			}
			time.Sleep(time.Until(start.Add(time.Second)))
			at := time.Now()
			if err := b.Client.FlushAll(ctx).Err(); err != nil {
				return err
			}
			var events []fleet.Event
			for _, p := range f {
				e, err := p.Wait(ctx)
				if err != nil {
					return err
				}
				events = append(events, e)
			}
			to := start.Add(2 * time.Second)
			calls := between(fleet.Calls(events), at, to)
			emit("", "fetches a key", float64(began(fleet.Fetches(events), at, to))/keys)
			emit("", "failed calls", percent(failed(calls), len(calls)))
			emit("", "p99", ms(percentile(calls, 99)))
			return nil
		},
		Rival: func(s peer.System, r *report.Result) (bool, string) {
			if s.Name == "sturdyc" {
				return false, "keeps nothing in Redis"
			}
			f := r.Figures["fetches a key"]
			return f != nil && f.Median() >= 1, "not all keys were asked for again"
		},
	}
}
