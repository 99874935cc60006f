package budget

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/outage"
	"github.com/stampedeguard/stampede/internal/telemetry"
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
	detach  func()    // ends what the observers were told of the budget
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
	local  bucket // this process's share
	owed   debt
	unsaid time.Time // end of a pause that Redis has not been told
}

var _ guard.Budget = (*Budget)(nil)

// New returns the budget of the given name (letters, digits and "._-") on the given
// client: standalone, behind Sentinel, or a cluster. It refuses a [redis.Ring] and a
// cluster client that reads from replicas. Budgets of the same namespace and name, in
// any process, share one allowance.
//
// Errors: all faults of the client, the name, the limit and the options, joined; a Redis
// that refuses the commands. A Redis that cannot be reached is no error.
//
// The Redis user needs the keys and channels "<namespace>:*" and the commands
// EVAL EVALSHA TIME GET SET ZADD ZREM ZCARD ZRANGE ZSCORE ZREMRANGEBYSCORE
// PEXPIRE PING, and PUBSUB and SUBSCRIBE for Limit.MaxInFlight to notice deaths
// at once. If SUBSCRIBE is refused, a LivenessOff event says so.
func New(rdb redis.UniversalClient, name string, limit Limit, opts Options) (*Budget, error) {
	opts, limit = opts.withDefaults(), limit.withDefaults()
	if err := errors.Join(checkClient(rdb), checkName("New: the name", name, "._-"), limit.validate(), opts.validate()); err != nil {
		return nil, err
	}
	var id [8]byte
	rand.Read(id[:]) // never fails (crypto/rand since Go 1.24)
	s := &server{
		rdb: rdb, node: outage.NewNode(rdb), prefix: opts.Namespace + ":budget:{" + name + "}:",
		rate: decimal(limit.rate()), timeout: opts.RedisTimeout, errClosed: fmt.Errorf("%w: budget %q", ErrClosed, name),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	now := time.Now()
	b := &Budget{
		name: name, process: hex.EncodeToString(id[:]), limit: limit, opts: opts, server: s,
		beats: make(chan struct{}, 1), nudge: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		fleet: bucket{limit: limit, among: 1, at: now},
		local: bucket{limit: limit, among: float64(opts.Processes), at: now},
		held:  map[string]time.Time{},
	}
	for i := range b.gates {
		b.gates[i].turn = make(chan struct{}, 1)
	}
	if err := b.beat(s.ctx); refused(err) {
		s.cancel()
		return nil, fmt.Errorf("budget: New: this Redis user lacks permissions (see New for the commands, keys and channels to grant): %w", err)
	} else if err != nil {
		b.wentAway(err)
	}
	if limit.MaxInFlight > 0 {
		b.alive = &presence{server: s, channel: s.prefix + "alive:" + b.process, observe: b.observe}
		s.spawn(b.alive.run)
	}
	s.spawn(b.beatLoop)
	b.detach = telemetry.Attach(opts.Observer, name, b)
	return b, nil
}

// checkClient refuses clients that do not keep to the one server that has the budget. A
// client-side cache is no problem: the budget only runs scripts.
func checkClient(rdb redis.UniversalClient) error {
	switch {
	case rdb == nil:
		return errors.New("budget: New: nil client (make one with redis.NewClient)")
	case nils.Is(rdb):
		return fmt.Errorf("budget: New: the client is a nil %T", rdb)
	}
	switch c := rdb.(type) {
	case interface{ Options() *redis.RingOptions }:
		return errors.New("budget: New: a redis.Ring is not supported, each process would begin a budget anew on another shard when it misses one; use redis.NewClient or redis.NewClusterClient")
	case interface{ Options() *redis.ClusterOptions }:
		if o := c.Options(); o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return errors.New("budget: New: the cluster client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly), and would subscribe there, where this process is missed and its calls count as over; use a client without them")
		}
	}
	return nil
}

// Name returns the budget's name.
func (b *Budget) Name() string { return b.name }

// Limit is what the budget allows, with its defaults filled in.
func (b *Budget) Limit() Limit { return b.limit }

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
	b.detach()
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
		return &b.local
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
