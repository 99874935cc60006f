package budget

import (
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A refusal is what this process was last told, so that what can't be had isn't
// asked for again by each caller.
type refusal struct {
	until time.Time // believed until then
	at    time.Time // when there may be something
	cost  int       // asked for
	full  bool      // too many calls were under way
}

// remember keeps a refusal for those who would be refused with more reason.
func (b *Budget) remember(s guard.Spending, asked time.Time, v verdict) {
	believed := min(remembered, v.wait)
	if s.Priority == guard.Background {
		believed = max(remembered, min(rememberedBackground, v.wait))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memory[s.Priority] = refusal{until: asked.Add(believed), at: asked.Add(v.wait), cost: s.Cost, full: v.full}
}

// recall is the refusal that can be told without asking.
func (b *Budget) recall(s guard.Spending) (verdict, bool) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range lowerBound[s.Priority] {
		r := b.memory[p]
		if !r.until.After(now) || s.Cost < r.cost || s.MaxWait > 0 && r.at.Sub(now) < ahead {
			continue // those who can wait may be granted what is ahead
		}
		return verdict{wait: max(r.at.Sub(now), time.Millisecond), full: r.full}, true
	}
	return verdict{}, false
}

// lowerBound are the priorities whose refusal refuses a priority too.
var lowerBound = [...][]guard.Priority{
	guard.Background: {guard.Background, guard.Normal, guard.Critical},
	guard.Normal:     {guard.Normal, guard.Critical},
	guard.Critical:   {guard.Critical},
}

// forget is called when there may be something again.
func (b *Budget) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memory = [3]refusal{}
}

// nextSlot is the verdict on a call that was still in line when its time was over: by
// the last report from Redis, or by this process's share.
func (b *Budget) nextSlot(s guard.Spending) verdict {
	if v, ok := b.recall(s); ok {
		return v
	}
	now := time.Now()
	if b.isAway() {
		return verdict{wait: b.local.wait(now, s)}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	paused := b.pausedLocked(now)
	most := b.limit.capacity(s.Priority)
	over := b.levelLocked(now.Add(paused)) + min(float64(s.Cost), most) - most
	wait := paused + micros(int64(min(max(over, 0)/b.limit.rate(), 1e15))) // as lua/state.lua bounds it
	if wait <= 0 {                                                         // it isn't for want of units
		return verdict{wait: slotPoll, full: b.limit.MaxInFlight > 0}
	}
	return verdict{wait: wait}
}

// Exhausted reports whether a call of that priority was refused here so lately
// that it would be again. It asks nobody.
func (b *Budget) Exhausted(p guard.Priority) bool {
	if p > guard.Critical {
		return false
	}
	_, exhausted := b.recall(guard.Spending{Priority: p, Cost: maxUnits})
	return exhausted
}
