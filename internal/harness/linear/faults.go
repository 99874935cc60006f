package linear

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// A fault is something that happens to one of the processes, or to the server.
type fault struct {
	name string
	do   func(ctx context.Context, c *Crew, seat int, l Load) error
}

var faults = []fault{
	{"kill", func(ctx context.Context, c *Crew, seat int, l Load) error { return c.replace(ctx, seat, l) }},
	{"freeze past the lease", func(ctx context.Context, c *Crew, seat int, _ Load) error {
		p := c.on(seat)
		if err := p.Stop(); err != nil {
			return err
		}
		pause(ctx, c.cfg.Policy.Lease*5/4, c.cfg.Policy.Lease*2)
		return p.Cont()
	}},
	{"cut", func(ctx context.Context, c *Crew, seat int, _ Load) error {
		c.lines[seat].Cut()
		pause(ctx, 20*time.Millisecond, 300*time.Millisecond)
		return c.lines[seat].Restore()
	}},
	{"black hole", func(ctx context.Context, c *Crew, seat int, _ Load) error {
		if err := c.lines[seat].Blackhole(); err != nil {
			return err
		}
		pause(ctx, 50*time.Millisecond, 2*c.cfg.Policy.Lease)
		return c.lines[seat].Restore()
	}},
	{"slow line", func(ctx context.Context, c *Crew, seat int, _ Load) error {
		c.lines[seat].Delay(5*time.Millisecond + rand.N(40*time.Millisecond))
		pause(ctx, 200*time.Millisecond, 500*time.Millisecond)
		return c.lines[seat].Restore()
	}},
	{"lost answers", func(ctx context.Context, c *Crew, seat int, _ Load) error {
		for range 5 {
			c.lines[seat].TruncateNext(rand.IntN(8))
			pause(ctx, 10*time.Millisecond, 50*time.Millisecond)
		}
		return nil
	}},
	{"CLIENT KILL TYPE pubsub", func(ctx context.Context, c *Crew, _ int, _ Load) error {
		return c.command(ctx, "CLIENT", "KILL", "TYPE", "pubsub")
	}},
	{"SCRIPT FLUSH", func(ctx context.Context, c *Crew, _ int, _ Load) error {
		return c.command(ctx, "SCRIPT", "FLUSH")
	}},
	{"server frozen", func(ctx context.Context, c *Crew, _ int, _ Load) error {
		if err := c.Server.Pause(); err != nil {
			return err
		}
		pause(ctx, 50*time.Millisecond, 2*c.cfg.Policy.Lease)
		return c.Server.Resume()
	}},
}

// plague lets faults happen, all kinds in turn, until a second before the load's
// end. It answers how often each did.
func (c *Crew) plague(ctx context.Context, l Load) (map[string]int, error) {
	count := map[string]int{}
	for {
		for _, i := range rand.Perm(len(faults)) {
			pause(ctx, 50*time.Millisecond, 250*time.Millisecond)
			if Now() > l.Until-int64(time.Second) || ctx.Err() != nil {
				return count, context.Cause(ctx)
			}
			f := faults[i]
			if err := f.do(ctx, c, rand.IntN(len(c.seats)), l); err != nil {
				return count, fmt.Errorf("linear: %s: %w", f.name, err)
			}
			count[f.name]++
		}
	}
}

func (c *Crew) command(ctx context.Context, args ...any) error {
	client := c.Server.Client()
	defer client.Close()
	return client.Do(ctx, args...).Err()
}

// pause waits for a time between the two.
func pause(ctx context.Context, least, most time.Duration) {
	select {
	case <-time.After(least + rand.N(most-least)):
	case <-ctx.Done():
	}
}

// Faults returns the names of all faults.
func Faults() []string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return names
}
