package middleware_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware"
)

// pitfall 34: requests for a marked page don't each ask the store. The note
// of a mark ends with the mark, and is never more than a second old.
func TestPitfall34MarksAreRememberedForAMoment(t *testing.T) {
	for _, c := range []struct{ mark, readAfter, remembered time.Duration }{
		{mark: time.Minute, readAfter: 30 * time.Second, remembered: time.Second},
		{mark: 300 * time.Millisecond, readAfter: 200 * time.Millisecond, remembered: 100 * time.Millisecond},
	} {
		t.Run(c.mark.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := tap.New(newStore(t))
				h := wrap(t, store, middleware.Options{Policy: func(p *guard.Policy) { p.Bypass = c.mark }},
					saying(number(), "Cache-Control: private"))
				once(h)
				synctest.Wait() // it is marked
				time.Sleep(c.readAfter)
				once(h)
				before := store.Lone.Load()
				time.Sleep(c.remembered - time.Millisecond)
				for range 10 {
					once(h)
				}
				if store.Lone.Load() != before {
					t.Errorf("%d reads for 10 requests", store.Lone.Load()-before)
				}
				time.Sleep(time.Millisecond)
				if once(h); store.Lone.Load() == before {
					t.Errorf("a mark of which %v was left is remembered still", c.remembered)
				}
			})
		})
	}
}
