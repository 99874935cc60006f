package work

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// patience is the deadline of each call during an outage.
const patience = 2 * time.Second

// Redis stops answering under load, or dies.
func outage() *Workload {
	return &Workload{
		Spec: report.Workload{
			Name: "outage", Title: "Redis away under load",
			About: "4 processes × 50 calls a second, spread over 10 warm keys, each call with a deadline of 2 s; the fetch takes 50 ms. " +
				"After a second Redis is stopped (SIGSTOP) or killed, for 3 s. Of the calls that began in those: how many got a value before their deadline, " +
				"how long the slowest hundredth took, and fetches. On latency, the rivals are those that answer 99 %.",
			Metrics: []report.Metric{
				{Name: "answered", Unit: "%", Better: report.Higher, Headline: true, Open: true, LimitValue: 100, LimitName: "all"},
				{Name: "p99", Unit: "ms", Better: report.Lower, Headline: true},
				{Name: "p50", Unit: "ms", Better: report.Lower},
				{Name: "fetches a second", Better: report.Lower},
			},
		},
		Rounds: 3,
		Limit:  time.Minute,
		Takes:  fetching,
		Run: func(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
			away := 3 * time.Second
			if b.Quick {
				away = 2 * time.Second
			}
			if err := runOutage(ctx, s, "stopped", away, (*redistest.Server).Pause, (*redistest.Server).Resume, emit); err != nil {
				return err
			}
			restart := func(server *redistest.Server) error { return server.Restart(ctx) }
			return runOutage(ctx, s, "killed", away, (*redistest.Server).Kill, restart, emit)
		},
		Rival: func(s peer.System, r *report.Result) (bool, string) {
			if s.Name == "sturdyc" {
				return false, "asks no Redis"
			}
			f := r.Figures["answered"]
			return f != nil && f.Median() >= 99, "doesn't answer"
		},
	}
}

func runOutage(ctx context.Context, s peer.System, kase string, away time.Duration, begin, end func(*redistest.Server) error, emit Emit) error {
	server, err := redistest.StartStandalone(ctx, redistest.StandaloneConfig{})
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }()
	f, err := fleet.StartFleet(ctx, 4, s, peer.Options{Addr: server.Addr(), TTL: ttl})
	if err != nil {
		return err
	}
	defer f.Stop()
	order := fleet.Order{Key: "hot", Keys: 10, Deadline: patience, Fetch: fleet.Origin{Takes: 50 * time.Millisecond, Value: "v", Size: 1024}}
	order.Do = fleet.Preset
	if _, err := f.Do(ctx, order); err != nil {
		return err
	}
	start := soon()
	order.Do, order.Rate, order.For, order.At = fleet.Load, 50, time.Second+away, start
	for _, p := range f {
		if err := p.Send(order); err != nil {
			return err
		}
	}
	time.Sleep(time.Until(start.Add(time.Second)))
	if err := begin(server); err != nil {
		return err
	}
	from := time.Now()
	time.Sleep(time.Until(start.Add(time.Second + away)))
	to := time.Now()
	if err := end(server); err != nil {
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
	calls := between(fleet.Calls(events), from, to)
	answered := 0
	for _, c := range calls {
		if c.Err == "" && c.Took <= patience+100*time.Millisecond { // some don't heed the deadline
			answered++
		}
	}
	emit(kase, "answered", percent(answered, len(calls)))
	emit(kase, "p99", ms(percentile(calls, 99)))
	emit(kase, "p50", ms(percentile(calls, 50)))
	emit(kase, "fetches a second", float64(began(fleet.Fetches(events), from, to))/to.Sub(from).Seconds())
	return nil
}
