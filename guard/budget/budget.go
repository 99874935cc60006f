package budget

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/outage"
)

// ErrClosed is wrapped by what Spend, Learn and Peek return after Close, which names
// the budget.
var ErrClosed = errors.New("budget: closed")

// ExhaustedError is what Spend returns when there is nothing left: guard's, which
// knows how to send it to other processes.
type ExhaustedError = guard.ExhaustedError

// A Budget is an allowance that all processes share that use the same Redis,
// namespace and name. They should agree on the Limit: each call is judged by the
// limit of the process that makes it. It is safe for concurrent use. Close it
// before the Redis client and after the guards.
type Budget struct {
	rdb   redis.UniversalClient
	node  *outage.Node
	name  string
	limit Limit
	opts  Options

	errClosed error  // ErrClosed, with the name
	detach    func() // ends what the observers were told of the budget

	process string // 16 hexadecimal digits
	names   names
	numbers atomic.Uint64 // of calls
	alive   *presence     // nil without MaxInFlight
	gates   [3]gate       // by priority
	local   *share        // for when Redis is away

	beats chan struct{} // full: a beat is under way, or none will be any more

	mu                  sync.Mutex // guards the rest
	last                report
	heardAt             time.Time // of last
	inFlight, processes int       // at the last beat
	memory              [3]refusal
	held                map[string]holding // by slot
	unsaid              time.Time          // end of a pause that Redis has not been told of
	owed                debt
	gone                []string // slots that Redis has not been told are free
	away                bool
	awayAt              time.Time
	leaving, closed     bool

	work   sync.WaitGroup
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	nudge  chan struct{} // away, or something to tell: beat soon
	freed  chan struct{} // a call of this process is over
}

var _ guard.Budget = (*Budget)(nil)

type names struct{ state, inflight, doubted, processes, alive string }

// New returns the budget of the given name (letters, digits and "._-") on the
// given client: standalone, behind Sentinel, or a cluster; a [redis.Ring] is refused,
// and so is a cluster client that reads from replicas. Budgets of the same
// namespace and name, in any process, share one allowance.
//
// Errors: all that is wrong with the client, the name, the limit and the options,
// joined. A Redis that can't be reached is no error; one that refuses is.
//
// The Redis user needs the keys and channels "<namespace>:*" and the commands
// EVAL EVALSHA TIME GET SET ZADD ZREM ZCARD ZRANGE ZSCORE ZREMRANGEBYSCORE
// PEXPIRE PING, and PUBSUB and SUBSCRIBE for Limit.MaxInFlight to notice deaths
// at once.
func New(rdb redis.UniversalClient, name string, limit Limit, opts Options) (*Budget, error) {
	opts, limit = opts.withDefaults(), limit.withDefaults()
	if err := errors.Join(checkClient(rdb), checkName("New: the name", name, "._-"), limit.validate(), opts.validate()); err != nil {
		return nil, err
	}
	var id [8]byte
	rand.Read(id[:]) // never fails (crypto/rand since Go 1.24)
	prefix := opts.Namespace + ":budget:{" + name + "}:"
	b := &Budget{
		rdb: rdb, node: outage.NewNode(rdb), name: name, limit: limit, opts: opts,
		errClosed: fmt.Errorf("%w: budget %q", ErrClosed, name),
		process:   hex.EncodeToString(id[:]),
		names: names{
			state: prefix + "state", inflight: prefix + "inflight", doubted: prefix + "doubted",
			processes: prefix + "processes", alive: prefix + "alive:",
		},
		local: newShare(limit, opts.Processes),
		last:  report{allows: -1},
		held:  map[string]holding{},
		beats: make(chan struct{}, 1),
		nudge: make(chan struct{}, 1),
		freed: make(chan struct{}, 1),
	}
	for i := range b.gates {
		b.gates[i].turn = make(chan struct{}, 1)
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if err := b.beat(); err != nil {
		if refused(err) {
			b.cancel()
			return nil, fmt.Errorf("budget: New: this Redis user can't do what is needed (see New for the commands, keys and channels to grant): %w", err)
		}
		b.wentAway(err)
	}
	if limit.MaxInFlight > 0 {
		b.alive = attend(b)
	}
	b.spawn(b.beatLoop)
	b.detach = cache.Attach(opts.Observer, cache.Component{Kind: cache.BudgetComponent, Name: name, Self: b})
	return b, nil
}

// checkClient refuses clients that don't keep to the one server that has the budget. A
// client-side cache does no harm: all that is asked is scripts.
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

// refused reports whether an error is a reply that says no, and not one of a
// state that ends by itself.
func refused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) || strings.Contains(err.Error(), "-READONLY ") {
		return false
	}
	return !redis.IsLoadingError(err) && !redis.IsClusterDownError(err) && !redis.IsMasterDownError(err) &&
		!redis.IsReadOnlyError(err) && !redis.IsTryAgainError(err) && !redis.IsMaxClientsError(err) &&
		!redis.IsNoReplicasError(err) && !redis.IsOOMError(err) && !redis.HasErrorPrefix(err, "BUSY")
}

// Name is the budget's name.
func (b *Budget) Name() string { return b.name }

// Limit is what the budget allows, with its defaults filled in.
func (b *Budget) Limit() Limit { return b.limit }

// Close gives back what calls of this process hold and ends the budget's
// goroutines. Calls that are under way go on; settling them changes nothing any
// more. Calling it again is fine.
func (b *Budget) Close() error {
	b.mu.Lock()
	if b.leaving {
		b.mu.Unlock()
		return nil
	}
	b.leaving = true
	b.mu.Unlock()
	b.detach()
	b.beats <- struct{}{} // for good: none brings back what is given back now
	b.mu.Lock()
	slots := b.gone
	for slot := range b.held {
		slots = append(slots, slot)
	}
	b.held, b.gone = map[string]holding{}, nil
	b.mu.Unlock()

	args := []any{b.rate(), b.process}
	for _, s := range slots {
		args = append(args, s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.opts.RedisTimeout)
	defer cancel()
	left := make(chan error, 1)
	go func() { // ends by the client's own timeouts
		_, err := leaveScript.run(ctx, b.rdb, []string{b.names.state, b.names.inflight, b.names.processes}, args)
		left <- err
	}()
	var err error
	select {
	case err = <-left:
	case <-ctx.Done():
		err = b.explain(errTimeout)
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	idle := make(chan struct{})
	go func() { // ends with the last call, at the latest by the client's timeouts
		b.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(4 * b.opts.RedisTimeout):
		err = errors.Join(err, errors.New("calls are still under way in the Redis client, its own timeouts will end them"))
	}
	if err != nil {
		return fmt.Errorf("budget: Close: %d calls under way, which expire after %v if they could not be given back: %w", len(slots), b.opts.SlotTTL, err)
	}
	return nil
}

// spawn runs f in a goroutine that Close waits for, for a while. It answers false, and does
// nothing, after Close.
func (b *Budget) spawn(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.work.Go(f)
	return true
}

func (b *Budget) observe(e cache.Event) {
	if b.opts.Observer != nil {
		e.Guard = b.name
		b.opts.Observer.Observe(e)
	}
}

// rate is the limit's, as the scripts take it.
func (b *Budget) rate() string { return decimal(b.limit.rate()) }

// decimal is without an exponent: not every Lua reads one without a point.
func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
