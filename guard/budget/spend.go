package budget

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

const (
	// ahead is how far ahead of its time a waiting call may be granted: enough that
	// nothing is lost while those who wait ask again, and no more than a Critical
	// call can bear to find in front of it.
	ahead = 20 * time.Millisecond
	// shortNap is the least time between two questions of one that waits.
	shortNap = 5 * time.Millisecond
	// slotPoll is how often one that waits asks for a place among MaxInFlight.
	slotPoll = 25 * time.Millisecond
	// remembered is how long a refusal is at most believed without asking again:
	// refunds and the end of a pause may come before the time that was told. For
	// Background it is at least that, and longer where the time is, as nobody waits.
	remembered           = 50 * time.Millisecond
	rememberedBackground = 250 * time.Millisecond
)

// A gate lets those who wait in this process ask in turn, so that questions
// don't grow with callers.
type gate struct {
	turn    chan struct{}
	waiting atomic.Int32
	until   time.Time // the latest deadline of those who wait or have waited; guarded by Budget.mu
}

// A verdict is the answer to one question for a call.
type verdict struct {
	granted bool
	wait    time.Duration // until the call may be made, or until it is worth asking again
	full    bool          // too many calls are under way: wait is only a poll
	expense *expense
}

// Spend takes the cost of a call from the budget, at once, or within s.MaxWait
// when it is there: one round trip, and none where it is known that there is
// nothing. Settle the expense when the call is over.
//
// Errors: [*ExhaustedError], at once where s.MaxWait is too short for the next
// slot that is known of; the cause of ctx's end; [ErrClosed].
func (b *Budget) Spend(ctx context.Context, s guard.Spending) (guard.Expense, error) {
	s.Cost = cost(s.Cost)
	if s.Priority > guard.Critical {
		return nil, fmt.Errorf("budget: Spend: there is no %v", s.Priority)
	}
	e, err := b.spend(ctx, demand{s, time.Now()})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// A demand is a call's spending, and since when it wants that.
type demand struct {
	guard.Spending
	began time.Time
}

func (d *demand) deadline() time.Time { return d.began.Add(d.MaxWait) }

// tooLate reports whether something that comes after a wait comes too late.
func (d *demand) tooLate(wait time.Duration) bool { return !time.Now().Add(wait).Before(d.deadline()) }

func (b *Budget) spend(ctx context.Context, d demand) (*expense, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	g := &b.gates[d.Priority]
	if d.MaxWait <= 0 || g.waiting.Load() == 0 {
		v, err := b.ask(ctx, d)
		switch {
		case err != nil:
			return nil, err
		case v.granted:
			return v.expense, b.sleep(ctx, v)
		case d.tooLate(v.wait):
			return nil, b.exhausted(d, v, int(g.waiting.Load()))
		}
	}
	return b.queue(ctx, d, g)
}

// queue waits for a turn, and then for a slot.
func (b *Budget) queue(ctx context.Context, d demand, g *gate) (*expense, error) {
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	b.mu.Lock()
	if d.deadline().After(g.until) {
		g.until = d.deadline()
	}
	b.mu.Unlock()
	others := func() int { return int(g.waiting.Load()) - 1 }
	timeout := time.NewTimer(time.Until(d.deadline()))
	defer timeout.Stop()
	select {
	case g.turn <- struct{}{}:
	case <-timeout.C:
		return nil, b.exhausted(d, b.nextSlot(d.Spending), others())
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-b.ctx.Done():
		return nil, b.errClosed
	}
	var v verdict
	for {
		var err error
		if v, err = b.ask(ctx, d); err != nil {
			<-g.turn
			return nil, err
		}
		if v.granted {
			break
		}
		if d.tooLate(v.wait) {
			<-g.turn
			return nil, b.exhausted(d, v, others())
		}
		// To ask shortly before the slot: what is granted then is ahead of its time.
		nap := max(shortNap, v.wait-ahead/2) - time.Duration(rand.Int64N(int64(shortNap/2)))
		var freed chan struct{}
		if v.full {
			freed = b.freed
		}
		if err := b.pause(ctx, nap, freed); err != nil {
			<-g.turn
			return nil, err
		}
	}
	<-g.turn // the next may ask while this one waits for its moment
	return v.expense, b.sleep(ctx, v)
}

// sleep waits until a grant may be used; who gives up gives it back.
func (b *Budget) sleep(ctx context.Context, v verdict) error {
	if v.wait <= 0 {
		return nil
	}
	err := b.pause(ctx, v.wait, nil)
	if err != nil {
		v.expense.Settle(0)
	}
	return err
}

// pause waits for d, or for early.
func (b *Budget) pause(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-early:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.ctx.Done():
		return b.errClosed
	}
}

