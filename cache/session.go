package cache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The connection is pinged, and given up after deadAfter without any reply. A link that
// swallows everything is so noticed within two seconds.
const (
	pingEvery   = 400 * time.Millisecond
	deadAfter   = 1500 * time.Millisecond
	dialWithin  = time.Second
	firstRedial = 50 * time.Millisecond
	lastRedial  = 500 * time.Millisecond
	// refusedRedial is the longest pause between connections while Redis refuses the
	// subscription or does not see it. Each may find that the cause was mended.
	refusedRedial = 30 * time.Second
)

var (
	// errElsewhere ends a connection that answers, but is not to the server that
	// commands go to.
	errElsewhere = errors.New("cache: the subscription is not where commands go")
	// errNoConnection is wrapped by why a connection could not be made.
	errNoConnection = errors.New("cache: no connection for the subscription")
	// errRefusedHere is wrapped by a refusal that arrived on a subscribed connection.
	errRefusedHere = errors.New("cache: the subscription is refused")
	// errNoRedial is the client's error when it tries to mend a connection.
	errNoRedial = errors.New("cache: the subscribed connection is lost")
)

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

// A session is one connection of a subscriber. One goroutine writes and keeps watch,
// another one receives.
type session struct {
	u     *subscriber
	ps    *redis.PubSub
	epoch int
	heard *stopwatch
	pings int
	// spent has ended since the connection was dialed, and is the context of all further
	// calls of ps. A PubSub whose connection fails dials a new one before Receive or a
	// write returns, with its lock held. Until then nobody would know of the loss, and
	// messages may have been missed by the time the new connection is up. On a context
	// that has ended that dial fails at once.
	spent context.Context
	// lost ends when receiving fails, for that cause, or when the subscriber is stopped.
	lost context.Context
}

// session holds one connection until it fails. It returns the cause, and whether the
// connection had been of use.
func (u *subscriber) session() (wasUseful bool, err error) {
	spent, spend := context.WithCancelCause(context.WithoutCancel(u.ctx))
	defer spend(errNoRedial)
	c := &session{u: u, ps: u.n.client.Subscribe(spent), heard: newStopwatch(), spent: spent}
	// Closing may have to wait for a dial that is under way.
	defer u.s.spawnCall(func() { _ = c.ps.Close() })

	u.mu.Lock()
	u.dialedAt = time.Now()
	u.mu.Unlock()
	if err := c.dial(); err != nil {
		return false, fmt.Errorf("%w: %w", errNoConnection, err)
	}
	spend(errNoRedial)
	u.mu.Lock()
	c.epoch = u.epoch
	u.mu.Unlock()
	c.heard.restart()
	lost, lose := context.WithCancelCause(u.ctx)
	defer lose(nil)
	c.lost = lost
	received := make(chan struct{})
	if !u.s.spawnCall(func() { lose(c.receive()); close(received) }) {
		return false, ErrClosed
	}
	err = c.watch()
	if u.ctx.Err() != nil {
		c.leave(received)
	}
	return u.useful(), err
}

// dial connects and subscribes to the liveness channel. It returns when that takes too
// long or the subscriber is stopped. The client may still be dialing then.
func (c *session) dial() error {
	u := c.u
	ctx, cancel := context.WithTimeout(c.spent, dialWithin)
	dialed := make(chan error, 1)
	if !u.s.spawnCall(func() { defer cancel(); dialed <- c.ps.Subscribe(ctx, u.alive) }) {
		cancel()
		return ErrClosed
	}
	select {
	case err := <-dialed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-u.doubted:
		cancel()
		return errElsewhere
	case <-u.ctx.Done():
		cancel()
		return u.ctx.Err()
	}
}

// watch writes what is to be written until the connection fails, and returns the cause.
func (c *session) watch() error {
	u := c.u
	u.changed() // some channels may be wanted already
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		var err error
		select {
		case <-c.lost.Done():
			err = context.Cause(c.lost)
		case <-u.doubted:
			err = errElsewhere
		case <-u.kick:
			err = c.reconcile(false)
		case <-ping.C:
			err = c.ping()
		}
		if err != nil {
			return err
		}
	}
}

// ping asks for a sign of life, and does what is done as often as that.
func (c *session) ping() error {
	if silent := c.heard.elapsed(); silent > deadAfter {
		return fmt.Errorf("cache: the subscription has been silent for %v", silent.Round(time.Millisecond))
	}
	if err := c.write(func() error { return c.ps.Ping(c.spent) }); err != nil {
		return err
	}
	if c.pings++; c.u.lookIsDue(c.pings) {
		c.u.s.spawn(c.u.look)
	}
	return c.reconcile(true)
}

