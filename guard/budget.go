package guard

import (
	"context"
	"fmt"
	"time"
)

// A Budget is a fleet-wide allowance of cost per time for one upstream, which
// several guards may share. [github.com/stampedeguard/stampede/guard/budget]
// has one that lives in Redis. It is safe for concurrent use.
type Budget interface {
	// Spend takes s.Cost from the budget, and waits for it up to s.MaxWait. Errors:
	// [*ExhaustedError]; the cause of ctx's end. Nothing is spent on an error.
	Spend(ctx context.Context, s Spending) (Expense, error)
	// Exhausted reports whether this process knows that a Spend of that priority would
	// be refused now. It does no I/O.
	Exhausted(p Priority) bool
	// Known is the last state that this process has heard of. It does no I/O.
	Known() BudgetState
}

// A Spending is the estimate of a call that a [Budget] pays for.
type Spending struct {
	Cost     int
	Priority Priority
	MaxWait  time.Duration // 0: at once or not at all
	MaxHold  time.Duration // how long the call may be under way; 0: the budget's default
}

// An Expense is a Spending that was granted.
type Expense interface {
	// Settle ends the call at its actual cost: the difference is refunded, or owed. Call it
	// once; later calls change nothing.
	Settle(actual int)
}

// BudgetState is the state of a [Budget] as a process knows it.
type BudgetState struct {
	Spent     int64         // by the fleet, settled
	Remaining int           // can be spent at once
	Paused    time.Duration // nothing is granted for so long, as the upstream demanded
	InFlight  int           // calls under way in the fleet, if their number is limited
	Processes int           // that use the budget
	Away      bool          // Redis cannot be reached: Remaining and Paused are of this process's share
}

// Priority orders the calls that a [Budget] refuses: Background first, Critical last.
type Priority byte

const (
	// Normal is for fetches that callers wait for.
	Normal Priority = iota
	// Background gives way to Normal. Refreshes in the background always have it.
	Background
	// Critical may use the share that a budget reserves.
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

// An ExhaustedError is returned for a call that was not made, as its budget had nothing
// left. It crosses processes: errors.As finds it in a [RemoteError] too.
type ExhaustedError struct {
	Budget string // its name
	// RetryAfter is the time until the budget may have something again, as known when the
	// error was made. Calls of this process that wait for the budget come first.
	RetryAfter time.Duration
	// Waited is how long the call waited in vain. Allows states the budget's limits in
	// words. Both stay in the process.
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
