package chaos

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"
)

// watchCallers tells of those that should have returned, while they have not.
func (c *child) watchCallers(ctx context.Context) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	told := map[uint64]bool{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		seen := now()
		var overdue []Get
		c.getsMu.Lock()
		for id, g := range c.gets {
			// Twice a caller's patience: one that is merely late tells so itself.
			if seen.Sub(g.Deadline) > 2*time.Second && !told[id] {
				told[id] = true
				overdue = append(overdue, Get{Key: g.Key, Caller: id, Start: g.Start, Deadline: g.Deadline, Seen: seen})
			}
		}
		c.getsMu.Unlock()
		for i := range overdue {
			c.write(&report{Overdue: &overdue[i]})
		}
	}
}

// starved is how late a timer must be for the process to say that it did not
// run.
const starved = 250 * time.Millisecond

// watchClock notices when this process had no time to run, frozen or not.
func (c *child) watchClock(ctx context.Context) {
	const step = 50 * time.Millisecond
	tick := time.NewTimer(step)
	defer tick.Stop()
	for last := now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		at := now()
		if at.Sub(last) > step+starved {
			c.write(&report{Late: &Pause{From: last, To: at}})
		}
		last = at
		tick.Reset(step)
	}
}

// goroutines counts them, except senders that wait for a batch: a store keeps up to four
// in each queue of each node, as many as there was use for.
func goroutines() int {
	n := runtime.NumGoroutine()
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
	_, stacks, _ := strings.Cut(all.String(), "\n") // how many there are
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		var alike int
		if _, err := fmt.Sscanf(stack, "%d @", &alike); err == nil &&
			strings.Contains(stack, ".(*sender).parkLocked+") {
			n -= alike
		}
	}
	return n
}

// settle waits until the process is idle: as few goroutines as before the load,
// or, before it, no change for a while.
func (c *child) settle() Idle {
	first := c.before.Goroutines == 0
	var idle Idle
	least := goroutines()
	since := time.Now()
	for begin := since; time.Since(begin) < 20*time.Second; time.Sleep(20 * time.Millisecond) {
		n := goroutines()
		if n < least || first && n != least {
			least, since = n, time.Now()
		}
		if first && time.Since(since) > 700*time.Millisecond || !first && n <= c.before.Goroutines {
			break
		}
	}
	runtime.GC()
	runtime.GC() // so that finalizers run
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	idle = Idle{Goroutines: least, Heap: m.HeapAlloc}
	if !first && least > c.before.Goroutines {
		var all strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
		idle.Stacks = all.String()
		fmt.Fprintf(os.Stderr, "chaos: process %d has %d goroutines, had %d:\n%s", c.cfg.Proc, least, c.before.Goroutines, idle.Stacks)
	}
	return idle
}
