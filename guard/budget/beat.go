package budget

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

const (
	// beatEvery is the longest time between reports of this process; processSeen is how
	// long Redis counts it after one.
	beatEvery   = 2 * time.Second
	processSeen = 7 * time.Second
	// knock is the pause between attempts to reach a Redis that is away.
	knock = 250 * time.Millisecond
	// soonKnown bounds the wait for the cause of an outage before its event: a refused
	// dial takes less.
	soonKnown = 20 * time.Millisecond
)

// beatLoop ends with Close.
func (b *Budget) beatLoop() {
	ctx, every := b.server.ctx, min(beatEvery, b.opts.SlotTTL/3)
	for b.server.wait(ctx, every, b.nudge) == nil {
		if b.isAway() && b.server.wait(ctx, knock, nil) != nil {
			return
		}
		if err := b.beat(ctx); err != nil {
			b.wentAway(err)
		}
	}
}

// signal never blocks: one pending signal is enough.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// beat reports this process and its calls to Redis, and then everything that is owed.
func (b *Budget) beat(ctx context.Context) error {
	select {
	case b.beats <- struct{}{}:
		defer func() { <-b.beats }()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.server.ctx.Done():
		return b.server.errClosed
	}
	now := time.Now()
	b.mu.Lock()
	maps.DeleteFunc(b.held, func(_ string, until time.Time) bool { return !now.Before(until) })
	renewed := slices.Collect(maps.Keys(b.held))
	b.mu.Unlock()
	r, err := b.call(ctx, beatScript, nil, renewed, b.process, processSeen.Microseconds(), b.opts.SlotTTL.Microseconds())
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.processes, b.inFlight = int(r.first), int(r.second)
	b.local.among = max(1, float64(r.first))
	if b.away {
		b.owed.add(b.local.outstanding(now))
	}
	for _, slot := range renewed { // the beat brought back a slot that was released meanwhile
		if _, ok := b.held[slot]; !ok {
			b.owed.slots = append(b.owed.slots, slot)
		}
	}
	owed, pause := b.owed, b.unsaid
	b.owed = debt{}
	b.mu.Unlock()
	if !owed.empty() {
		err = b.pay(owed)
	}
	if left := time.Until(pause); err == nil && left > 0 {
		_, err = b.call(ctx, learnScript, nil, nil, b.limit.Burst, left.Microseconds(), -1, 0)
	}
	if err == nil {
		b.cameBack(pause)
	}
	return err
}

// Peek asks Redis for the state and spends nothing. While Redis is away it returns the
// state of this process's share. Errors: the cause of ctx's end; [ErrClosed].
func (b *Budget) Peek(ctx context.Context) (guard.BudgetState, error) {
	if ctx == nil {
		return guard.BudgetState{}, errNilContext
	}
	err := b.beat(ctx)
	if err != nil && ctx.Err() != nil {
		return guard.BudgetState{}, context.Cause(ctx)
	}
	if b.server.ctx.Err() != nil {
		return guard.BudgetState{}, b.server.errClosed
	}
	return b.Known(), nil
}

// settle reports a debt now, or with a later beat.
func (b *Budget) settle(d debt) {
	if b.isAway() {
		b.owe(d)
		signal(b.nudge)
	} else if err := b.pay(d); err != nil {
		b.wentAway(err)
	}
}

// pay is lua/settle.lua. After an error the debt is owed, without its refund: Redis may
// have made it.
func (b *Budget) pay(d debt) error {
	_, err := b.call(context.Background(), settleScript, nil, d.slots, decimal(d.level), d.spent, d.refund, d.taken)
	if err != nil {
		d.refund = 0
		b.owe(d)
		return err
	}
	if d.refund > 0 || len(d.slots) > 0 {
		b.mayAskAgain()
	}
	return nil
}

// mayAskAgain forgets refusals and wakes the first waiter of this process.
func (b *Budget) mayAskAgain() {
	b.mu.Lock()
	b.refusals = refusals{}
	b.mu.Unlock()
	signal(b.freed)
}

