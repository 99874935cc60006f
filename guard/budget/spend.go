package budget

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A demand is the spending of one call.
type demand struct {
	guard.Spending
	began  time.Time
	queued int32 // 1 if it is counted in gate.waiting
}

func (d *demand) deadline() time.Time { return d.began.Add(d.MaxWait) }

// Spend takes the cost of a call from the budget, at once or within s.MaxWait. It takes
// one round trip, and none if a refusal is known. Settle the expense when the call is
// over.
//
// Errors: [*ExhaustedError], at once if the units come after s.MaxWait; the cause of
// ctx's end; [ErrClosed].
func (b *Budget) Spend(ctx context.Context, s guard.Spending) (guard.Expense, error) {
	switch {
	case s.Priority > guard.Critical:
		return nil, fmt.Errorf("budget: Spend: there is no %v", s.Priority)
	case ctx == nil:
		return nil, errNilContext
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	s.Cost = b.limit.clampCost(s.Cost)
	d, v, err := demand{Spending: s, began: time.Now()}, verdict{}, error(nil)
	if s.MaxWait <= 0 || b.gates[s.Priority].waiting.Load() == 0 {
		v, err = b.ask(ctx, d)
	}
	if err == nil && !v.granted {
		v, err = b.queue(ctx, d)
	}
	if err != nil {
		return nil, err
	}
	e := &expense{b: b, cost: s.Cost, slot: v.slot, taken: v.taken, local: v.local}
	if v.wait > 0 {
		if err := b.server.wait(ctx, v.wait, nil); err != nil {
			e.Settle(0)
			return nil, err
		}
	}
	return e, nil
}

// queue waits for a turn to ask, and then for a grant.
func (b *Budget) queue(ctx context.Context, d demand) (verdict, error) {
	g := &b.gates[d.Priority]
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	d.queued = 1
	b.mu.Lock()
	g.until = later(g.until, d.deadline())
	b.mu.Unlock()
	timeout := time.NewTimer(time.Until(d.deadline()))
	defer timeout.Stop()
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-timeout.C:
		return verdict{}, b.exhausted(d, b.estimate(d.Spending))
	case <-ctx.Done():
		return verdict{}, context.Cause(ctx)
	case <-b.server.ctx.Done():
		return verdict{}, b.server.errClosed
	}
	for {
		v, err := b.ask(ctx, d)
		if err != nil || v.granted {
			return v, err
		}
		// A question shortly before the time of the units is granted ahead.
		nap := max(shortNap, v.wait-ahead/2) - time.Duration(rand.Int64N(int64(shortNap/2)))
		var freed chan struct{}
		if v.full {
			freed = b.freed
		}
		if err := b.server.wait(ctx, nap, freed); err != nil {
			return v, err
		}
	}
}

// estimate is the verdict on a call that got no turn in time.
func (b *Budget) estimate(s guard.Spending) verdict {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, ok := b.refusals.find(now, s); ok {
		return v
	}
	_, wait := b.currentLocked().next(now, s)
	if wait <= 0 && !b.away { // units are not the reason
		return verdict{wait: slotPoll, full: b.limit.MaxInFlight > 0}
	}
	return verdict{wait: wait}
}

// exhausted is the error of a call with the last verdict v.
func (b *Budget) exhausted(d demand, v verdict) error {
	allows := fmt.Sprintf("%d in %v, with a burst of %d", b.limit.Rate, b.limit.Per, b.limit.Burst)
	if seen := int(b.limit.capacity(d.Priority)); seen > 0 && seen < b.limit.Burst {
		allows += fmt.Sprintf(", of which %v calls may use %d", d.Priority, seen)
	}
	e := &ExhaustedError{Budget: b.name, RetryAfter: v.wait, Allows: allows}
	switch {
	case v.full: // a call may end at any time, so the wait is only a poll interval
		e.Allows = fmt.Sprintf("%d calls under way at once", b.limit.MaxInFlight)
	case b.Known().Paused > 0:
		e.Allows = "nothing while the upstream wants a pause"
		fallthrough
	default:
		e.RetryAfter += b.takenByOthers(d, v.wait)
	}
	const ms = time.Millisecond
	e.RetryAfter = max((e.RetryAfter + ms - 1).Truncate(ms), ms)
	if waited := time.Since(d.began); waited >= ms {
		e.Waited = waited
	}
	return e
}

