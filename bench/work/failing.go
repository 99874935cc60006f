package work

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

// A fetch that fails, with callers waiting.
func failing() *Workload {
	return &Workload{
		Spec: report.Workload{
			Name: "failing", Title: "Failing fetch",
			About: "4 processes × 10 callers of one cold key; the fetch fails after 130 ms. " +
				"“Last caller” is when the last of them had the error, from the end of the first fetch.",
			Metrics: []report.Metric{
				{Name: "fetches", Better: report.Lower, Headline: true, Open: true, LimitValue: 1, LimitName: "one"},
				{Name: "last caller", Unit: "ms", Better: report.Lower, Headline: true},
			},
		},
		Limit: time.Minute,
		Takes: fetching,
		Run: func(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
			f, err := fleet.StartFleet(ctx, 4, s, peer.Options{Addr: b.Server.Addr(), TTL: ttl})
			if err != nil {
				return err
			}
			defer f.Stop()
			events, err := f.Do(ctx, fleet.Order{
				Do: fleet.Burst, Key: "failing", Callers: 10, At: soon(), Deadline: 30 * time.Second,
				Fetch: fleet.Origin{Takes: fetchTakes, Fails: true},
			})
			if err != nil {
				return err
			}
			fetches := fleet.Fetches(events)
			if len(fetches) == 0 {
				return errors.New("no process fetched")
			}
			emit("", "fetches", float64(len(fetches)))
			emit("", "last caller", ms(max(0, lastReturn(fleet.Calls(events)).Sub(firstEnd(fetches)))))
			return nil
		},
		Rival: func(_ peer.System, r *report.Result) (bool, string) {
			f := r.Figures["fetches"]
			return f != nil && f.Median() <= 1, "more than one fetch"
		},
	}
}
