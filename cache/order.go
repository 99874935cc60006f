package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// An order is a script to be carried out once on a node. Orders go by a lane:
// those of many callers share round trips, as reads do. None changes what
// another one does: a script looks at no key but its own, and orders of one key
// that are collected together might have been sent in any order anyway.
type order struct {
	invocation
	handoff[reply]
	values context.Context // the caller's, for tracing hooks
	late   func(reply)     // deals with an answer that nobody waits for any more
}

// orders is a load of them.
type orders struct {
	load
	s     *Redis
	all   []*order
	bytes int
}

const (
	// orderSenders batches of orders may be under way at once, besides full ones:
	// a lost packet holds up half of what a process has to say.
	orderSenders = 2
	// maxOrders and maxOrderBytes go in one batch: enough to share what a round trip
	// costs, and few enough that Redis has the next while the callers of one go on.
	maxOrders     = 16
	maxOrderBytes = 256 << 10
	// alone is from how many bytes on an order goes by itself, so that it holds up
	// none.
	alone = 64 << 10
)

func newOrderLane(s *Redis, n *node) *lane[*orders] {
	return newLane(s, n,
		func() *orders { return &orders{load: newLoad(), s: s} },
		func(os *orders, busy int) bool { return busy < orderSenders || os.full() })
}

func (os *orders) full() bool    { return len(os.all) >= maxOrders || os.bytes >= maxOrderBytes }
func (os *orders) keys() int     { return len(os.all) }
func (os *orders) crowded() bool { return len(os.all) > 1 }
func (os *orders) carriedOut()   {}

// carryOut sends what is still wanted.
func (os *orders) carryOut(ctx context.Context, _ redis.Pipeliner) error {
	wanted := slices.DeleteFunc(os.all, func(o *order) bool { return !o.begin() })
	if len(wanted) == 0 {
		return nil
	}
	ctx = &onBehalf{ctx, wanted[0].values}
	var err error
	switch len(wanted) {
	case 1:
		var value any
		value, err = wanted[0].try(ctx, os.s.client) // a slot on the move is waited for outside
		os.answered(wanted[0], reply{value, err})
	default:
		invs := make([]invocation, len(wanted))
		for i, o := range wanted {
			invs[i] = o.invocation
		}
		var replies []reply
		replies, err = os.s.runMany(ctx, invs)
		for i, o := range wanted {
			os.answered(o, replies[i])
		}
	}
	return classify("script", err)
}

// An onBehalf context has the values of the first who ordered. Its end is
// another's.
type onBehalf struct {
	context.Context
	values context.Context
}

// Value implements [context.Context].
func (c *onBehalf) Value(key any) any { return c.values.Value(key) }

// answered takes an answer in. One that nobody waits for is dealt with elsewhere: a
// grant is given back by another order, which may have to wait for this sender. If
// the store has ended, it has given back all that it asked for.
func (os *orders) answered(o *order, r reply) {
	if o.finish(r) && o.late != nil {
		os.s.spawnCall(func() { o.late(r) })
	}
}

// bytes is about what it takes on the wire.
func (o *order) bytes() (n int) {
	for _, arg := range o.args() {
		if b, ok := arg.([]byte); ok {
			n += len(b)
		}
	}
	return n
}

// order has a script carried out, and returns what it answered. It returns when
// the answer is there, when ctx ends, or when the batch that it goes in is given
// up: RedisTimeout after that was sent, which is when one before it has ended.
// fate tells whether it was sent, whatever the error; late deals with an answer
// that comes after noAnswer was returned.
func (s *Redis) order(ctx context.Context, op string, inv invocation, late func(reply)) (value any, _ fate, _ error) {
	if err := ended(ctx); err != nil {
		return nil, notSent, fmt.Errorf("%w: %w", errEndedBefore, err)
	}
	o := &order{invocation: inv, values: ctx, late: late}
	size := o.bytes()
	if size >= alone {
		return s.orderAlone(ctx, op, inv, late)
	}
	n, err := s.topo.node(inv.key())
	switch {
	case err != nil:
		return nil, notSent, err
	case !n.breaker.allow():
		return nil, notSent, n.explain(errBreakerOpen)
	}
	away := n.breaker.away()
	bt := n.orders.join(n.orders.next, func(bt *orders) { bt.all, bt.bytes = append(bt.all, o), bt.bytes+size })
	if bt == nil {
		return nil, notSent, ErrClosed
	}
	err = o.await(ctx, s.ctx, bt, away)
	r, fate := o.settle()
	switch {
	case fate == gotAnswer && notCarriedOut(r.err):
		return s.orderAlone(ctx, op, inv, late)
	case fate == gotAnswer:
		return r.value, fate, n.explain(classify(op, r.err))
	case fate == notSent && errors.Is(err, errTimeout):
		err = errBusy
	}
	return nil, fate, n.explain(err)
}

// await waits for the batch, or the end of ctx or of the store; or, as long as
// it isn't sent, until the node is known to be away.
func (o *order) await(ctx, store context.Context, bt *orders, away <-chan struct{}) error {
	for {
		select {
		case <-bt.done:
			return bt.err
		case <-away:
			if o.withdraw() {
				return errBreakerOpen
			}
			away = nil
		case <-ctx.Done():
			return ended(ctx)
		case <-store.Done():
			return ErrClosed
		}
	}
}

// orderAlone is order for one that goes by itself.
func (s *Redis) orderAlone(ctx context.Context, op string, inv invocation, late func(reply)) (value any, _ fate, _ error) {
	n, err := s.topo.node(inv.key())
	if err != nil {
		return nil, notSent, err
	}
	var h handoff[reply]
	err = s.do(ctx, n, op, func(ctx context.Context) error {
		return h.carryOut(
			func() (reply, error) {
				value, err := inv.run(ctx, s.client)
				return reply{value, err}, err
			},
			func(r reply, _ error) {
				if late != nil {
					late(r)
				}
			})
	})
	r, fate := h.settle()
	if fate == gotAnswer {
		return r.value, fate, n.explain(classify(op, r.err))
	}
	return nil, fate, err
}

// carryOut is orderAlone where nothing but success is of interest.
func (s *Redis) carryOut(ctx context.Context, op string, inv invocation) error {
	_, _, err := s.orderAlone(ctx, op, inv, nil)
	return err
}
