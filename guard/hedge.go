package guard

import (
	"context"
	"time"
)

// A hedge watches the lookups of a guard: where the store is silent for some time, callers
// may be served from the reserve. One timer serves all lookups, and runs while there are
// any. A timer for each caller would cost more than the rest of a hit.
type hedge struct {
	timer *time.Timer
	rings time.Time // zero: the timer is not set
}

// A patience is how long a lookup is waited for before the reserve is looked into.
type patience struct {
	begin time.Time
	d     time.Duration
	n     int // how often so long has been waited
}

func (p *patience) end() time.Time { return p.begin.Add(p.d) }

// startLocked begins to watch a lookup. lookups.mu is held.
func (h *hedge) startLocked(ls *lookups, lk *lookup) {
	s := ls.e.reserve
	if s == nil {
		return
	}
	lk.patience = patience{begin: time.Now(), d: s.patience(), n: 1}
	h.setLocked(ls, lk.end())
}

func (h *hedge) setLocked(ls *lookups, end time.Time) {
	if !h.rings.IsZero() && !end.Before(h.rings) {
		return
	}
	h.rings = end
	if h.timer == nil {
		h.timer = time.AfterFunc(time.Until(end), ls.hurry)
	} else {
		h.timer.Reset(time.Until(end))
	}
}

func (h *hedge) stop() {
	if h.timer != nil {
		h.timer.Stop()
	}
}

// hurry wakes the callers of the lookups for which the store has been silent for too long.
func (ls *lookups) hurry() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.hedge.rings = time.Time{}
	if ls.closed {
		return
	}
	s := ls.e.reserve
	for lk := range ls.underWayLocked {
		switch {
		case lk.late != nil:
			continue // its callers know
		case time.Now().Before(lk.end()):
		case s.silent(lk.begin, lk.d, lk.n):
			lk.late = make(chan struct{})
			close(lk.done)
			continue
		default:
			lk.patience = patience{begin: time.Now(), d: s.patience(), n: lk.n + 1}
		}
		ls.hedge.setLocked(ls, lk.end())
	}
}

// waitHedged is wait, but for a key that the reserve has: if the store is silent for some
// time, the outcome is instead returned. Then the read goes on for later callers.
func (lk *lookup) waitHedged(ctx context.Context, instead func(why error) *outcome) (*read, *outcome) {
	if ended := await(ctx, lk.done); ended != nil {
		return ended, nil
	}
	if !lk.answered.Load() {
		if o := instead(errSilent); o != nil {
			return nil, o
		}
	}
	return lk.wait(ctx), nil
}