// wentAway makes the process spend its share until a beat is answered.
func (b *Budget) wentAway(why error) {
	now := time.Now()
	b.mu.Lock()
	first := !b.away && b.server.ctx.Err() == nil
	if first {
		b.away, b.awayAt = true, now
		b.local.begin(now, b.fleet.levelAt(now))
		b.local.paused = later(b.unsaid, b.fleet.paused)
	}
	b.mu.Unlock()
	signal(b.nudge)
	if first {
		ctx, cancel := context.WithTimeout(b.server.ctx, soonKnown)
		b.server.node.Known(ctx)
		cancel()
		b.observe(cache.Event{Kind: cache.BudgetAway, Err: why})
	}
}

// cameBack ends an outage, and the pause that Redis was told. Units that were spent and a
// pause that began during the beat are reported by the next one.
func (b *Budget) cameBack(pause time.Time) {
	b.mu.Lock()
	if b.unsaid.Equal(pause) {
		b.unsaid = time.Time{}
	}
	was := b.away
	b.away = false
	if was {
		b.owed.add(b.local.outstanding(time.Now()))
		if !b.owed.empty() || !b.unsaid.IsZero() {
			signal(b.nudge)
		}
	}
	took := time.Since(b.awayAt)
	b.mu.Unlock()
	if was {
		b.observe(cache.Event{Kind: cache.BudgetBack, Duration: took})
	}
}

// Learn applies the limits that an upstream's response states: see [Advise]. They lower
// the fleet's spending and never raise it. Learn returns the advice that it found; most
// responses have none, and Redis is not asked.
//
// Errors: those of Redis, which is away then. This process applies its part of the
// advice all the same.
func (b *Budget) Learn(ctx context.Context, status int, header http.Header) (Advice, error) {
	a := Advise(status, header, time.Now())
	return a, b.Heed(ctx, a)
}

// Heed applies an advice in the whole fleet, for Options.MaxPause at most. Errors as of
// Learn.
func (b *Budget) Heed(ctx context.Context, a Advice) error {
	if ctx == nil {
		return errNilContext
	}
	a.Pause = max(0, min(a.Pause, b.opts.MaxPause))
	a.Reset = max(0, min(a.Reset, b.opts.MaxPause))
	most := float64(b.limit.Burst) + b.limit.rate()*float64(a.Reset.Microseconds())
	if a.Pause == 0 && (a.Remaining < 0 || float64(a.Remaining) >= most) {
		return nil // the limit allows no more than the upstream
	}
	a.Remaining = min(a.Remaining, maxUnits)
	pause := a.Pause
	if a.Remaining == 0 {
		pause = max(pause, a.Reset)
	}
	if pause > b.Known().Paused {
		b.observe(cache.Event{Kind: cache.BudgetPaused, Duration: pause})
	}
	err := b.learn(ctx, a.Pause.Microseconds(), a.Remaining, a.Reset)
	if err == nil {
		return nil
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if pause > 0 { // reported later
		b.unsaid = later(b.unsaid, now.Add(pause))
		b.local.paused = later(b.unsaid, b.fleet.paused)
	}
	if a.Remaining >= 0 {
		b.local.learn(now, a.Remaining, a.Reset)
	}
	return err
}

// Pause stops grants in the whole fleet for d, at most Options.MaxPause. A longer pause
// that has begun stays. Errors as of Learn.
func (b *Budget) Pause(ctx context.Context, d time.Duration) error {
	return b.Heed(ctx, Advice{Pause: d, Remaining: -1})
}

// Resume is for operators: it ends a pause and forgets the upstream's advice. Other
// processes may use a refusal for another quarter of a second. Errors as of Learn.
func (b *Budget) Resume(ctx context.Context) error {
	if ctx == nil {
		return errNilContext
	}
	defer b.mayAskAgain()
	b.mu.Lock()
	b.unsaid, b.local.paused, b.local.reset = time.Time{}, time.Time{}, time.Time{}
	b.mu.Unlock()
	return b.learn(ctx, -1, -1, 0)
}

// errAway is the error of a report that is not tried.
var errAway = errors.New("budget: Redis is away")

// learn reports to Redis, for the fleet: the end of ctx does not end it.
func (b *Budget) learn(ctx context.Context, pause int64, remaining int, reset time.Duration) error {
	if b.isAway() {
		return errAway
	}
	_, err := b.call(context.WithoutCancel(ctx), learnScript, nil, nil, b.limit.Burst, pause, remaining, reset.Microseconds())
	if err != nil {
		b.wentAway(err)
	}
	return err
}