// exhausted is the error for a call that v was the last answer for, while so many
// others wait in this process.
func (b *Budget) exhausted(d demand, v verdict, others int) error {
	e := &ExhaustedError{Budget: b.name, RetryAfter: v.wait, Allows: b.limit.words()}
	switch {
	case v.full: // a call may end at any time, so the time is only a poll
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

// takenBy is how long the other waiters of this process are served before a call that
// is made again after wait: one after the other, until the last of their deadlines.
// Their cost isn't known; it counts as that of the call.
func (b *Budget) takenBy(others int, d demand, wait time.Duration) time.Duration {
	rate := b.limit.rate()
	if b.isAway() {
		rate = b.local.rate()
	}
	each := float64(max(d.Cost, 1)) / rate
	b.mu.Lock()
	left := float64((time.Until(b.gates[d.Priority].until) - wait).Microseconds())
	b.mu.Unlock()
	if left <= 0 {
		return 0
	}
	served := min(float64(others), math.Floor(left/each)+1)
	return micros(int64(min(served*each, 1e15))) // as lua/state.lua bounds it
}

// ask asks once: this process's memory, then Redis, or the process's share while
// Redis is away.
func (b *Budget) ask(ctx context.Context, d demand) (verdict, error) {
	s := d.Spending
	if v, ok := b.recall(s); ok {
		return v, nil
	}
	early := max(0, min(ahead, time.Until(d.deadline())))
	if !b.isAway() {
		v, err := b.askRedis(ctx, s, early)
		if err == nil {
			return v, nil
		}
		if ctx.Err() != nil {
			return verdict{}, context.Cause(ctx)
		}
		if b.ctx.Err() != nil {
			return verdict{}, b.errClosed
		}
		b.wentAway(err)
	}
	if b.ctx.Err() != nil {
		return verdict{}, b.errClosed
	}
	wait, ok := b.local.take(time.Now(), s, early, b.holding())
	v := verdict{granted: ok, wait: wait, full: !ok && wait == slotPoll}
	if ok {
		v.expense = &expense{b: b, cost: s.Cost, local: true}
	}
	return v, nil
}

func (b *Budget) askRedis(ctx context.Context, s guard.Spending, early time.Duration) (verdict, error) {
	args := []any{
		b.rate(), s.Cost, decimal(b.limit.capacity(s.Priority)), early.Microseconds(), b.limit.MaxInFlight,
	}
	slot := ""
	if b.limit.MaxInFlight > 0 {
		slot = b.newSlot()
		args = append(args, slot, b.opts.SlotTTL.Microseconds(), b.names.alive)
		b.hold(slot, s.MaxHold)
	}
	keys := []string{b.names.state, b.names.inflight, b.names.doubted}
	asked := time.Now()
	// A grant whose answer comes too late is given back.
	r, err := b.call(ctx, spendScript, keys, args, func(r report) {
		if r.first == 0 {
			(&expense{b: b, cost: s.Cost, slot: slot, taken: r.taken}).Settle(0)
		}
	})
	if err != nil {
		b.release(slot)
		return verdict{}, err
	}
	b.heard(r)
	wait := micros(r.second)
	if r.first != 0 {
		b.release(slot)
		v := verdict{wait: wait}
		if r.first == 3 { // calls end at any time, whatever their slots say
			v.wait, v.full = min(wait, slotPoll), true
		}
		b.remember(s, asked, v)
		return v, nil
	}
	b.granted(slot)
	return verdict{granted: true, wait: wait, expense: &expense{b: b, cost: s.Cost, slot: slot, taken: r.taken}}, nil
}

// An expense is a grant, to be settled once.
type expense struct {
	b       *Budget
	cost    int
	slot    string // of a call that counts as under way; empty: none
	local   bool   // of this process's share
	taken   int64  // when, as the report has it
	settled atomic.Bool
}

// Settle implements [guard.Expense]. It asks Redis only if there is something to
// tell; what can't be told is told later.
func (e *expense) Settle(actual int) {
	if e.settled.Swap(true) {
		return
	}
	diff := cost(actual) - e.cost
	if e.local {
		e.b.local.ended()
		e.b.wake()
		if e.b.isAway() {
			e.b.local.settle(diff)
			return
		}
	}
	e.b.release(e.slot)
	if diff == 0 && e.slot == "" {
		return
	}
	var gone []string
	if e.slot != "" {
		gone = []string{e.slot}
	}
	e.b.settle(difference(int64(diff)), e.taken, gone)
}

func (b *Budget) settle(d debt, taken int64, gone []string) {
	if !b.isAway() {
		err := b.tellDebt(context.Background(), d, taken, gone)
		if err == nil {
			return
		}
		b.wentAway(err)
		d.refund = 0 // one that may have been made is not made twice
	}
	b.owe(d, gone...)
	b.beatSoon()
}

// tellDebt is lua/settle.lua.
func (b *Budget) tellDebt(ctx context.Context, d debt, taken int64, gone []string) error {
	args := []any{b.rate(), decimal(d.level), d.spent, d.refund, taken}
	for _, slot := range gone {
		args = append(args, slot)
	}
	r, err := b.call(ctx, settleScript, []string{b.names.state, b.names.inflight}, args, nil)
	if err != nil {
		return err
	}
	b.heard(r)
	if d.refund > 0 || len(gone) > 0 {
		b.forget()
		b.wake()
	}
	return nil
}

// wake lets the first of those who wait in this process ask again.
func (b *Budget) wake() {
	select {
	case b.freed <- struct{}{}:
	default:
	}
}
