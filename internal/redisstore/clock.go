package redisstore

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A clock follows the clock of one node, by which entries are dated. Reads ask the node
// for its TIME at most once in clockEvery; in between this process's monotonic clock goes
// on from there. The time it tells is never too early, and too late by the round trip of
// the last TIME at the most, so that no entry looks younger than it is.
type clock struct{ last atomic.Pointer[clockReading] }

type clockReading struct {
	at     store.Instant
	sent   time.Time // before TIME was sent
	lasted time.Duration
}

const (
	clockEvery = time.Second
	// clockSlip is by how much the wall clock may part from the monotonic one before the
	// reading is not believed any more: a suspended machine stops the latter, and not Redis.
	clockSlip = 100 * time.Millisecond
)

// due reports whether the next read should ask for the TIME.
func (c *clock) due(now time.Time) bool {
	r := c.last.Load()
	if r == nil {
		return true
	}
	passed := now.Sub(r.sent)
	slip := now.Round(0).Sub(r.sent.Round(0)) - passed
	return passed > clockEvery || slip.Abs() > clockSlip
}

// now is the node's time at the given moment of this process.
func (c *clock) now(moment time.Time) store.Instant {
	r := c.last.Load()
	if r == nil {
		return 0 // nothing was read yet: every read asks first
	}
	return r.at + store.Instant(max(0, moment.Sub(r.sent)).Microseconds())
}

// set takes in a TIME that was sent at one moment and answered at another. Of two
// readings the one with the shorter round trip counts, for a while.
func (c *clock) set(at store.Instant, sent, answered time.Time) {
	r := &clockReading{at: at, sent: sent, lasted: answered.Sub(sent)}
	last := c.last.Load()
	if last != nil && r.lasted > 2*last.lasted+time.Millisecond && !c.due(answered) {
		return
	}
	c.last.CompareAndSwap(last, r)
}

// parseTime reads the reply to TIME: seconds and microseconds.
func parseTime(seconds, micros string) (store.Instant, error) {
	s, err := strconv.ParseUint(seconds, 10, 32)
	if err != nil {
		return 0, err
	}
	us, err := strconv.ParseUint(micros, 10, 32)
	return store.Instant(s*1e6 + us), err
}
