package budget

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

const (
	// beatEvery is how often a process tells that it is there, at most; processSeen
	// is how long it counts after that.
	beatEvery   = 2 * time.Second
	processSeen = 7 * time.Second
	// knock is how often a Redis that is away is tried.
	knock = 250 * time.Millisecond
	// soonKnown is how long what tells that Redis is away waits to be told why: a dial
	// that is refused takes less.
	soonKnown = 20 * time.Millisecond
	// defaultHold is for how long a slot is renewed where the call doesn't say.
	defaultHold = 5 * time.Minute
)

// beatLoop ends with Close.
func (b *Budget) beatLoop() {
	every := min(beatEvery, b.opts.SlotTTL/3)
	wait := every
	for {
		t := time.NewTimer(wait)
		select {
		case <-b.ctx.Done():
			t.Stop()
			return
		case <-b.nudge:
			t.Stop()
			if b.isAway() && b.pause(b.ctx, knock, nil) != nil {
				return
			}
		case <-t.C:
		}
		wait = every
		if err := b.beat(); errors.Is(err, ErrClosed) {
			return
		} else if err != nil {
			b.wentAway(err)
			wait = knock
		}
	}
}

// beatSoon is called with b.mu held, or without.
func (b *Budget) beatSoon() {
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}

// beat tells Redis that this process is there, renews its slots, and settles
// what is owed.
func (b *Budget) beat() error { return b.beatNow(b.ctx) }

func (b *Budget) beatNow(ctx context.Context) error {
	now := time.Now()
	reply, err := b.tellHolds(ctx, now)
	if err != nil {
		return err
	}
	if b.isAway() {
		b.local.seen(int(reply.first))
		b.owe(b.local.outstanding(now))
	}
	b.heard(reply)
	if err := errors.Join(b.payDebts(), b.sayPause()); err != nil {
		return err
	}
	b.local.seen(int(reply.first))
	b.mu.Lock()
	b.processes, b.inFlight = int(reply.first), int(reply.second)
	b.mu.Unlock()
	b.cameBack()
	return nil
}

// tellHolds sends a beat.
func (b *Budget) tellHolds(ctx context.Context, now time.Time) (report, error) {
	select {
	case b.beats <- struct{}{}:
		defer func() { <-b.beats }()
	case <-ctx.Done():
		return report{}, context.Cause(ctx)
	case <-b.ctx.Done():
		return report{}, b.errClosed
	}
	args := []any{b.rate(), b.process, processSeen.Microseconds(), b.opts.SlotTTL.Microseconds()}
	var slots []string
	b.mu.Lock()
	for slot, h := range b.held {
		switch {
		case !now.Before(h.until):
			delete(b.held, slot)
		case h.granted:
			slots, args = append(slots, slot), append(args, slot)
		}
	}
	b.mu.Unlock()
	reply, err := b.call(ctx, beatScript, []string{b.names.state, b.names.inflight, b.names.processes}, args, nil)
	if err == nil {
		b.takeBack(slots)
	}
	return reply, err
}

// takeBack sees to it that a beat has brought no slot back whose call ended while
// it was on its way.
func (b *Budget) takeBack(told []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, slot := range told {
		if _, ok := b.held[slot]; !ok {
			b.gone = append(b.gone, slot)
		}
	}
}

// payDebts tells Redis what it could not be told when it was due.
func (b *Budget) payDebts() error {
	b.mu.Lock()
	owed, gone := b.owed, b.gone
	b.owed, b.gone = debt{}, nil
	b.mu.Unlock()
	if owed == (debt{}) && len(gone) == 0 {
		return nil
	}
	err := b.tellDebt(b.ctx, owed, 0, gone)
	if err != nil && !errors.Is(err, errTimeout) { // else it may have been done
		owed.refund = 0 // see settle
		b.owe(owed, gone...)
	}
	return err
}

func (b *Budget) isAway() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

// wentAway is called when Redis didn't answer: from now on until a beat is
// answered, the process lives on its share.
func (b *Budget) wentAway(why error) {
	if b.ctx.Err() != nil {
		return
	}
	now := time.Now()
	b.mu.Lock()
	first := !b.away
	if first {
		b.away, b.awayAt = true, now
		// Under the lock, so that nobody finds the share as it was left.
		b.local.begin(now, b.levelLocked(now))
		b.local.pause(now, max(b.unsaid.Sub(now), b.pausedLocked(now)))
	}
	b.mu.Unlock()
	b.beatSoon()
	if first {
		ctx, cancel := context.WithTimeout(b.ctx, soonKnown)
		b.node.Known(ctx)
		cancel()
		b.observe(cache.Event{Kind: cache.BudgetAway, Err: why})
	}
}

// A debt is what Redis has to be told: units that have to leak there yet, units
// that were spent, and units to give back of what it was told before. What is
// given back is kept apart, as it can't pay for what has to leak: the bucket that
// it goes to may be empty by now.
type debt struct {
	level  float64
	spent  int64
	refund int64
}

// difference is what Redis has to be told of a call that cost so much more, or
// less, than was spent for it.
func difference(diff int64) debt {
	if diff < 0 {
		return debt{refund: -diff}
	}
	return debt{level: float64(diff), spent: diff}
}

func (b *Budget) owe(d debt, gone ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owed.level = min(b.owed.level+d.level, maxUnits)
	b.owed.spent += d.spent
	b.owed.refund += d.refund
	b.gone = append(b.gone, gone...)
}

// cameBack is called when a beat was answered.
func (b *Budget) cameBack() {
	b.mu.Lock()
	was, since := b.away, b.awayAt
	b.away = false
	late := !b.unsaid.IsZero()
	b.mu.Unlock()
	if !was {
		return
	}
	spent := b.local.outstanding(time.Now())
	b.owe(spent)
	if late || spent != (debt{}) { // it came when those before it had been told
		b.beatSoon()
	}
	b.observe(cache.Event{Kind: cache.BudgetBack, Duration: time.Since(since)})
}

// newSlot names a call that will be under way. A + says that Redis was heard to
// have this process subscribed: then it can be missed.
func (b *Budget) newSlot() string {
	mark := "-"
	if b.alive.confirmed() {
		mark = "+"
	}
	return b.process + "." + decimal(float64(b.numbers.Add(1))) + mark
}

// A holding is a slot that this process has, or has asked for.
type holding struct {
	until   time.Time // it is renewed
	granted bool
}

// hold keeps a slot for that long, once it is granted.
func (b *Budget) hold(slot string, d time.Duration) {
	if d <= 0 {
		d = defaultHold
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[slot] = holding{until: time.Now().Add(d)}
}

// granted renews a slot from now on.
func (b *Budget) granted(slot string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h, ok := b.held[slot]; ok {
		h.granted = true
		b.held[slot] = h
	}
}

// holding is how many calls of this process are under way by Redis's leave.
func (b *Budget) holding() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.held)
}

// release ends the renewal of a slot, if there is one.
func (b *Budget) release(slot string) {
	if slot == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, slot)
}
