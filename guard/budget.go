package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/callers"
)

// A Budget is a fleet-wide allowance of cost per time for one upstream, which
// several guards may share. [github.com/stampedeguard/stampede/guard/budget]
// has one that lives in Redis. It is safe for concurrent use.
type Budget interface {
	// Spend takes s.Cost from the budget, at once or when it is there, within
	// s.MaxWait. Errors: [*ExhaustedError]; the cause of ctx's end, with nothing
	// spent.
	Spend(ctx context.Context, s Spending) (Expense, error)
	// Exhausted reports whether it is known here, without asking anybody, that a
	// Spend of that priority would be refused now.
	Exhausted(p Priority) bool
	// Known is what was last heard of the budget, without asking anybody.
	Known() BudgetState
}

// A Spending is what a call will take from a [Budget], as far as is known before
// it is made.
type Spending struct {
	Cost     int
	Priority Priority
	MaxWait  time.Duration // 0: at once or not at all
	MaxHold  time.Duration // how long the call may be under way; 0: the budget's default
}

// An Expense is a Spending that was granted.
type Expense interface {
	// Settle says that the call is over and what it did cost: the difference is
	// refunded, or owed. It is to be called once; later calls change nothing.
	Settle(actual int)
}

// BudgetState is what is known of a [Budget].
type BudgetState struct {
	Spent     int64         // by the fleet, settled
	Remaining int           // what could be spent at once
	Paused    time.Duration // for how long nothing will be granted, by the upstream's word
}

// Priority says whose fetches a [Budget] refuses first.
type Priority byte

const (
	// Normal is what callers wait for.
	Normal Priority = iota
	// Background gives way to Normal; refreshes in the background are, whatever the
	// policy says.
	Background
	// Critical may use the share that a budget keeps back from the others.
	Critical
)

func (p Priority) String() string {
	switch p {
	case Normal:
		return "normal"
	case Background:
		return "background"
	case Critical:
		return "critical"
	}
	return fmt.Sprintf("priority %d", byte(p))
}

// An ExhaustedError says that a budget has nothing left for a call that was to be
// made, and that the call was not made. It crosses processes: errors.As finds it
// in a [RemoteError] too.
type ExhaustedError struct {
	Budget string // its name
	// RetryAfter is when there may be something again, as far as was known when the
	// error was made; those who wait for the budget in this process come first.
	RetryAfter time.Duration
	// Waited is for how long the call waited in vain, and Allows is what the budget
	// allows, in words. Both stay in the process.
	Waited time.Duration
	Allows string
}

func (e *ExhaustedError) Error() string {
	text := fmt.Sprintf("guard: the budget %q is exhausted", e.Budget)
	if e.Waited > 0 {
		text += fmt.Sprintf(", the call waited %v for it", e.Waited.Round(time.Millisecond))
	}
	if e.Allows != "" {
		text += "; it allows " + e.Allows
	}
	return text + fmt.Sprintf("; retry after %v", e.RetryAfter)
}

// errNotWanted ends the wait for a budget when the fetch is of no use any more.
var errNotWanted = callers.ErrUnwanted

// Background, Lone and Deserted make a pursuit [callers.Callers].
func (p *pursuit) Background() bool { return p.background }

// Lone implements [callers.Callers].
func (p *pursuit) Lone() bool { return p.fs.lone(p.f) }

// Deserted implements [callers.Callers].
func (p *pursuit) Deserted() bool { return !p.background && p.fs.deserted(p.f) }

// afford spends what a fetch of this flight is estimated to cost, under a lease
// or without one (nil), waiting if somebody waits for it and there is nothing
// stale to live on. The fetch must not be made on an error.
func (p *pursuit) afford(f *fill, lease *cache.Lease) error {
	if p.policy.Budget == nil {
		return nil
	}
	s := Spending{Cost: p.policy.Cost, Priority: p.policy.Priority, MaxWait: p.policy.MaxBudgetWait}
	if s.MaxWait > 0 && p.livesOnStale() {
		p.recheck()
	}
	switch {
	case p.background:
		s.Priority, s.MaxWait = Background, 0
	case p.livesOnStale():
		s.MaxWait = 0
	case p.fs.lone(p.f):
		s.MaxWait = withinDeadline(s.MaxWait, p.call.ctx)
	}
	ctx := p.ctx
	if s.MaxWait > 0 {
		var lost <-chan struct{}
		if lease != nil {
			lost = lease.Lost()
		}
		var stop func()
		ctx, stop = callers.WhileWanted(ctx, lost, p.Deserted)
		defer stop()
	}
	return p.spend(ctx, p.call.key, s, f)
}

// livesOnStale reports whether the flight's callers have a stale value to live on
// if its budget is exhausted.
func (p *pursuit) livesOnStale() bool {
	return !p.call.force && p.policy.StaleIfError > 0 && servableIfError(p.known, time.Since(p.knownAt)) && p.maskable(&outcome{err: &ExhaustedError{}})
}

