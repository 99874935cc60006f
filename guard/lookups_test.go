package guard_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

// slowReads is a guard with the key "k", each read of which takes a millisecond.
func slowReads(w *world) (*guard.Guard[string], *tap.Store) {
	s := tap.New(w.open().(store.Holder))
	s.OnRead = func(_ string, r *store.Reading, err error) (*store.Reading, error) {
		time.Sleep(time.Millisecond)
		return r, err
	}
	g := w.guard(s, policy())
	must(w, g.Set(w.Context(), "k", "v"))
	return g, s
}

// Callers that call again at once share the next read. They don't take turns with callers
// that came during the last one.
func TestCallersOfAHitShareTheNextRead(t *testing.T) {
	for n, share := range map[int]float64{10: 0.7, 300: 0.5} { // of many, a part still wakes when it is sent
		inMemory(t, func(w *world) {
			const reads = 100
			g, s := slowReads(w)
			var calls atomic.Int32
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					for s.Lone.Load() < reads {
						get(w, g, "k", never)
						calls.Add(1)
					}
				})
			}
			wg.Wait()
			if each := float64(calls.Load()) / reads; each < share*float64(n) {
				w.Errorf("a read served %.1f of %d callers", each, n)
			}
		})
	}
}

func TestCallersThatLeftHoldUpNoRead(t *testing.T) {
	inMemory(t, func(w *world) {
		g, _ := slowReads(w)
		for range 10 {
			hasty, leave := context.WithTimeout(w.Context(), 1500*time.Microsecond)
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					for hasty.Err() == nil {
						if _, err := g.Get(hasty, "k", never); err != nil && !errors.Is(err, context.DeadlineExceeded) {
							w.Error(err)
						}
					}
				})
			}
			start := time.Now()
			for range 3 {
				get(w, g, "k", never)
			}
			if took := time.Since(start); took > 6*time.Millisecond {
				w.Errorf("three reads took %v", took)
			}
			wg.Wait()
			leave()
		}
	})
}