// write runs a write on the connection. It is given up when the connection is lost, after
// RedisTimeout, or when the connection has been silent for deadAfter.
func (c *session) write(write func() error) error { return c.writeWithin(c.lost, write) }

func (c *session) writeWithin(ctx context.Context, write func() error) error {
	ctx, cancel := context.WithTimeout(ctx, min(c.u.s.opts.RedisTimeout, deadAfter-c.heard.elapsed()))
	defer cancel()
	written := make(chan error, 1)
	if !c.u.s.spawnCall(func() { written <- write() }) {
		return ErrClosed
	}
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave ends the subscription to the liveness channel and waits until Redis has confirmed
// that: from then on scripts refuse an acquire of this process.
func (c *session) leave(received <-chan struct{}) {
	u := c.u
	left := make(chan struct{})
	u.mu.Lock()
	u.left = left
	u.mu.Unlock()
	ctx := context.WithoutCancel(u.ctx)
	if c.writeWithin(ctx, func() error { return c.ps.Unsubscribe(c.spent, u.alive) }) != nil {
		return
	}
	timer := time.NewTimer(u.s.opts.RedisTimeout)
	defer timer.Stop()
	select {
	case <-left:
	case <-received:
	case <-timer.C:
	}
}

// reconcile sends what makes the connection's channels the wanted ones. Channels that are
// not wanted any more stay for now, unless giveBack is set or they are many.
func (c *session) reconcile(giveBack bool) error {
	u := c.u
	var subscribe, unsubscribe []string
	u.mu.Lock()
	if giveBack = giveBack || u.spare >= maxSpare; giveBack {
		u.spare = 0
	}
	follow := !u.followed && u.s.feeds.any()
	u.followed = u.followed || follow
	for name, ch := range u.channels {
		wanted := len(ch.watches) > 0
		switch {
		case wanted && !ch.requested:
			subscribe = append(subscribe, name)
		case !wanted && ch.requested && giveBack:
			unsubscribe = append(unsubscribe, name)
		case !wanted && !ch.requested && ch.pending == 0:
			delete(u.channels, name)
			continue
		default:
			continue
		}
		ch.requested = wanted
		ch.pending++
	}
	u.mu.Unlock()
	if !follow && len(subscribe)+len(unsubscribe) == 0 {
		return nil
	}
	return c.write(func() error {
		if follow {
			if err := c.ps.Subscribe(c.spent, u.s.keys.invalidations()); err != nil {
				return err
			}
		}
		return errors.Join(c.send(subscribe, true), c.send(unsubscribe, false))
	})
}

// send subscribes to or unsubscribes from channels. Sharded ones go one by one:
// a command's channels must lie in one slot.
func (c *session) send(names []string, subscribe bool) error {
	if len(names) == 0 {
		return nil
	}
	if !c.u.s.sharded.Load() {
		if subscribe {
			return c.ps.Subscribe(c.spent, names...)
		}
		return c.ps.Unsubscribe(c.spent, names...)
	}
	for _, name := range names {
		var err error
		if subscribe {
			err = c.ps.SSubscribe(c.spent, name)
		} else {
			err = c.ps.SUnsubscribe(c.spent, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// receive handles what arrives until the connection fails, and returns the cause. A reply
// over which the client panics counts as a failure.
func (c *session) receive() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cache: the subscription received nonsense: %v", p)
		}
	}()
	for {
		msg, err := c.ps.Receive(c.spent)
		if _, moved := redis.IsMovedError(err); moved || unserved(err) {
			// A slot moved between finding its node and subscribing there, or no node
			// serves it. That says nothing of the connection's other channels.
			c.heard.restart()
			c.u.bounce(c.epoch)
			continue
		}
		if reply := redis.Error(nil); errors.As(err, &reply) && !passing(reply) {
			return fmt.Errorf("%w: %w", errRefusedHere, err)
		}
		if err != nil {
			return err
		}
		c.heard.restart()
		switch msg := msg.(type) {
		case *redis.Subscription:
			c.u.confirm(msg, c.epoch)
		case *redis.Message:
			c.u.deliver(msg, c.epoch)
		}
	}
}

// A stopwatch measures the time since it was last restarted. It is safe for
// concurrent use.
type stopwatch struct {
	start time.Time
	at    atomic.Int64 // ns after start
}

func newStopwatch() *stopwatch { return &stopwatch{start: time.Now()} }

func (w *stopwatch) restart() { w.at.Store(int64(time.Since(w.start))) }

func (w *stopwatch) elapsed() time.Duration {
	return time.Since(w.start) - time.Duration(w.at.Load())
}
