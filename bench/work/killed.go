package work

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

// The process that fetches is killed.
func killed() *Workload {
	const takes = 500 * time.Millisecond
	return &Workload{
		Spec: report.Workload{
			Name: "killed", Title: "Holder killed",
			About: "3 processes × 10 callers of one cold key; the process that fetches is killed with SIGKILL 200 ms into its fetch of 500 ms, " +
				"at default settings. “Next fetch” is from the kill until a survivor begins one, “last answered” until all survivors' callers have returned.",
			Metrics: []report.Metric{
				{Name: "next fetch", Unit: "ms", Better: report.Lower, Headline: true},
				{Name: "last answered", Unit: "ms", Better: report.Lower, Headline: true, LimitValue: ms(takes), LimitName: "fetch"},
				{Name: "survivors' fetches", Better: report.Lower},
				{Name: "failed calls", Better: report.Lower},
			},
		},
		Rounds: 3,
		Limit:  time.Minute,
		Takes:  fetching,
		Run: func(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
			return runKilled(ctx, b, s, takes, emit)
		},
		Rival: func(s peer.System, r *report.Result) (bool, string) {
			if !s.Fleet {
				return false, "each process fetches for itself, so no process waits for the dead"
			}
			f := r.Figures["failed calls"]
			return f != nil && f.Median() == 0, "calls fail"
		},
	}
}

func runKilled(ctx context.Context, b *Bench, s peer.System, takes time.Duration, emit Emit) error {
	f, err := fleet.StartFleet(ctx, 3, s, peer.Options{Addr: b.Server.Addr(), TTL: ttl})
	if err != nil {
		return err
	}
	defer f.Stop()
	first := make(chan int, len(f))
	for i, p := range f {
		go func() {
			if _, ok := <-p.Fetches(); ok {
				first <- i
			}
		}()
	}
	start := soon()
	for _, p := range f {
		err := p.Send(fleet.Order{
			Do: fleet.Burst, Key: "doomed", Callers: 10, At: start, Deadline: 30 * time.Second, Announce: true,
			Fetch: fleet.Origin{Takes: takes, Value: "v", Size: 1024},
		})
		if err != nil {
			return err
		}
	}
	var victim int
	select {
	case victim = <-first:
	case <-ctx.Done():
		return errors.New("no process fetched")
	}
	time.Sleep(200 * time.Millisecond)
	died := f[victim].Kill()
	var events []fleet.Event
	for i, p := range f {
		if i == victim {
			continue
		}
		e, err := p.Wait(ctx)
		if err != nil {
			return err
		}
		events = append(events, e)
	}
	var next time.Time
	for _, s := range fleet.Fetches(events) {
		if s.From.After(died) && (next.IsZero() || s.From.Before(next)) {
			next = s.From
		}
	}
	calls := fleet.Calls(events)
	if !next.IsZero() {
		emit("", "next fetch", ms(next.Sub(died)))
	}
	emit("", "last answered", ms(lastReturn(calls).Sub(died)))
	emit("", "survivors' fetches", float64(len(fleet.Fetches(events))))
	emit("", "failed calls", float64(failed(calls)))
	return nil
}
