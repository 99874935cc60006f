package work

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

// A delete that a fetch, or a near cache, must not undo.
func deletion() *Workload {
	return &Workload{
		Spec: report.Workload{
			Name: "delete", Title: "Delete",
			About: "“During a fetch”: process A fetches for 200 ms; halfway, B deletes the key, as the origin has changed; when A's fetch is over, both ask again. " +
				"“Of a value both have read”: A deletes a key that both have; 50 ms later both ask again. " +
				"Stale is a value from before the delete, in percent of the rounds.",
			Metrics: []report.Metric{
				{Name: "stale elsewhere", Unit: "%", Better: report.Lower, Headline: true, Open: true},
				{Name: "stale where it was deleted or fetched", Unit: "%", Better: report.Lower, Headline: true, Open: true},
			},
		},
		Limit: 30 * time.Second,
		Takes: func(s peer.System) bool { return !s.Limit },
		Run: func(ctx context.Context, b *Bench, s peer.System, emit Emit) error {
			if err := runDeletion(ctx, b, s, "during a fetch", deleteMidFetch, emit); err != nil {
				return err
			}
			return runDeletion(ctx, b, s, "of a value both have read", deleteStored, emit)
		},
		Rival: func(peer.System, *report.Result) (bool, string) { return true, "" },
	}
}

const oldValue, newValue = "old", "new"

func runDeletion(ctx context.Context, b *Bench, s peer.System, kase string, change func(context.Context, fleet.Fleet) (own int, err error), emit Emit) error {
	if err := b.Client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	f, err := fleet.StartFleet(ctx, 2, s, peer.Options{Addr: b.Server.Addr(), TTL: ttl})
	if err != nil {
		return err
	}
	defer f.Stop()
	own, err := change(ctx, f)
	if err != nil {
		return err
	}
	for i, p := range f {
		stale, err := ask(ctx, p, newValue)
		if err != nil {
			return err
		}
		metric := "stale elsewhere"
		if i == own {
			metric = "stale where it was deleted or fetched"
		}
		emit(kase, metric, stale)
	}
	return nil
}

// ask gets the key and returns 100 if it gets the old value, else 0.
func ask(ctx context.Context, p *fleet.Process, value string) (float64, error) {
	e, err := p.Do(ctx, fleet.Order{Do: fleet.Burst, Key: "deleted", Callers: 1, Deadline: 10 * time.Second, Fetch: fleet.Origin{Value: value}})
	if err != nil {
		return 0, err
	}
	if e.Calls[0].Err != "" {
		return 0, errors.New(e.Calls[0].Err)
	}
	if e.Calls[0].Value == oldValue {
		return 100, nil
	}
	return 0, nil
}

func deleteMidFetch(ctx context.Context, f fleet.Fleet) (int, error) {
	err := f[0].Send(fleet.Order{
		Do: fleet.Burst, Key: "deleted", Callers: 1, Deadline: 10 * time.Second, Announce: true,
		Fetch: fleet.Origin{Takes: 200 * time.Millisecond, Value: oldValue},
	})
	if err != nil {
		return 0, err
	}
	select {
	case <-f[0].Fetches():
	case <-ctx.Done():
		return 0, errors.New("no process fetched")
	}
	time.Sleep(100 * time.Millisecond)
	if _, err := f[1].Do(ctx, fleet.Order{Do: fleet.Delete, Key: "deleted", Deadline: 10 * time.Second}); err != nil {
		return 0, err
	}
	if _, err := f[0].Wait(ctx); err != nil {
		return 0, err
	}
	time.Sleep(50 * time.Millisecond) // sturdyc and others store in the background
	return 0, nil
}

func deleteStored(ctx context.Context, f fleet.Fleet) (int, error) {
	for _, p := range f {
		for range 3 { // so that systems that keep hot values in memory do
			if _, err := ask(ctx, p, oldValue); err != nil {
				return 0, err
			}
		}
	}
	if _, err := f[0].Do(ctx, fleet.Order{Do: fleet.Delete, Key: "deleted", Deadline: 10 * time.Second}); err != nil {
		return 0, err
	}
	time.Sleep(50 * time.Millisecond)
	return 0, nil
}
