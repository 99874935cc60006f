package work

import (
	"context"
	"fmt"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
)

// Growth measures the cost of a stampede for each process of this library, by the
// number of processes and of callers.
func Growth(ctx context.Context, b *Bench, rounds int) ([]report.Growth, error) {
	s, err := peer.Named("stampede")
	if err != nil {
		return nil, err
	}
	procs, callers := []int{1, 2, 4, 8, 16, 32}, []int{10, 100, 1000}
	if b.Quick {
		procs, callers = []int{1, 4, 16}, []int{10, 100}
	}
	table := make([]report.Growth, 0, len(procs)*len(callers))
	for _, p := range procs {
		for _, n := range callers {
			table = append(table, report.Growth{Procs: p, Callers: n})
		}
	}
	for range rounds {
		for i, p := range procs {
			if err := growthOf(ctx, b, s, table[i*len(callers):][:len(callers)]); err != nil {
				return nil, fmt.Errorf("%d processes: %w", p, err)
			}
		}
	}
	return table, nil
}

// growthOf fills the rows of one number of processes.
func growthOf(ctx context.Context, b *Bench, s peer.System, rows []report.Growth) error {
	if err := b.Client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	f, err := fleet.StartFleet(ctx, rows[0].Procs, s, peer.Options{Addr: b.Server.Addr(), TTL: ttl})
	if err != nil {
		return err
	}
	defer f.Stop()
	time.Sleep(tidied) // work that was put off when the connections were made
	for i := range rows {
		row := &rows[i]
		before, err := f.Do(ctx, fleet.Order{Do: fleet.Usage})
		if err != nil {
			return err
		}
		r, err := rush(ctx, b, f, row.Callers)
		if err != nil {
			return err
		}
		after, err := f.Do(ctx, fleet.Order{Do: fleet.Usage})
		if err != nil {
			return err
		}
		var cpu float64
		for i := range after {
			cpu += ms(after[i].CPU - before[i].CPU)
		}
		each := float64(row.Procs)
		add := func(f *report.Figure, v float64) { f.Samples = append(f.Samples, v) }
		add(&row.CPU, cpu/each)
		add(&row.Commands, r.commands/each)
		add(&row.Bytes, r.bytes/each)
		add(&row.Fetches, float64(r.fetches))
		add(&row.Overhead, ms(r.overhead))
	}
	return nil
}
