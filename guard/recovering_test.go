package guard_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// emptied is a guard with 50 values in its reserve. Its Redis was away and has come back
// empty. Before the keys are asked for by several callers each, all at once, the test may
// do something else with the guard. No caller is to wait.
func emptied(t *testing.T, callers int, before func(w *world, g *guard.Guard[string])) {
	p := policy(func(p *guard.Policy) { p.MaxUnguarded = 8 }) // two refreshes at once
	away(t, p, func(w *world, n *network, g *guard.Guard[string]) {
		const keys = 50
		o := &origin{takes: 20 * time.Millisecond}
		losesAll(w, n, g, keys, o.fetch)
		findBroken(g, 10*keys)
		before(w, g)
		var wg sync.WaitGroup
		var fetches, waited atomic.Int32
		fetch := func(ctx context.Context) (string, error) {
			fetches.Add(1)
			return o.fetch(ctx)
		}
		for i := range callers * keys {
			wg.Go(func() {
				start := time.Now()
				get(w, g, fmt.Sprint("k", i%keys), fetch)
				if time.Since(start) > time.Millisecond {
					waited.Add(1)
				}
			})
		}
		wg.Wait()
		if waited.Load() > 2 || fetches.Load() > 4 { // a broken connection may be left
			w.Errorf("%d of %d callers waited, for %d fetches", waited.Load(), callers*keys, fetches.Load())
		}
	})
}

func TestAllCallersOfALostKeyAreServed(t *testing.T) {
	emptied(t, 5, func(*world, *guard.Guard[string]) {})
}

func TestMissesOfOtherKeysFetchNoLostKey(t *testing.T) {
	emptied(t, 1, func(w *world, g *guard.Guard[string]) {
		for i := range 20 { // in a row
			get(w, g, fmt.Sprint("other", i), (&origin{}).fetch)
		}
	})
}
