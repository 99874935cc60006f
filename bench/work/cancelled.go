package work

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

// The caller that fetches gives up, and so does one that waits.
func cancelled() *Workload {
	return &Workload{
		Spec: report.Workload{
			Name: "cancelled", Title: "First caller cancels",
			About: "A fetch of 300 ms with 20 callers waiting in its process and 20 in another. 100 ms into it the first caller's context is cancelled, " +
				"at 150 ms the context of a waiter. Failing are callers with contexts that had not ended.",
			Metrics: []report.Metric{
				{Name: "others failing", Better: report.Lower, Headline: true, Open: true},
				{Name: "fetches", Better: report.Lower, Headline: true, LimitValue: 1, LimitName: "one"},
				{Name: "follower back", Unit: "ms", Better: report.Lower, Headline: true, Floor: 1},
				{Name: "first caller back", Unit: "ms", Better: report.Lower},
			},
		},
		Limit: 30 * time.Second,
		Takes: fetching,
		Run:   runCancelled,
		Rival: func(_ peer.System, r *report.Result) (bool, string) {
			f := r.Figures["others failing"]
			return f != nil && f.Median() == 0, "callers fail without a cancelled context"
		},
	}
}

func runCancelled(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
	f, err := fleet.StartFleet(ctx, 2, s, peer.Options{Addr: b.Server.Addr(), TTL: ttl})
	if err != nil {
		return err
	}
	defer f.Stop()
	start := soon()
	order := fleet.Order{
		Do: fleet.Cancel, Key: "cancelled", Callers: 20, At: start, Deadline: 20 * time.Second,
		Fetch:       fleet.Origin{Takes: 300 * time.Millisecond, Value: "v", Size: 1024},
		FirstLeaves: 100 * time.Millisecond, FollowerLeaves: 150 * time.Millisecond,
	}
	if err := f[0].Send(order); err != nil {
		return err
	}
	order.Do, order.At = fleet.Burst, start.Add(50*time.Millisecond)
	theirs, err := f[1].Do(ctx, order)
	if err != nil {
		return err
	}
	mine, err := f[0].Wait(ctx)
	if err != nil {
		return err
	}
	events := []fleet.Event{mine, theirs}
	emit("", "others failing", float64(failed(fleet.Calls(events))))
	emit("", "fetches", float64(len(fleet.Fetches(events))))
	emit("", "follower back", ms(mine.FollowerLeft))
	emit("", "first caller back", ms(mine.FirstLeft))
	return nil
}
