package redisstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/outage"
	"github.com/stampedeguard/stampede/internal/store"
)

// nodeClient has the methods for a single Redis node: everything that isn't
// routed by key.
type nodeClient interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	Process(ctx context.Context, cmd redis.Cmder) error
	AddHook(redis.Hook)
}

// endedDials makes a client refuse to dial on a context that has ended. The client's own
// dialer for TLS does not look at the context, nor do some custom ones.
type endedDials struct{}

// DialHook implements [redis.Hook].
func (endedDials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return next(ctx, network, addr)
	}
}

// ProcessHook implements [redis.Hook].
func (endedDials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (endedDials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A node is one Redis server that takes writes.
type node struct {
	s       *core
	addr    string
	client  nodeClient
	single  bool // it serves all keys
	breaker *breaker
	outage  *outage.Node
	reads   *queue
	scripts *queue
	clock   clock
	sub     *subscription

	valueSize atomic.Int64 // mean, of the values that were read
	noMGET    atomic.Bool  // it is refused: reads do without

	ctx    context.Context // ends with the node
	cancel context.CancelFunc
}

// newNode returns a node. Its subscription is not started. onProbe is called before each
// probe of its breaker.
func newNode(s *core, w *watches, addr string, client nodeClient, onProbe func(context.Context)) *node {
	client.AddHook(endedDials{})
	n := &node{s: s, addr: addr, client: client, outage: outage.NewNode(client)}
	n.ctx, n.cancel = context.WithCancel(s.ctx)
	n.reads, n.scripts = newReadQueue(n), newScriptQueue(n)
	n.sub = newSubscription(n, w)
	n.breaker = &breaker{
		limit: int32(s.opts.BreakerFailures),
		ctx:   n.ctx,
		spawn: s.spawn,
		probe: func(ctx context.Context) error {
			onProbe(ctx)
			if err := n.direct(ctx, "PING", redis.NewCmd(ctx, "ping")); err != nil {
				return err
			}
			return n.sub.awaitSeen(ctx)
		},
		opened: func() {
			n.reads.fail(n.away())
			n.scripts.fail(n.away())
		},
		changed: n.breakerChanged,
	}
	return n
}

func (n *node) breakerChanged(open bool, since time.Duration, err error) {
	kind := store.BreakerClosed
	if open {
		kind = store.BreakerOpened
		ctx, cancel := context.WithTimeout(n.ctx, n.s.opts.RedisTimeout)
		n.outage.Known(ctx) // the cause is about to be known
		cancel()
	}
	n.s.report(store.Event{Kind: kind, Node: n.addr, Duration: since, Err: n.explain(err)})
}

// direct carries out a command that is not routed by key and does not wait its turn, even
// while the breaker is open. After an error the command may still be in use.
func (n *node) direct(ctx context.Context, op string, cmd redis.Cmder) error {
	err := n.s.bounded(ctx, op, func(ctx context.Context) error {
		err := n.client.Process(ctx, cmd)
		n.noteOutcome(classify(op, err))
		return err
	})
	if errors.Is(err, errTimeout) {
		n.silent()
	}
	return n.explain(err)
}

// noteOutcome takes note of the classified outcome of a command, which tells why the node
// is away or that it is not. It may come too late for any caller.
func (n *node) noteOutcome(err error) {
	switch {
	case err == nil:
		n.outage.Answered()
		return
	case !tripsBreaker(err):
		return
	case outage.SaysNothing(err):
		n.silent()
		return
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok { // the client's is the last: see classify
		causes := all.Unwrap()
		err = causes[len(causes)-1]
	}
	n.outage.Failed(err)
}

// silent is called when a command got no answer in time.
func (n *node) silent() { n.outage.Silent(n.ctx, n.s.spawnCall, n.s.opts.RedisTimeout) }

// explain names the node in an error of a call. An error that doesn't tell a cause gets
// the cause of the node's outage, as far as it is known.
func (n *node) explain(err error) error {
	isErr := func(target error) bool { return errors.Is(err, target) }
	switch {
	case isErr(store.ErrUnavailable) && outage.SaysNothing(err):
		return n.outage.Explain(err)
	case slices.ContainsFunc([]error{errBreakerOpen, errTimeout, errUnsubscribed}, isErr):
		return n.outage.Explain(err)
	case isErr(store.ErrUnavailable), isErr(store.ErrRefused):
		return n.outage.Name(err)
	}
	return err
}

// away is the error of a call that the breaker keeps from the node.
func (n *node) away() error { return n.explain(errBreakerOpen) }

// classify sorts the client's error for op and names the node in it.
func (n *node) classify(op string, err error) error { return n.explain(classify(op, err)) }
