package redisstore

import (
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A clock follows the clock of one node, by which entries are dated. Reads ask the node
// for its TIME about once in clockEvery. In between this process's own clocks go on from
// there. The clock is never slow, and fast by the round trip of the last TIME at the most,
// so that no entry looks younger than it is.
//
// Two cases are beyond it. After a failover the new server's clock may be behind. Entries
// then look younger and expire later by the difference, as expiries go by the same clock.
// And a virtual machine that was halted may not know for clockEvery.
type clock struct{ last atomic.Pointer[clockReading] }

type clockReading struct {
	at   store.Instant
	sent time.Time // before TIME was sent
	wall time.Time // the same, without the monotonic reading
	next time.Time // when TIME is due again
}

const (
	clockEvery = time.Second
	// clockSlip is by how much the wall clock may part from the monotonic one before a
	// reading is not used any more. The monotonic clock stops while the machine is
	// suspended, and the wall clock may be set.
	clockSlip = 100 * time.Millisecond
)

// elapsed is the time since the reading by the clock that says more. slipped reports
// whether the two clocks differ much.
func (r *clockReading) elapsed(now time.Time) (d time.Duration, slipped bool) {
	monotonic, wall := now.Sub(r.sent), now.Round(0).Sub(r.wall)
	return max(monotonic, wall, 0), (wall - monotonic).Abs() > clockSlip
}

// due reports whether the caller is to ask for the TIME.
func (c *clock) due(now time.Time) bool {
	r := c.last.Load()
	if r == nil {
		return true // nothing can be dated without it
	}
	if _, slipped := r.elapsed(now); slipped {
		return true
	}
	if now.Before(r.next) {
		return false
	}
	asked := *r
	asked.next = now.Add(clockEvery)
	return c.last.CompareAndSwap(r, &asked)
}

// now is the node's time at the given moment of this process, or zero if it is not known.
func (c *clock) now(moment time.Time) store.Instant {
	r := c.last.Load()
	if r == nil {
		return 0
	}
	elapsed, _ := r.elapsed(moment)
	return r.at + store.Instant(elapsed.Microseconds())
}

// set takes in a TIME that was sent at the given moment. A later one counts.
func (c *clock) set(at store.Instant, sent time.Time) {
	r := &clockReading{at: at, sent: sent, wall: sent.Round(0), next: sent.Add(clockEvery)}
	for {
		last := c.last.Load()
		if last != nil && sent.Before(last.sent) || c.last.CompareAndSwap(last, r) {
			return
		}
	}
}
