package cache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The connection is asked for a sign of life this often, and given up when none
// came for so long. A link that swallows everything is noticed within two
// seconds.
const (
	pingEvery   = 400 * time.Millisecond
	verifyEvery = 4 // pings
	deadAfter   = 1500 * time.Millisecond
	dialWithin  = time.Second
	seenWithin  = 500 * time.Millisecond
	firstRedial = 50 * time.Millisecond
	lastRedial  = 500 * time.Millisecond
)

// errElsewhere ends a connection that answers, and isn't to the node that
// commands go to.
var errElsewhere = errors.New("cache: the subscription is not where commands go")

// session holds one connection until it fails, and returns why and whether it
// had been live. Two goroutines serve it: this one writes and keeps watch, the
// other receives.
func (u *subscriber) session() (wasLive bool, err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(u.ctx))
	defer cancel()
	ps := u.n.client.Subscribe(ctx)
	// The receiver ends when the connection is closed. That may have to wait for
	// a dial that is under way, so nobody waits for it.
	defer u.s.spawnCall(func() { _ = ps.Close() })

	u.mu.Lock()
	u.dialedAt = time.Now()
	u.mu.Unlock()
	if err := u.dial(ctx, ps); err != nil {
		return false, err
	}
	u.mu.Lock()
	epoch := u.epoch
	u.mu.Unlock()
	heard := newStopwatch()
	received := make(chan struct{}) // closed when receiving has failed
	var failure error
	if !u.s.spawnCall(func() { failure = u.receive(ctx, ps, epoch, heard); close(received) }) {
		return false, ErrClosed
	}
	u.changed() // whatever is wanted already
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for pings := 1; err == nil; {
		select {
		case <-u.ctx.Done():
			err = u.ctx.Err()
		case <-received:
			err = failure
		case <-u.doubted:
			err = errElsewhere
		case <-u.kick:
			err = u.reconcile(ctx, ps, false)
		case <-ping.C:
			if silent := heard.elapsed(); silent > deadAfter {
				err = fmt.Errorf("cache: the subscription has been silent for %v", silent.Round(time.Millisecond))
			} else {
				err = u.inTime(func() error { return ps.Ping(ctx) })
			}
			if err == nil {
				err = u.reconcile(ctx, ps, true)
			}
			if pings++; pings%verifyEvery == 0 {
				u.verify()
			}
		}
	}
	// Not in the case above alone: a write is given up for the same reason.
	if u.ctx.Err() != nil {
		u.leave(ctx, ps, received)
	}
	return u.wentLive(), err
}

// inTime runs a write on the connection. When the connection has broken the
// client may be dialing anew, with a lock held that the write waits for: so it
// is given up after RedisTimeout, or when the subscriber is stopped, and the
// connection with it.
func (u *subscriber) inTime(write func() error) error { return u.within(u.ctx, write) }

func (u *subscriber) within(ctx context.Context, write func() error) error {
	ctx, cancel := context.WithTimeout(ctx, u.s.opts.RedisTimeout)
	defer cancel()
	written := make(chan error, 1)
	if !u.s.spawnCall(func() { written <- write() }) {
		return ErrClosed
	}
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// verify asks, where commands go, whether this process is subscribed there. Who
// uses a near cache needs to know, liveness or not: an acquire, which may tell too,
// may be rare.
func (u *subscriber) verify() {
	if !u.s.feeds.any() || u.s.lesser.Load() != nil {
		return
	}
	asked := time.Now()
	u.s.spawn(func() {
		if n, err := u.seen(u.ctx); err == nil && n == 0 {
			u.doubt(asked)
		}
	})
}

// seen asks, where commands go, how often this process is subscribed there.
func (u *subscriber) seen(ctx context.Context) (int64, error) {
	n := make(chan int64, 1)
	err := u.s.bounded(ctx, u.n, "PUBSUB NUMSUB", func(ctx context.Context) error {
		all, err := u.n.client.PubSubNumSub(ctx, u.alive).Result()
		n <- all[u.alive]
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-n, nil
}

// dial connects and asks for the liveness channel. It returns when that takes
// too long or the subscriber is stopped, though the client may then still be
// dialing: a dial into a black hole outlasts the black hole.
func (u *subscriber) dial(ctx context.Context, ps *redis.PubSub) error {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	dialed := make(chan error, 1)
	if !u.s.spawnCall(func() { defer cancel(); dialed <- ps.Subscribe(ctx, u.alive) }) {
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

// leave takes back the liveness subscription and waits until Redis has said
// so: from then on it refuses an acquire of this process.
func (u *subscriber) leave(ctx context.Context, ps *redis.PubSub, received <-chan struct{}) {
	left := make(chan struct{})
	u.mu.Lock()
	u.left = left
	u.mu.Unlock()
	if u.within(context.WithoutCancel(u.ctx), func() error { return ps.Unsubscribe(ctx, u.alive) }) != nil {
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

func (u *subscriber) wentLive() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.isLive
}

// reconcile sends what makes the connection's channels the wanted ones. Those
// that aren't wanted any more may stay for now, unless they are to be given back
// or are many.
func (u *subscriber) reconcile(ctx context.Context, ps *redis.PubSub, giveBack bool) error {
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
	return u.inTime(func() error {
		if follow {
			if err := ps.Subscribe(ctx, u.s.keys.invalidations()); err != nil {
				return err
			}
		}
		return errors.Join(u.send(ctx, ps, subscribe, true), u.send(ctx, ps, unsubscribe, false))
	})
}

// send subscribes to or unsubscribes from channels. Sharded ones go one by one:
// a command's channels must lie in one slot.
func (u *subscriber) send(ctx context.Context, ps *redis.PubSub, names []string, subscribe bool) error {
	if len(names) == 0 {
		return nil
	}
	if !u.s.sharded.Load() {
		if subscribe {
			return ps.Subscribe(ctx, names...)
		}
		return ps.Unsubscribe(ctx, names...)
	}
	for _, name := range names {
		var err error
		if subscribe {
			err = ps.SSubscribe(ctx, name)
		} else {
			err = ps.SUnsubscribe(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// receive takes in what comes until the connection fails. A reply that the
// client can't make sense of, which it panics over, counts as a failure.
func (u *subscriber) receive(ctx context.Context, ps *redis.PubSub, epoch int, heard *stopwatch) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cache: the subscription received nonsense: %v", p)
		}
	}()
	for {
		msg, err := ps.Receive(ctx)
		if _, moved := redis.IsMovedError(err); moved || unserved(err) {
			// A slot moved between finding its node and subscribing there, or nobody
			// has it: that says nothing of what else is subscribed to here.
			heard.restart()
			u.bounce(epoch)
			continue
		}
		if err != nil {
			return err
		}
		heard.restart()
		switch msg := msg.(type) {
		case *redis.Subscription:
			u.confirm(msg, epoch)
		case *redis.Message:
			u.deliver(msg, epoch)
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
