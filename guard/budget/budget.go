package budget

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// ErrClosed is wrapped by the errors of calls after Close, which name the budget.
var ErrClosed = errors.New("budget: closed")

var errNilContext = errors.New("budget: nil context (use context.Background())")

// ExhaustedError is the error of Spend when no units are left in time: guard's, which
// crosses processes.
type ExhaustedError = guard.ExhaustedError

// A Budget is an allowance that is shared by all processes with the same Redis,
// namespace and name. They should agree on the Limit: the limit of the calling process
// decides about each call. It is safe for concurrent use. Close it after the guards and
// before the Redis client.
type Budget struct {
	name    string
	process string // 16 hexadecimal digits
	limit   Limit
	opts    Options
	server  *server
	alive   *presence // nil without MaxInFlight
	gates   [guard.Critical + 1]gate

	beats chan struct{} // holds a token while a beat is under way, and after Close
	nudge chan struct{} // a beat is due soon
	freed chan struct{} // a call of this process is over

	mu sync.Mutex // guards the rest; it is not held during I/O

	// The fleet as last reported.
	fleet               bucket
	spent               int64
	inFlight, processes int
	refusals            refusals

	// This process.
	counter uint64               // of slots
	held    map[string]time.Time // slots of calls under way, and when their renewal ends
	leaving bool

	// Outages of Redis.
	away   bool
	awayAt time.Time
	local  share
	owed   debt
	unsaid time.Time // end of a pause that Redis has not been told
}

var _ guard.Budget = (*Budget)(nil)

// Name returns the budget's name.
func (b *Budget) Name() string { return b.name }

// Close gives back the slots of this process's calls and ends the budget's goroutines.
// Calls under way may go on; settling them has no effect. Calling Close again is fine.
func (b *Budget) Close() error {
	b.mu.Lock()
	again := b.leaving
	b.leaving = true
	b.mu.Unlock()
	if again {
		return nil
	}
	b.beats <- struct{}{} // no later beat can bring a slot back
	b.mu.Lock()
	slots := slices.AppendSeq(b.owed.slots, maps.Keys(b.held))
	clear(b.held)
	b.mu.Unlock()
	_, err := b.call(context.Background(), leaveScript, nil, slots, b.process)
	if err := errors.Join(err, b.server.close()); err != nil {
		return fmt.Errorf("budget: Close: %d calls under way, which expire after %v if they could not be given back: %w", len(slots), b.opts.SlotTTL, err)
	}
	return nil
}

// Known returns the state as last reported by Redis, without asking it: with each call
// that asks, and every two seconds. While Redis is away it is the state of this process's
// share.
func (b *Budget) Known() guard.BudgetState {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.currentLocked()
	return guard.BudgetState{
		Spent: b.spent, Remaining: known.remaining(now), Paused: known.pausedFor(now),
		InFlight: b.inFlight, Processes: b.processes, Away: b.away,
	}
}

// currentLocked is the bucket that decides: the fleet's, or this process's share.
func (b *Budget) currentLocked() *bucket {
	if b.away {
		return &b.local.bucket
	}
	return &b.fleet
}

// Exhausted reports whether this process knows, without asking Redis, that a call of the
// priority would be refused.
func (b *Budget) Exhausted(p guard.Priority) bool {
	if p > guard.Critical {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, exhausted := b.refusals.find(time.Now(), guard.Spending{Priority: p, Cost: maxUnits})
	return exhausted
}

func (b *Budget) observe(e cache.Event) {
	if b.opts.Observer != nil {
		e.Guard = b.name
		b.opts.Observer.Observe(e)
	}
}

// call runs a script with the given arguments, followed by slots, and keeps the state
// that it reports. See server.call.
func (b *Budget) call(ctx context.Context, sc *script, late func(report), slots []string, args ...any) (report, error) {
	for _, slot := range slots {
		args = append(args, slot)
	}
	r, err := b.server.call(ctx, sc, late, args)
	if err != nil {
		return r, err
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = r.spent
	b.fleet = bucket{
		limit: b.limit, among: 1, level: r.level, at: now,
		paused: now.Add(r.paused), left: float64(r.left), reset: now.Add(r.reset),
	}
	return r, nil
}

func (b *Budget) isAway() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

func (b *Budget) owe(d debt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owed.add(d)
}

// A debt is a list of changes to report to Redis. Refunds are apart from the others: the
// bucket may be empty when they are made, and then they cannot pay for a level.
type debt struct {
	level  float64  // units that have to leak
	spent  int64    // units that Redis has not counted
	refund int64    // units that Redis counted and that were not spent
	taken  int64    // report.taken of the call to refund; 0: unknown
	slots  []string // of calls that are over
}

// difference is the debt of a call that cost diff units more than it spent, or less.
func difference(diff int64) debt {
	if diff < 0 {
		return debt{refund: -diff}
	}
	return debt{level: float64(diff), spent: diff}
}

func (d *debt) add(other debt) {
	d.level = min(d.level+other.level, maxUnits)
	d.spent += other.spent
	d.refund += other.refund
	d.slots = append(d.slots, other.slots...)
}

func (d *debt) empty() bool {
	return d.level == 0 && d.spent == 0 && d.refund == 0 && len(d.slots) == 0
}
