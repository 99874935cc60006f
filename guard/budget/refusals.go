package budget

import (
	"time"

	"github.com/stampedeguard/stampede/guard"
)

const (
	// remembered bounds the time for which a refusal answers further callers: refunds and
	// the end of a pause may come before the time that Redis told. Background calls have no
	// waiter, so they use a refusal for at least remembered and at most
	// rememberedBackground.
	remembered           = 50 * time.Millisecond
	rememberedBackground = 250 * time.Millisecond
)

// refusals keeps the latest refusal of each priority, so that not every caller asks
// Redis for units that are not there. Budget.mu guards it.
type refusals [guard.Critical + 1]refusal

type refusal struct {
	until time.Time // valid until then
	at    time.Time // when the next units come
	cost  int
	full  bool // too many calls were under way
}

// lowerBound lists the priorities whose refusal refuses a priority too.
var lowerBound = [...][]guard.Priority{
	guard.Background: {guard.Background, guard.Normal, guard.Critical},
	guard.Normal:     {guard.Normal, guard.Critical},
	guard.Critical:   {guard.Critical},
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
	for _, p := range lowerBound[s.Priority] {
		f := r[p]
		if f.until.After(now) && f.cost <= s.Cost && (s.MaxWait <= 0 || f.at.Sub(now) >= ahead) {
			return verdict{wait: max(f.at.Sub(now), time.Millisecond), full: f.full}, true
		}
	}
	return verdict{}, false
}
