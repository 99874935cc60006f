package work

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

var warmMetrics = []report.Metric{
	{Name: "calls a second", Better: report.Higher, Headline: true, Limit: "GET (go-redis)"},
	{Name: "p50", Unit: "µs", Better: report.Lower},
	{Name: "p99", Unit: "µs", Better: report.Lower},
	{Name: "CPU", Unit: "µs a call", Better: report.Lower},
	{Name: "allocs a call", Better: report.Lower},
}

// Hits that ask Redis.
func warm() *Workload {
	return &Workload{
		Spec: report.Workload{
			Name: "warm", Title: "Warm key, Redis asked",
			About: "One process; its callers ask again and again for keys that are stored and fresh, and each hit is Redis's. " +
				"CPU is the process's own, without Redis.",
			Metrics: warmMetrics,
		},
		Rounds: 4,
		Limit:  2 * time.Minute,
		Takes:  func(s peer.System) bool { return !s.Near },
		Run:    warmRun(false),
		Rival: func(s peer.System, r *report.Result) (bool, string) {
			return s.Name != "GET (go-redis)", "" // rueidis's bare Do is a rival here, as the strongest there is
		},
	}
}

// Hits from the process's memory.
func warmNear() *Workload {
	return &Workload{
		Spec: report.Workload{
			Name: "near", Title: "Warm key, kept in the process",
			About: "The same with systems that keep values in the process, beside a GET. " +
				"go-redis/cache's local cache and sturdyc's hear of no change elsewhere, and may serve deleted values until their TTL ends; " +
				"ours and rueidis's are told of changes. The best peer is the best of those that are told; the others' rows show the cost of that. " +
				"10000 keys of 64 KiB are 640 MB: ours, bounded by entries, keeps them all; rueidis's, by 128 MiB for each connection, doesn't, " +
				"so there its figure is mostly that of reads from Redis.",
			Metrics: warmMetrics,
		},
		Rounds: 4,
		Limit:  2 * time.Minute,
		Takes:  func(s peer.System) bool { return s.Near || s.Name == "GET (go-redis)" },
		Run:    warmRun(true),
		Rival: func(s peer.System, _ *report.Result) (bool, string) {
			if s.Limit {
				return false, ""
			}
			return s.Name == "rueidisaside", "hears of no change elsewhere"
		},
	}
}

// warmRun runs the cases. With read each key has been read once before anything is
// timed, so that systems that keep read values in the process, and not stored ones,
// have it too.
func warmRun(read bool) func(context.Context, *Bench, peer.System, Emit) error {
	return func(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
		sets := []struct{ size, keys int }{{1 << 10, 1}, {1 << 10, 10_000}, {64 << 10, 1}, {64 << 10, 10_000}}
		callers := []int{1, 64, 512}
		lasts := 400 * time.Millisecond
		if b.Quick {
			sets, lasts = sets[:2], 250*time.Millisecond
			callers = []int{1, 64}
		}
		for _, set := range sets {
			if err := warmOf(ctx, b, s, set.size, set.keys, read, callers, lasts, emit); err != nil {
				return fmt.Errorf("%d bytes, %d keys: %w", set.size, set.keys, err)
			}
		}
		return nil
	}
}

func warmOf(ctx context.Context, b *Bench, s peer.System, size, keys int, read bool, callers []int, lasts time.Duration, emit Emit) error {
	if err := b.Client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	f, err := fleet.StartFleet(ctx, 1, s, peer.Options{Addr: b.Server.Addr(), TTL: time.Hour})
	if err != nil {
		return err
	}
	defer f.Stop()
	order := fleet.Order{
		Do: fleet.Preset, Key: "warm", Keys: keys, Read: read, Deadline: 10 * time.Second,
		Fetch: fleet.Origin{Value: "v", Size: size},
	}
	if _, err := f.Do(ctx, order); err != nil {
		return err
	}
	for _, n := range callers {
		order.Do, order.Zipf, order.Callers, order.For = fleet.Loop, true, n, lasts
		events, err := f.Do(ctx, order)
		if err != nil {
			return err
		}
		kase := fmt.Sprintf("%d KiB, %s, %s", size>>10, plural(keys, "key"), plural(n, "caller"))
		if err := emitLoop(emit, kase, events[0].Loop); err != nil {
			return err
		}
	}
	return nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "one " + noun
	}
	return strings.TrimSpace(fmt.Sprintf("%d %ss", n, noun))
}

func emitLoop(emit Emit, kase string, l fleet.LoopResult) error {
	if l.Errors > 0 {
		return fmt.Errorf("%d of %d calls failed, one with %q", l.Errors, l.Ops, l.Err)
	}
	ops := float64(l.Ops)
	emit(kase, "calls a second", ops/l.Took.Seconds())
	emit(kase, "p50", float64(l.P50)/1e3)
	emit(kase, "p99", float64(l.P99)/1e3)
	emit(kase, "CPU", float64(l.CPU)/1e3/ops)
	emit(kase, "allocs a call", float64(l.Allocs)/ops)
	return nil
}
