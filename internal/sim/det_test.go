package sim_test

import (
	"slices"
	"testing"

	"github.com/stampedeguard/stampede/internal/sim"
)

func TestDet(t *testing.T) {
	bad := 0
	for s := uint64(1); s <= uint64(*seeds); s++ {
		a := sim.Run(t, sim.Config{Seed: s, Scripts: scripts})
		b := sim.Run(t, sim.Config{Seed: s, Scripts: scripts})
		if !slices.Equal(a.Trace, b.Trace) {
			bad++
			for i := range min(len(a.Trace), len(b.Trace)) {
				if a.Trace[i] != b.Trace[i] {
					for j := max(0, i-3); j < i; j++ {
						t.Logf("  %s", a.Trace[j])
					}
					t.Logf("seed %d line %d:\n   %s\n   %s", s, i, a.Trace[i], b.Trace[i])
					break
				}
			}
		}
	}
	t.Logf("%d of %d differ", bad, *seeds)
}