// takenByOthers is the time for which the other waiters of this process are served after
// wait: one after the other, until the last of their deadlines. Their costs are unknown and
// counted as d's.
func (b *Budget) takenByOthers(d demand, wait time.Duration) time.Duration {
	g := &b.gates[d.Priority]
	others := float64(g.waiting.Load() - d.queued)
	b.mu.Lock()
	defer b.mu.Unlock()
	each := float64(max(d.Cost, 1)) / b.currentLocked().rate()
	left := float64((time.Until(g.until) - wait).Microseconds())
	return micros(each * min(others, math.Floor(left/each)+1))
}

// ask asks once. A refusal until after the deadline is an error.
func (b *Budget) ask(ctx context.Context, d demand) (verdict, error) {
	v, err := b.question(ctx, d)
	if err == nil && !v.granted && !time.Now().Add(v.wait).Before(d.deadline()) {
		err = b.exhausted(d, v)
	}
	return v, err
}

// question goes to the known refusals, then to Redis, or to this process's share while
// Redis is away.
func (b *Budget) question(ctx context.Context, d demand) (verdict, error) {
	early := max(0, min(ahead, time.Until(d.deadline())))
	b.mu.Lock()
	v, known := b.refusals.find(time.Now(), d.Spending)
	away := b.away
	b.mu.Unlock()
	if known {
		return v, nil
	}
	if !away {
		v, err := b.askRedis(ctx, d.Spending, early)
		if err == nil {
			return v, nil
		}
		if ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
		b.wentAway(err)
	}
	if b.server.ctx.Err() != nil {
		return v, b.server.errClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.local.take(time.Now(), d.Spending, early, len(b.held)), nil
}

func (b *Budget) askRedis(ctx context.Context, s guard.Spending, early time.Duration) (verdict, error) {
	slot, asked := "", time.Now()
	args := []any{s.Cost, decimal(b.limit.capacity(s.Priority)), early.Microseconds(), b.limit.MaxInFlight}
	if b.limit.MaxInFlight > 0 {
		slot = b.newSlot()
		args = append(args, slot, b.opts.SlotTTL.Microseconds(), b.server.prefix+"alive:")
	}
	r, err := b.call(ctx, spendScript, func(r report) {
		if r.first == 0 {
			(&expense{b: b, cost: s.Cost, slot: slot, taken: r.taken}).Settle(0)
		}
	}, nil, args...)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{wait: micros(float64(r.second)), full: r.first == 3}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.first == 0 {
		if slot != "" {
			b.held[slot] = asked.Add(cmp.Or(max(s.MaxHold, 0), defaultHold))
		}
		v.granted, v.slot, v.taken = true, slot, r.taken
		return v, nil
	}
	if v.full { // calls end at any time, whatever the expiry of their slots
		v.wait = min(v.wait, slotPoll)
	}
	b.refusals.add(s, asked, v)
	return v, nil
}

// newSlot names a call for MaxInFlight. The plus sign says that Redis confirmed this
// process's subscription: only then can lua/spend.lua miss the process.
func (b *Budget) newSlot() string {
	mark := "-"
	if b.alive.seen.Load() {
		mark = "+"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counter++
	return fmt.Sprintf("%s.%d%s", b.process, b.counter, mark)
}

// An expense is a grant, which is settled once.
type expense struct {
	b       *Budget
	cost    int
	slot    string // of a call that counts as under way; empty: none
	local   bool   // granted from this process's share
	taken   int64  // see report
	settled atomic.Bool
}

// Settle implements [guard.Expense]. It asks Redis only if there is a difference or a
// slot to report. A report that fails is made later.
func (e *expense) Settle(actual int) {
	if e.settled.Swap(true) {
		return
	}
	b, diff := e.b, e.b.limit.clampCost(actual)-e.cost
	b.mu.Lock()
	delete(b.held, e.slot)
	here := e.local && b.away
	if e.local {
		b.local.calls--
		signal(b.freed)
	}
	if here {
		b.local.settle(diff)
	}
	b.mu.Unlock()
	if here || diff == 0 && e.slot == "" {
		return
	}
	d := difference(int64(diff))
	d.taken = e.taken
	if e.slot != "" {
		d.slots = []string{e.slot}
	}
	b.settle(d)
}
