package guard

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/callers"
)

// errNotWanted ends the wait for a budget when the fetch is of no use any more.
var errNotWanted = callers.ErrUnwanted

// A payment is what a fetch was paid with before it is made. The zero payment is that
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

// pay spends what one call of the fetch is estimated to cost. It waits if a key has
// callers without a stale value to live on; but not longer than the call that leads
// does, if no other caller waits. The fetch must not be made on an error.
func (p *part) pay(turns []*turn) (payment, error) {
	l, e := p.l, p.l.e
	if e.policy.Budget == nil {
		return payment{}, nil
	}
	s := Spending{Cost: e.policy.Cost, Priority: e.policy.Priority, MaxWait: e.policy.MaxBudgetWait}
	if s.MaxWait > 0 {
		l.recheck(slices.DeleteFunc(slices.Clone(turns), func(t *turn) bool { return !t.f.livesOnStale() }))
	}
	switch {
	case turns[0].f.kind == background:
		s.Priority, s.MaxWait = Background, 0
	case !slices.ContainsFunc(turns, func(t *turn) bool { return !t.f.livesOnStale() }):
		s.MaxWait = 0
	case p.Lone():
		s.MaxWait = withinDeadline(s.MaxWait, l.caller)
	}
	ctx := p.ctx
	if s.MaxWait > 0 {
		var stop func()
		ctx, stop = callers.WhileWanted(ctx, nil, p.deserted)
		defer stop()
	}
	return e.spend(ctx, turns[0].f.key, s)
}

// livesOnStale reports whether the flight's callers have a stale value to live on if
// the budget is exhausted.
func (f *flight) livesOnStale() bool {
	return f.kind != forced && f.e.policy.StaleIfError > 0 &&
		servableIfError(f.known.found(), f.known.waited()) && f.e.maskable(&outcome{err: &ExhaustedError{}})
}

// payAlone is pay for a caller that fetches for itself, on the given context.
func (e *engine) payAlone(ctx context.Context, key string) (payment, error) {
	if e.policy.Budget == nil {
		return payment{}, nil
	}
	return e.spend(ctx, key, Spending{
		Cost: e.policy.Cost, Priority: e.policy.Priority, MaxWait: withinDeadline(e.policy.MaxBudgetWait, ctx),
	})
}

func (e *engine) spend(ctx context.Context, key string, s Spending) (payment, error) {
	s.MaxHold = e.policy.FetchTimeout
	start := time.Now()
	expense, err := e.policy.Budget.Spend(ctx, s)
	waited := time.Since(start)
	if err != nil {
		var exhausted *ExhaustedError
		if errors.As(err, &exhausted) {
			e.events.report(ctx, cache.BudgetExhausted, Event{Budget: e.budget, Priority: s.Priority.String(), Key: key, Duration: exhausted.RetryAfter, Err: err})
		}
		return payment{}, err
	}
	p := payment{cost: s.Cost, expense: expense, waited: waited >= time.Millisecond}
	used := false
	defer p.refundUnless(&used)
	if p.waited {
		e.events.report(ctx, cache.BudgetWaited, Event{Budget: e.budget, Priority: s.Priority.String(), Key: key, Duration: waited})
	}
	used = true
	return p, nil
}

// settleUnpaid ends the turns whose fetch could not be paid.
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
			e.events.report(l.ctx, cache.LeaseReleased, Event{Key: t.f.key, Token: cache.Token(t.lease.Token)})
		}
		ends[i] = end
	}
	l.settle(ends)
}

// isExhausted reports whether an error says that a budget had nothing left.
func isExhausted(err error) bool {
	var exhausted *ExhaustedError
	return errors.As(err, &exhausted)
}

// maxDoomed is how many flights may ask for a lease though their guard's budget is
// known to be exhausted: they find out whether another process fetches the key. In a
// storm of more, futile acquires would be most of the load.
const maxDoomed = 8

// spare returns the outcome of a flight that need not ask for a lease to learn that
// its budget is exhausted; nil: it is to ask. Call done at its end.
func (l *leader) spare(f *flight) (o *outcome, done func()) {
	e := l.e
	b := e.policy.Budget
	if b == nil || f.kind == background || e.policy.MaxBudgetWait > 0 || !b.Exhausted(e.policy.Priority) {
		return nil, func() {}
	}
	done = func() { e.doomed.Add(-1) }
	if e.doomed.Add(1) <= maxDoomed {
		return nil, done
	}
	paid, err := e.spend(l.ctx, f.key, Spending{Cost: e.policy.Cost, Priority: e.policy.Priority})
	if err == nil { // there is something again
		paid.expense.Settle(0)
		return nil, done
	}
	if e.ctx.Err() != nil {
		return closedOutcome(), done
	}
	return &outcome{err: err, moment: e.sequence.Add(1)}, done
}

// withinDeadline is d, or what ctx leaves of it.
func withinDeadline(d time.Duration, ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return max(0, min(d, time.Until(end)))
	}
	return d
}
