package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	errNoConnection = errors.New("cache: no connection for the subscription") // wrapped by the cause
	errRefusedHere  = errors.New("cache: the subscription is refused")        // wrapped by a refusal on a subscribed connection
	errNoRedial     = errors.New("cache: the subscribed connection is lost")  // the client's error when it tries to mend one
	errElsewhere    = errors.New("cache: the subscription is not where commands go")
)

// A connection is one subscribed connection. A goroutine of its own writes and another one
// receives; both tell the owner through events, and end when the connection is closed.
type connection struct {
	n      *node
	ps     *redis.PubSub
	events chan event
	writes chan write
	gone   chan struct{} // closed by close

	// spent has ended since the connection was dialed, and is the context of all further
	// calls of ps. If its connection fails, a PubSub dials a new one before Receive or a write
	// returns. Until then the loss would be unknown, and messages may have been missed by the
	// time the new connection is up. On a context that has ended that dial fails at once.
	spent context.Context
	spend context.CancelCauseFunc
}

// An event is sent by a connection to its owner. One of the fields is set.
type event struct {
	message any // *redis.Subscription, *redis.Message or *redis.Pong
	written bool
	moved   bool  // a channel's slot is elsewhere, or nowhere
	failed  error // the connection is of no use any more
}

type write func(context.Context, *redis.PubSub) error

// dial starts a connection that subscribes to the given channel first. It tells the owner
// when that was written, or that it failed.
func dial(n *node, channel string) *connection {
	c := &connection{n: n, events: make(chan event, 64), writes: make(chan write, 1), gone: make(chan struct{})}
	c.spent, c.spend = context.WithCancelCause(context.WithoutCancel(n.ctx))
	c.ps = n.client.Subscribe(c.spent)
	if !n.s.spawnCall(func() { c.run(channel) }) {
		c.events <- event{failed: errNoConnection}
	}
	return c
}

// run dials, and then writes until the connection is closed.
func (c *connection) run(channel string) {
	ctx, cancel := context.WithTimeout(c.spent, dialWithin)
	err := c.ps.Subscribe(ctx, channel)
	cancel()
	c.spend(errNoRedial)
	if err != nil {
		c.tell(event{failed: fmt.Errorf("%w: %w", errNoConnection, err)})
		return
	}
	c.tell(event{written: true})
	if !c.n.s.spawnCall(c.receive) {
		return
	}
	for {
		select {
		case w := <-c.writes:
			if err := w(c.spent, c.ps); err != nil {
				c.tell(event{failed: err})
				return
			}
			c.tell(event{written: true})
		case <-c.gone:
			return
		}
	}
}

// receive tells everything that arrives. A reply over which the client panics counts as a
// failure.
func (c *connection) receive() {
	defer func() {
		if p := recover(); p != nil {
			c.tell(event{failed: fmt.Errorf("cache: the subscription received nonsense: %v", p)})
		}
	}()
	for {
		msg, err := c.ps.Receive(c.spent)
		reply := redis.Error(nil)
		_, moved := redis.IsMovedError(err)
		switch {
		case err == nil:
			c.tell(event{message: msg})
		case moved, unserved(err):
			// A slot moved between finding its node and subscribing there, or no node serves it.
			// That says nothing of the connection's other channels.
			c.tell(event{moved: true})
		case errors.As(err, &reply) && !passing(reply):
			c.tell(event{failed: fmt.Errorf("%w: %w", errRefusedHere, err)})
			return
		default:
			c.tell(event{failed: err})
			return
		}
		select {
		case <-c.gone:
			return
		default:
		}
	}
}

func (c *connection) tell(e event) {
	select {
	case c.events <- e:
	case <-c.gone:
	}
}

// close ends the connection. Closing may have to wait for a dial that is under way.
func (c *connection) close() {
	close(c.gone)
	c.spend(errNoRedial)
	closing := func() { _ = c.ps.Close() }
	if !c.n.s.spawnCall(closing) {
		go closing() // the store is being closed, and waits for this connection's goroutines
	}
}

// The connection is pinged, and given up after deadAfter without any reply. A link that
// swallows everything is so noticed within two seconds.
const (
	pingEvery   = 400 * time.Millisecond
	restsFor    = 4 * time.Second // between two pings while nothing depends on the connection
	deadAfter   = 1500 * time.Millisecond
	dialWithin  = time.Second
	firstRedial = 50 * time.Millisecond
	lastRedial  = 500 * time.Millisecond
	// refusedRedial is the longest pause between connections while Redis refuses the
	// subscription or does not see it. Each may find that the cause was mended.
	refusedRedial = 30 * time.Second
)