// maxDoomed is how many flights may ask for a lease though it is known that they
// can't pay for a fetch: they do it to find out whether another process fetches
// the key. In a storm of more, asking for nothing would be most of the load.
const maxDoomed = 8

// spared is the outcome of a flight that need not ask for a lease to learn that
// its budget is exhausted; nil: it is to ask. Call done at its end.
func (p *pursuit) spared() (o *outcome, done func()) {
	b := p.policy.Budget
	if b == nil || p.background || p.policy.MaxBudgetWait > 0 || !b.Exhausted(p.policy.Priority) {
		return nil, func() {}
	}
	done = func() { p.doomed.Add(-1) }
	if p.doomed.Add(1) <= maxDoomed {
		return nil, done
	}
	var f fill
	err := p.spend(p.ctx, p.call.key, Spending{Cost: p.policy.Cost, Priority: p.policy.Priority}, &f)
	if err == nil { // there is something again
		f.expense.Settle(0)
		return nil, done
	}
	return p.unaffordable(nil, err), done
}

// affordAlone is afford for a caller who fetches for itself.
func (e *engine) affordAlone(ctx context.Context, key string, f *fill) error {
	if e.policy.Budget == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(ErrClosed) })()
	return e.spend(ctx, key, Spending{
		Cost: e.policy.Cost, Priority: e.policy.Priority, MaxWait: withinDeadline(e.policy.MaxBudgetWait, ctx),
	}, f)
}

// affordMany is afford for one call of a fetch of many keys, one of which is
// named. The wait ends when unwanted is closed, or deserted says so (nil: never).
func (e *engine) affordMany(ctx context.Context, key string, s Spending, f *fill, unwanted <-chan struct{}, deserted func() bool) error {
	if e.policy.Budget == nil {
		return nil
	}
	if s.MaxWait > 0 {
		var stop func()
		ctx, stop = callers.WhileWanted(ctx, unwanted, deserted)
		defer stop()
	}
	return e.spend(ctx, key, s, f)
}

func (e *engine) spend(ctx context.Context, key string, s Spending, f *fill) error {
	s.MaxHold = e.policy.FetchTimeout
	start := time.Now()
	expense, err := e.policy.Budget.Spend(ctx, s)
	waited := time.Since(start)
	if err == nil {
		used := false
		defer refundUnless(&used, expense)
		f.cost, f.expense = s.Cost, expense
		if f.waited = waited >= time.Millisecond; f.waited {
			e.observe(Event{Kind: cache.BudgetWaited, Key: key, Duration: waited})
		}
		used = true
		return nil
	}
	var exhausted *ExhaustedError
	if errors.As(err, &exhausted) {
		e.observe(Event{Kind: cache.BudgetExhausted, Key: key, Duration: exhausted.RetryAfter, Err: err})
	}
	return err
}

// refundUnless gives an expense back, if there is one, that was not used: something
// panicked before its fetch was called, an Observer say.
func refundUnless(used *bool, x Expense) {
	if !*used && x != nil {
		x.Settle(0)
	}
}

// unaffordable is the outcome of a flight whose fetch was not made, and gives
// back its lease, if it has one.
func (p *pursuit) unaffordable(lease *cache.Lease, why error) *outcome {
	e := p.unpaid(lease, why)
	if lease == nil {
		return e.o
	}
	return p.giveBack(e)
}

// unpaid is the ending of a grant whose fetch was not made. Waiters elsewhere are told
// of an exhausted budget at once. Any other reason is this process's own.
func (p *pursuit) unpaid(lease *cache.Lease, why error) ending {
	if lease != nil && isExhausted(why) && p.engine.ctx.Err() == nil {
		return p.fail(lease, p.tick(), why)
	}
	if lease != nil {
		p.observe(Event{Kind: cache.LeaseReleased, Key: p.call.key, Token: lease.Token})
	}
	e := ending{back: cache.Return{Lease: lease}}
	switch {
	case p.engine.ctx.Err() != nil:
		e.o = guardClosed()
	case errors.Is(why, errNotWanted):
		e.o = goRound()
	default:
		e.o = &outcome{err: why, moment: p.tick()}
	}
	return e
}

// isExhausted reports whether an error says that a budget had nothing left.
func isExhausted(err error) bool {
	var exhausted *ExhaustedError
	return errors.As(err, &exhausted)
}

// withinDeadline is d, or what ctx leaves of it.
func withinDeadline(d time.Duration, ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return max(0, min(d, time.Until(end)))
	}
	return d
}

// lone reports whether the flight's first caller is there, and nobody else.
func (fs *flights) lone(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.before+f.after == 1 && !f.firstLeft
}
