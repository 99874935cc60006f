package work

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

const fetchTakes = 130 * time.Millisecond

// A cold key that all callers want at once.
func stampede() *Workload {
	return &Workload{
		Spec: report.Workload{
			Name: "stampede", Title: "Stampede",
			About: "One cold key, asked for by all callers of all processes at once; the fetch takes 130 ms; 1 KiB. " +
				"“Last caller” is when the last of all callers in all processes had the value, from the end of the first fetch. " +
				"Commands are all commands that the server executed until half a second after, without PING: a script counts, and so do its commands.",
			Metrics: []report.Metric{
				{Name: "fetches", Better: report.Lower, Headline: true, Open: true, LimitValue: 1, LimitName: "one"},
				{Name: "last caller", Unit: "ms", Better: report.Lower, Headline: true, LimitValue: ms(fetchTakes), LimitName: "fetch"},
				{Name: "commands", Better: report.Lower, Headline: true},
				{Name: "KiB", Better: report.Lower},
				{Name: "failed calls", Better: report.Lower},
			},
		},
		Limit: 2 * time.Minute,
		Takes: fetching,
		Run:   runStampede,
		Rival: func(_ peer.System, r *report.Result) (bool, string) {
			f := r.Figures["fetches"]
			if f == nil {
				return false, ""
			}
			return f.Median() <= 1, "more than one fetch"
		},
	}
}

func runStampede(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
	procs, callers := []int{1, 2, 4, 8}, []int{10, 100, 1000}
	if b.Quick {
		procs, callers = []int{4, 8}, []int{100, 1000}
	}
	for _, p := range procs {
		if err := stampedeOf(ctx, b, s, p, callers, emit); err != nil {
			return fmt.Errorf("%d processes: %w", p, err)
		}
	}
	return nil
}

func stampedeOf(ctx context.Context, b *Bench, s peer.System, procs int, callers []int, emit Emit) error {
	f, err := fleet.StartFleet(ctx, procs, s, peer.Options{Addr: b.Server.Addr(), TTL: ttl})
	if err != nil {
		return err
	}
	defer f.Stop()
	time.Sleep(tidied) // work that was put off when the connections were made
	for _, n := range callers {
		r, err := rush(ctx, b, f, n)
		if err != nil {
			return err
		}
		kase := fmt.Sprintf("%d × %d", procs, n)
		emit(kase, "fetches", float64(r.fetches))
		emit(kase, "last caller", ms(r.overhead))
		emit(kase, "commands", r.commands)
		emit(kase, "KiB", r.bytes/1024)
		emit(kase, "failed calls", float64(r.failed))
	}
	return nil
}

// tidied is when systems have sent the commands that they put off until no caller
// waits: ours leaves a channel within 0.4 s.
const tidied = 500 * time.Millisecond

// A rushed key's cost.
type rushed struct {
	fetches, failed int
	overhead        time.Duration // from the first fetch's end to the last return
	commands, bytes float64
}

// rush has each process ask for the same cold key, callers times.
func rush(ctx context.Context, b *Bench, f fleet.Fleet, callers int) (rushed, error) {
	m, err := startMeter(ctx, b.Client)
	if err != nil {
		return rushed{}, err
	}
	events, err := f.Do(ctx, fleet.Order{
		Do: fleet.Burst, Key: fmt.Sprintf("cold-%d-%d", len(f), callers), Callers: callers, At: soon(),
		Deadline: 20 * time.Second, Fetch: fleet.Origin{Takes: fetchTakes, Value: "v", Size: 1024},
	})
	if err != nil {
		return rushed{}, err
	}
	time.Sleep(tidied)
	r := rushed{}
	if r.commands, r.bytes, err = m.read(ctx); err != nil {
		return r, err
	}
	fetches, calls := fleet.Fetches(events), fleet.Calls(events)
	if len(fetches) == 0 {
		return r, errors.New("no process fetched")
	}
	r.fetches, r.failed = len(fetches), failed(calls)
	r.overhead = max(0, lastReturn(calls).Sub(firstEnd(fetches)))
	return r, nil
}
