package guard

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A payment is made before a fetch. The zero payment is that
// of a guard without a budget.
type payment struct {
	cost    int
	expense Expense // nil: there is no budget
	waited  bool
}

// refundUnless gives back a payment that was not used, as an Observer, say, panicked
// before the fetch was called.
func (p *payment) refundUnless(used *bool) { refundUnless(used, p.expense) }

func refundUnless(used *bool, x Expense) {
	if !*used && x != nil {
		x.Settle(0)
	}
}

// pay spends the estimated cost of one call of the fetch. It waits if a key has
// callers without a stale value to live on; but not longer than the call that leads
// does, if no other caller waits. The fetch must not be made on an error.
func (p *part) pay(turns []*turn) (payment, error) {
	l, e := p.l, p.l.e
	if e.policy.Budget == nil || l.paid {
		return payment{}, nil
	}
	s := Spending{Cost: e.policy.Cost, Priority: e.policy.Priority, MaxWait: e.policy.MaxBudgetWait}
	if s.MaxWait > 0 {
		p.recheck(slices.DeleteFunc(slices.Clone(turns), func(t *turn) bool { return !t.f.livesOnStale() }))
	}
	switch {
	case turns[0].f.kind == background:
		s.Priority, s.MaxWait = Background, 0
	case !slices.ContainsFunc(turns, func(t *turn) bool { return !t.f.livesOnStale() }):
		s.MaxWait = 0
	case p.lone():
		s.MaxWait = withinDeadline(s.MaxWait, l.caller)
	}
	ctx := p.ctx
	if s.MaxWait > 0 {
		var stop func()
		ctx, stop = whileWanted(ctx, nil, p.deserted)
		defer stop()
	}
	return e.payer.spend(ctx, turns[0].f.key, s)
}

// A payer spends from the policy's budget.
type payer struct {
	policy *Policy
	events *reporter
	name   string       // the budget's; empty: it has none
	doomed atomic.Int64 // flights that ask for a lease though the budget is known to be exhausted
}

// alone pays for a caller that fetches for itself, on the given context.
func (y *payer) alone(ctx context.Context, key string) (payment, error) {
	if y.policy.Budget == nil {
		return payment{}, nil
	}
	return y.spend(ctx, key, Spending{
		Cost: y.policy.Cost, Priority: y.policy.Priority, MaxWait: withinDeadline(y.policy.MaxBudgetWait, ctx),
	})
}

func (y *payer) spend(ctx context.Context, key string, s Spending) (payment, error) {
	s.MaxHold = y.policy.FetchTimeout
	start := time.Now()
	expense, err := y.policy.Budget.Spend(ctx, s)
	waited := time.Since(start)
	if err != nil {
		var exhausted *ExhaustedError
		if errors.As(err, &exhausted) {
			y.events.report(ctx, cache.BudgetExhausted, cache.Event{Budget: y.name, Priority: s.Priority.String(), Key: key, Duration: exhausted.RetryAfter, Err: err})
		}
		return payment{}, err
	}
	p := payment{cost: s.Cost, expense: expense, waited: waited >= time.Millisecond}
	used := false
	defer p.refundUnless(&used)
	if p.waited {
		y.events.report(ctx, cache.BudgetWaited, cache.Event{Budget: y.name, Priority: s.Priority.String(), Key: key, Duration: waited})
	}
	used = true
	return p, nil
}

// settleUnpaid ends turns after their fetch could not be paid.
func (p *part) settleUnpaid(turns []*turn, why error) {
	l, e := p.l, p.l.e
	ends := make([]ending, len(turns))
	for i, t := range turns {
		end := ending{t: t, start: e.sequence.Add(1)}
		switch {
		case e.ctx.Err() != nil:
			end.out = closedOutcome()
		case errors.Is(why, errNotWanted):
			end.out = retryOutcome()
		case isExhausted(why):
			end.fail(why) // waiters in other processes are told at once
		default:
			end.out = &outcome{err: why, moment: end.start}
		}
		if t.lease != nil && !end.back.Failed {
			e.events.report(l.ctx, cache.LeaseReleased, cache.Event{Key: t.f.key, Token: cache.Token(t.lease.Token)})
		}
		ends[i] = end
	}
	l.settle(ends)
}

// withinDeadline is d, or the time that ctx leaves if that is less.
func withinDeadline(d time.Duration, ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return max(0, min(d, time.Until(end)))
	}
	return d
}
