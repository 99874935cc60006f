package budget

import (
	"math"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A share is what a process may spend by itself while Redis is away: the same
// bucket as in Redis (lua/state.lua), a part of its size, on this process's
// monotonic clock.
type share struct {
	limit Limit

	mu     sync.Mutex
	among  int // processes last seen
	level  float64
	at     time.Time
	paused time.Time // nothing before
	left   float64   // no more before reset, by the upstream's word
	reset  time.Time
	calls  int // under way
	spent  int64
}

func newShare(l Limit, among int) *share { return &share{limit: l, among: among, at: time.Now()} }

// begin empties the purse: what could be spent at once may have been, in Redis. A
// level above that is a debt, and this process's part of it as well.
func (s *share) begin(now time.Time, level float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = now
	s.level = max(1, s.part(max(level, float64(s.limit.Burst))))
}

// seen takes note of how many share.
func (s *share) seen(processes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.among = max(1, processes)
}

// pause grants nothing before d has passed; 0 ends it.
func (s *share) pause(now time.Time, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = now.Add(d)
}

// learn is lua/learn.lua, but for pauses: this process's part of what the upstream
// has left.
func (s *share) learn(now time.Time, remaining int, reset time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reset <= 0 {
		at := now
		if s.at.After(at) {
			at = s.at
		}
		s.level, s.at = max(s.leaked(at), s.part(float64(s.limit.Burst-remaining))), at
		return
	}
	left, ends := s.part(float64(remaining)), now.Add(reset)
	const same = 1500 * time.Millisecond
	switch d := ends.Sub(s.reset); {
	case s.reset.After(now) && d.Abs() <= same:
		s.left = min(s.left, left)
	case !s.reset.After(now) || d > 0 || left < s.left:
		s.left, s.reset = left, ends
	}
}

// unlearn forgets what the upstream said.
func (s *share) unlearn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused, s.reset = time.Time{}, time.Time{}
}

// rate is that of the share, in units for each microsecond.
func (s *share) rate() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.part(s.limit.rate())
}

// part is this process's of the whole.
func (s *share) part(whole float64) float64 { return whole / float64(s.among) }

// take is lua/spend.lua.
func (s *share) take(now time.Time, c guard.Spending, early time.Duration, held int) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, wait := s.nextLocked(now, c)
	if wait > early {
		return wait, false
	}
	if most := s.limit.MaxInFlight; most > 0 && s.calls+held >= max(1, most/s.among) {
		return slotPoll, false
	}
	s.level = s.leaked(from) + float64(c.Cost)
	s.at = from
	s.left -= float64(c.Cost)
	s.calls++
	s.spent += int64(c.Cost)
	return wait, true
}

// wait is for how long take would have a call wait.
func (s *share) wait(now time.Time, c guard.Spending) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, wait := s.nextLocked(now, c)
	return wait
}

// nextLocked is for how long a call has to wait, and from when on its cost leaks.
func (s *share) nextLocked(now time.Time, c guard.Spending) (from time.Time, wait time.Duration) {
	from = now
	if s.paused.After(from) {
		from = s.paused
	}
	if s.at.After(from) {
		from = s.at
	}
	if s.reset.After(from) && s.left < float64(c.Cost) {
		from = s.reset
	}
	level := s.leaked(from)
	rate := s.part(s.limit.rate())
	capacity := s.part(s.limit.capacity(c.Priority))
	over := 0.0
	if c.Cost > 0 {
		over = level + math.Min(float64(c.Cost), capacity) - capacity
	}
	wait = from.Sub(now)
	if over > 1e-9 {
		wait += time.Duration(math.Min(math.Ceil(over/rate), 1e15)) * time.Microsecond
	}
	return from, wait
}

// settle is lua/settle.lua.
func (s *share) settle(diff int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = max(0, s.level+float64(diff))
	s.left -= max(0, float64(diff)) // a refund may be in the upstream's word already
	s.spent += int64(diff)
}

// ended takes note that a call is over.
func (s *share) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
}

// leaked is the level at a time not before s.at.
func (s *share) leaked(t time.Time) float64 {
	return max(0, s.level-float64(t.Sub(s.at).Microseconds())*s.part(s.limit.rate()))
}

// state is what is known of the share.
func (s *share) state(now time.Time) (remaining int, paused time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.After(now) {
		now = s.at
	}
	most := s.part(float64(s.limit.Burst)) - s.leaked(now)
	if s.reset.After(now) {
		most = min(most, s.left)
	}
	return int(max(0, most)), max(0, s.paused.Sub(now))
}

// outstanding is what has to be told to Redis of what was spent here, once: all
// of it, and what of it hasn't leaked. The level that the share began with is
// nothing that was spent. Less than nothing was where a call was settled here that
// an earlier outage's share had granted, and Redis was told of.
func (s *share) outstanding(now time.Time) debt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.After(now) {
		now = s.at
	}
	d := difference(s.spent)
	d.level = min(s.leaked(now), d.level)
	s.spent = 0
	return d
}
