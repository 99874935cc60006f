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

const (
	// ahead is how far ahead of its time a waiting call may be granted. It covers the
	// round trip of the next question, so that no units are lost, and it bounds the
	// waiting calls that a Critical call finds in front of it.
	ahead = 20 * time.Millisecond
	// shortNap is the least time between two questions of a waiter.
	shortNap = 5 * time.Millisecond
	// slotPoll is the pause between questions for a place among MaxInFlight.
	slotPoll = 25 * time.Millisecond
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
	expense *expense      // of a grant
}

// A demand is a spending and the time of the call that wants it.
type demand struct {
	guard.Spending
	began time.Time
}

func (d *demand) deadline() time.Time { return d.began.Add(d.MaxWait) }

func (d *demand) tooLate(wait time.Duration) bool { return !time.Now().Add(wait).Before(d.deadline()) }

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
	s.Cost = clampCost(s.Cost)
	d, g := demand{s, time.Now()}, &b.gates[s.Priority]
	v, err := verdict{}, error(nil)
	asked := s.MaxWait <= 0 || g.waiting.Load() == 0
	if asked {
		v, err = b.ask(ctx, d)
	}
	switch {
	case err != nil:
		return nil, err
	case asked && !v.granted && d.tooLate(v.wait):
		return nil, b.exhausted(d, v, int(g.waiting.Load()))
	case !v.granted:
		v, err = b.queue(ctx, d, g)
	}
	if err == nil && v.wait > 0 {
		if err = b.server.wait(ctx, v.wait, nil); err != nil {
			v.expense.Settle(0)
		}
	}
	if err != nil {
		return nil, err
	}
	return v.expense, nil
}

// queue waits for a turn to ask, and then for a grant.
func (b *Budget) queue(ctx context.Context, d demand, g *gate) (verdict, error) {
	others := func() int { return int(g.waiting.Load()) - 1 }
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	b.mu.Lock()
	g.until = later(g.until, d.deadline())
	b.mu.Unlock()
	timeout := time.NewTimer(time.Until(d.deadline()))
	defer timeout.Stop()
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-timeout.C:
		return verdict{}, b.exhausted(d, b.estimate(d.Spending), others())
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
		if d.tooLate(v.wait) {
			return v, b.exhausted(d, v, others())
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

// exhausted is the error of a call with the last verdict v, while others wait in this
// process.
func (b *Budget) exhausted(d demand, v verdict, others int) error {
	e := &ExhaustedError{Budget: b.name, RetryAfter: v.wait, Allows: b.limit.words()}
	switch {
	case v.full: // a call may end at any time, so the wait is only a poll interval
		e.Allows = fmt.Sprintf("%d calls under way at once", b.limit.MaxInFlight)
	case b.Known().Paused > 0:
		e.Allows = "nothing while the upstream wants a pause"
		fallthrough
	default:
		e.RetryAfter += b.takenBy(others, d, v.wait)
	}
	const ms = time.Millisecond
	e.RetryAfter = max((e.RetryAfter + ms - 1).Truncate(ms), ms)
	if waited := time.Since(d.began); waited >= ms {
		e.Waited = waited
	}
	return e
}

// takenBy is the time for which the other waiters of this process are served after wait:
// one after the other, until the last of their deadlines. Their costs are unknown and
// counted as d's.
func (b *Budget) takenBy(others int, d demand, wait time.Duration) time.Duration {
	b.mu.Lock()
	each := float64(max(d.Cost, 1)) / b.currentLocked().rate()
	left := float64((time.Until(b.gates[d.Priority].until) - wait).Microseconds())
	b.mu.Unlock()
	if left <= 0 {
		return 0
	}
	return micros(each * min(float64(others), math.Floor(left/each)+1))
}

// ask asks once: the known refusals, then Redis, or this process's share while Redis is
// away.
func (b *Budget) ask(ctx context.Context, d demand) (verdict, error) {
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
	v = b.local.take(time.Now(), d.Spending, early, len(b.held))
	v.expense = &expense{b: b, cost: d.Cost, local: true}
	return v, nil
}

func (b *Budget) askRedis(ctx context.Context, s guard.Spending, early time.Duration) (verdict, error) {
	args := []any{s.Cost, decimal(b.limit.capacity(s.Priority)), early.Microseconds(), b.limit.MaxInFlight}
	e := &expense{b: b, cost: s.Cost}
	if b.limit.MaxInFlight > 0 {
		e.slot = b.newSlot()
		args = append(args, e.slot, b.opts.SlotTTL.Microseconds(), b.server.prefix+"alive:")
	}
	asked := time.Now()
	giveBack := func(r report) {
		if r.first == 0 {
			e.taken = r.taken
			e.Settle(0)
		}
	}
	r, err := b.call(ctx, spendScript, giveBack, nil, args...)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{granted: r.first == 0, wait: micros(float64(r.second)), full: r.first == 3, expense: e}
	b.mu.Lock()
	defer b.mu.Unlock()
	if v.granted {
		e.taken = r.taken
		if e.slot != "" {
			b.held[e.slot] = asked.Add(cmp.Or(max(s.MaxHold, 0), defaultHold))
		}
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
	b, diff := e.b, clampCost(actual)-e.cost
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
