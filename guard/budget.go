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
	InFlight  int           // calls under way in the fleet, if their number is limited
	Processes int           // that use the budget
	Away      bool          // Redis cannot be reached: Remaining and Paused are of this process's share
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
