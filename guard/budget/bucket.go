package budget

import (
	"math"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A bucket is the leaky bucket of lua/state.lua on this process's monotonic clock: the
// fleet's as last reported, or the part of one process. Budget.mu guards it.
type bucket struct {
	limit  Limit
	among  float64   // processes that divide the limit; 1: the fleet's bucket
	level  float64   // units that have not leaked at the time at
	at     time.Time // may be ahead of now, like that of a grant for the end of a pause
	paused time.Time // no grants before
	left   float64   // units that the upstream allows before reset
	reset  time.Time // zero: the upstream has not said
}

func (b *bucket) part(whole float64) float64 { return whole / b.among }

func (b *bucket) rate() float64 { return b.part(b.limit.rate()) }

// levelAt is the level at t, or at b.at if that is later.
func (b *bucket) levelAt(t time.Time) float64 {
	leaked := float64(max(0, t.Sub(b.at)).Microseconds()) * b.rate()
	return max(0, b.level-leaked)
}

// next returns the wait before a call may be made, and the time from which its cost
// leaks, like lua/spend.lua.
func (b *bucket) next(now time.Time, s guard.Spending) (from time.Time, wait time.Duration) {
	from = later(later(now, b.paused), b.at)
	if b.reset.After(from) && b.left < float64(s.Cost) {
		from = b.reset
	}
	capacity := b.part(b.limit.capacity(s.Priority))
	over := b.levelAt(from) + min(float64(s.Cost), capacity) - capacity
	wait = from.Sub(now)
	if s.Cost > 0 && over > 1e-9 {
		wait += micros(math.Ceil(over / b.rate()))
	}
	return from, wait
}

// remaining is the number of units that a Critical call can spend at once.
func (b *bucket) remaining(now time.Time) int {
	units := b.part(float64(b.limit.Burst)) - b.levelAt(now)
	if b.reset.After(now) {
		units = min(units, b.left)
	}
	if b.paused.After(now) {
		return 0
	}
	return int(max(0, units))
}

func (b *bucket) pausedFor(now time.Time) time.Duration { return max(0, b.paused.Sub(now)) }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// micros bounds a number of microseconds to 31 years, like lua/state.lua.
func micros(n float64) time.Duration {
	return time.Duration(max(0, min(n, 1e15))) * time.Microsecond
}

// A share is the bucket that a process spends from while Redis is away. Budget.mu guards
// it.
type share struct {
	bucket bucket
	calls  int   // under way
	spent  int64 // not reported to Redis yet
}

// begin fills the bucket: Redis may just have granted the burst. A level above the
// burst is a debt, and the process takes its part of it.
func (s *share) begin(now time.Time, level float64) {
	b := &s.bucket
	b.at, b.level = now, max(1, b.part(max(level, float64(b.limit.Burst))))
}

// take is lua/spend.lua. held is the number of calls that Redis granted to this process
// and that are under way.
func (s *share) take(now time.Time, c guard.Spending, early time.Duration, held int) verdict {
	b := &s.bucket
	from, wait := b.next(now, c)
	if wait > early {
		return verdict{wait: wait}
	}
	if most := b.limit.MaxInFlight; most > 0 && s.calls+held >= max(1, int(b.part(float64(most)))) {
		return verdict{wait: slotPoll, full: true}
	}
	b.level, b.at = b.levelAt(from)+float64(c.Cost), from
	b.left -= float64(c.Cost)
	s.calls++
	s.spent += int64(c.Cost)
	return verdict{granted: true, wait: wait}
}

// settle is lua/settle.lua.
func (s *share) settle(diff int) {
	b := &s.bucket
	b.level = max(0, b.level+float64(diff))
	b.left -= max(0, float64(diff)) // the upstream's last answer may include the refund
	s.spent += int64(diff)
}

// learn is lua/learn.lua without pauses, for the process's part of the remaining units.
func (s *share) learn(now time.Time, remaining int, reset time.Duration) {
	b := &s.bucket
	if reset <= 0 {
		at := later(now, b.at)
		b.level, b.at = max(b.levelAt(at), b.part(float64(b.limit.Burst-remaining))), at
		return
	}
	left, ends := b.part(float64(remaining)), now.Add(reset)
	const same = 1500 * time.Millisecond // upstreams round resets to seconds
	switch d := ends.Sub(b.reset); {
	case b.reset.After(now) && d.Abs() <= same:
		b.left = min(b.left, left)
	case !b.reset.After(now) || d > 0 || left < b.left:
		b.left, b.reset = left, ends
	}
}

// outstanding returns the units that were spent here and that Redis has not counted, and
// those of them that have not leaked. The level at begin was not spent. The result is
// negative if a call was settled here that an earlier share granted.
func (s *share) outstanding(now time.Time) debt {
	d := difference(s.spent)
	d.level = min(s.bucket.levelAt(now), d.level)
	s.spent = 0
	return d
}
