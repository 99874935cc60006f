package budget

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A State is what a budget looks like.
type State struct {
	guard.BudgetState
	InFlight  int  // calls under way, in the fleet; with Limit.MaxInFlight
	Processes int  // that use it
	Away      bool // Redis could not be reached, and this is this process's share
}

// Peek asks Redis what the budget looks like, and takes nothing from it. While
// Redis is away it tells of this process's share. Errors: the cause of ctx's
// end; [ErrClosed].
func (b *Budget) Peek(ctx context.Context) (State, error) {
	if ctx == nil {
		return State{}, errNilContext
	}
	if err := b.beatNow(ctx); err != nil && ctx.Err() != nil {
		return State{}, context.Cause(ctx)
	}
	if b.ctx.Err() != nil {
		return State{}, b.errClosed
	}
	s := State{BudgetState: b.Known(), Away: b.isAway()}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.InFlight, s.Processes = b.inFlight, b.processes
	return s, nil
}

// Known is what was last heard: with an answer from Redis, which comes with each
// call that asks, and every two seconds.
func (b *Budget) Known() guard.BudgetState {
	now := time.Now()
	b.mu.Lock()
	k := guard.BudgetState{Spent: b.last.spent, Paused: b.pausedLocked(now)}
	k.Remaining = int(max(0, float64(b.limit.Burst)-b.levelLocked(now)))
	if b.last.allows >= 0 && b.last.paused == 0 {
		k.Remaining = min(k.Remaining, int(b.last.allows))
	}
	away := b.away
	b.mu.Unlock()
	if away {
		k.Remaining, k.Paused = b.local.state(now)
	}
	if k.Paused > 0 {
		k.Remaining = 0
	}
	return k
}

// Spent is how many units the fleet has spent, settled, since nobody had for a
// day, as far as was last heard.
func (b *Budget) Spent() int64 { return b.Known().Spent }

// Remaining is how many units could be spent at once by a Critical call, as far
// as was last heard.
func (b *Budget) Remaining() int { return b.Known().Remaining }

// Paused is for how long nothing will be granted, by the upstream's word, as far
// as was last heard.
func (b *Budget) Paused() time.Duration { return b.Known().Paused }

// heard takes note of what a script replied.
func (b *Budget) heard(r report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last, b.heardAt = r, time.Now()
}

// levelLocked is what has to leak yet of what was last heard of.
func (b *Budget) levelLocked(now time.Time) float64 {
	return max(0, b.last.level-float64(now.Sub(b.heardAt).Microseconds())*b.limit.rate())
}

// pausedLocked is what is left of the pause that was last heard of.
func (b *Budget) pausedLocked(now time.Time) time.Duration {
	return max(0, b.last.paused-now.Sub(b.heardAt))
}
