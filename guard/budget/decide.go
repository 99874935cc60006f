package budget

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

const (
	// ahead is how far ahead of its time a waiting call may be granted. It covers the
	// round trip of the next question, so that no units are lost, and it bounds the
	// waiting calls that a Critical call finds in front of it.
	ahead = 20 * time.Millisecond
	// shortNap is the least time between two questions of a waiter, slotPoll the time
	// between questions for a place among MaxInFlight.
	shortNap = 5 * time.Millisecond
	slotPoll = 25 * time.Millisecond
	// remembered bounds the time for which a refusal answers further callers: refunds and
	// the end of a pause may come early. Background calls have no waiter and use it longer.
	remembered           = 50 * time.Millisecond
	rememberedBackground = 250 * time.Millisecond
	// defaultHold is the time for which a slot is renewed if the caller gives none.
	defaultHold = 5 * time.Minute
)

// A gate lets the waiters of a priority in this process ask one at a time, so that the
// number of questions does not grow with the callers.
type gate struct {
	turn    chan struct{}
	waiting atomic.Int32
	until   time.Time // the latest deadline of a waiter so far; guarded by Budget.mu
}

// A verdict is the answer to one question for a call.
type verdict struct {
	granted bool
	wait    time.Duration // before the call may be made, or before the next question
	full    bool          // too many calls are under way: wait is a poll interval

	// Of a grant; see expense.
	slot  string
	taken int64
	local bool
}

// A bucket is the leaky bucket of lua/state.lua on this process's monotonic clock: the
// fleet's as last reported, or the share that one process spends from while Redis is
// away. Budget.mu guards it.
type bucket struct {
	limit  Limit
	among  float64   // processes that divide the limit; 1: the fleet's bucket
	level  float64   // units that have not leaked at the time at
	at     time.Time // may be ahead of now, like that of a grant for the end of a pause
	paused time.Time // no grants before
	left   float64   // units that the upstream allows before reset
	reset  time.Time // zero: the upstream has not said

	// Of a share.
	calls int   // under way
	spent int64 // not reported to Redis yet
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

// begin fills the bucket: Redis may just have granted the burst. A level above the
// burst is a debt, and the process takes its part of it.
func (b *bucket) begin(now time.Time, level float64) {
	b.at, b.level = now, max(1, b.part(max(level, float64(b.limit.Burst))))
}

// take is lua/spend.lua. held is the number of calls that Redis granted to this process
// and that are under way.
func (b *bucket) take(now time.Time, c guard.Spending, early time.Duration, held int) verdict {
	from, wait := b.next(now, c)
	if wait > early {
		return verdict{wait: wait}
	}
	if most := b.limit.MaxInFlight; most > 0 && b.calls+held >= max(1, int(b.part(float64(most)))) {
		return verdict{wait: slotPoll, full: true}
	}
	b.level, b.at = b.levelAt(from)+float64(c.Cost), from
	b.left -= float64(c.Cost)
	b.calls++
	b.spent += int64(c.Cost)
	return verdict{granted: true, wait: wait, local: true}
}

// settle is lua/settle.lua.
func (b *bucket) settle(diff int) {
	b.level = max(0, b.level+float64(diff))
	b.left -= max(0, float64(diff)) // the upstream's last answer may include the refund
	b.spent += int64(diff)
}

// learn is lua/learn.lua without pauses, for the process's part of the remaining units.
func (b *bucket) learn(now time.Time, remaining int, reset time.Duration) {
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
func (b *bucket) outstanding(now time.Time) debt {
	d := difference(b.spent)
	d.level = min(b.levelAt(now), d.level)
	b.spent = 0
	return d
}

// refusals keeps the latest refusal of each priority, so that not every caller asks
// Redis for units that are not there. Budget.mu guards it.
type refusals [guard.Critical + 1]refusal

type refusal struct {
	until time.Time // valid until then
	at    time.Time // when the next units come
	cost  int
	full  bool // too many calls were under way
}

func (r *refusals) add(s guard.Spending, asked time.Time, v verdict) {
	valid := min(remembered, v.wait)
	if s.Priority == guard.Background {
		valid = max(remembered, min(rememberedBackground, v.wait))
	}
	r[s.Priority] = refusal{until: asked.Add(valid), at: asked.Add(v.wait), cost: s.Cost, full: v.full}
}

// find returns a refusal of a call that cost no more than s. It is none for a call that
// can wait for units that come within ahead.
func (r *refusals) find(now time.Time, s guard.Spending) (verdict, bool) {
	for _, p := range [...]guard.Priority{s.Priority, guard.Normal, guard.Critical} {
		if p == guard.Normal && s.Priority == guard.Critical {
			continue // a reserve may be left
		}
		f := r[p]
		if f.until.After(now) && f.cost <= s.Cost && (s.MaxWait <= 0 || f.at.Sub(now) >= ahead) {
			return verdict{wait: max(f.at.Sub(now), time.Millisecond), full: f.full}, true
		}
	}
	return verdict{}, false
}

// A debt is a list of changes to report to Redis. Refunds are apart from the others: the
// bucket may be empty when they are made, and then they cannot pay for a level.
type debt struct {
	level  float64  // units that have to leak
	spent  int64    // units that Redis has not counted
	refund int64    // units that Redis counted and that were not spent
	taken  int64    // report.taken of the call to refund; 0: unknown
	slots  []string // of calls that are over
}

// difference is the debt of a call that cost diff units more than it spent, or less.
func difference(diff int64) debt {
	if diff < 0 {
		return debt{refund: -diff}
	}
	return debt{level: float64(diff), spent: diff}
}

func (d *debt) add(other debt) {
	d.level = min(d.level+other.level, maxUnits)
	d.spent += other.spent
	d.refund += other.refund
	d.slots = append(d.slots, other.slots...)
}

func (d *debt) empty() bool {
	return d.level == 0 && d.spent == 0 && d.refund == 0 && len(d.slots) == 0
}
