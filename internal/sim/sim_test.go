package sim_test

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/sim"
)

var (
	seed  = flag.Uint64("seed", 0, "play this seed alone and print its trace")
	seeds = flag.Int("seeds", 2000, "how many seeds TestSim plays")
)

const scripts = "../../cache/lua"

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(quiet{}) }

func TestSim(t *testing.T) {
	if *seed != 0 {
		r := sim.Run(t, sim.Config{Seed: *seed, Scripts: scripts})
		for _, l := range r.Trace {
			t.Log(l)
		}
		for _, v := range r.Violations {
			t.Errorf("seed %d: %v", *seed, v)
		}
		return
	}
	start := time.Now()
	faults := map[string]int{}
	var steps, fetches int
	for s := uint64(1); s <= uint64(*seeds); s++ {
		if testing.Verbose() && os.Getenv("SIMDBG") != "" {
			println(s)
		}
		r := sim.Run(t, sim.Config{Seed: s, Scripts: scripts})
		for _, v := range r.Violations {
			t.Errorf("seed %d: %v", s, v)
		}
		for k, n := range r.Faults {
			faults[k] += n
		}
		steps += r.Steps
		fetches += r.Fetches
	}
	t.Logf("%d seeds in %v, %d steps, %d fetches, %v", *seeds, time.Since(start), steps, fetches, faults)
}
