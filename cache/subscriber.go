package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A subscriber keeps this process's one subscribed connection to a node. On it
// lies the process's liveness channel, on which nothing is ever published: that
// Redis counts a subscriber there is what says that the process is alive. And
// on it come the wake-ups of the keys that are waited for.
//
// A connection that has failed is never mended, a new one takes its place:
// what the client would resubscribe by itself isn't all right in a cluster, and
// a new one tells what is confirmed and what is not.
type subscriber struct {
	s     *Redis
	n     *node
	alive string // channel

	mu       sync.Mutex
	channels map[string]*channel // wake channels, wanted or not yet unsubscribed
	live     chan struct{}       // closed while the liveness channel is confirmed
	isLive   bool
	denied   error         // the Redis user may not subscribe
	epoch    int           // counts connections: what an earlier one still delivers is ignored
	left     chan struct{} // closed when the liveness channel was left on purpose

	kick    chan struct{} // the set of wanted channels changed
	ctx     context.Context
	cancel  context.CancelFunc
	ended   chan struct{}
	started bool
}

// A channel is one wake channel of a subscriber.
type channel struct {
	watches   map[*Watch]struct{}
	requested bool // a SUBSCRIBE is the last that was sent about it
	pending   int  // SUBSCRIBEs and UNSUBSCRIBEs sent on this connection and not yet confirmed
}

// The connection is asked for a sign of life this often, and given up when none
// came for so long. A link that swallows everything is noticed within two
// seconds.
const (
	pingEvery   = 400 * time.Millisecond
	deadAfter   = 1500 * time.Millisecond
	dialWithin  = time.Second
	firstRedial = 50 * time.Millisecond
	lastRedial  = 500 * time.Millisecond
)

func newSubscriber(s *Redis, n *node, ctx context.Context) *subscriber {
	sub := &subscriber{
		s: s, n: n,
		alive:    s.keys.alivePrefix() + s.minter.Process().String(),
		channels: map[string]*channel{},
		live:     make(chan struct{}),
		kick:     make(chan struct{}, 1),
		ended:    make(chan struct{}),
	}
	sub.ctx, sub.cancel = context.WithCancel(ctx)
	return sub
}

// start begins the subscription; stop ends it and waits until it has ended.
func (u *subscriber) start() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.started || u.ctx.Err() != nil {
		return
	}
	u.started = true
	if !u.s.spawn(u.run) {
		close(u.ended)
	}
}

func (u *subscriber) stop() {
	u.mu.Lock()
	started := u.started
	u.cancel()
	u.mu.Unlock()
	if started {
		<-u.ended
	}
}

// idle reports whether nothing is watched here.
func (u *subscriber) idle() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.channels) == 0
}

// awaitLive waits for at most d until Redis has confirmed the liveness channel.
func (u *subscriber) awaitLive(ctx context.Context, d time.Duration) error {
	u.mu.Lock()
	live, denied := u.live, u.denied
	u.mu.Unlock()
	if denied != nil {
		return nil // the store is in its lesser mode by now: ask again
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-live:
		return nil
	case <-timer.C:
		return errUnsubscribed
	case <-ctx.Done():
		return ended(ctx)
	}
}

// add watches a wake channel; remove ends that.
func (u *subscriber) add(name string, w *Watch) {
	u.mu.Lock()
	defer u.mu.Unlock()
	ch := u.channels[name]
	if ch == nil {
		ch = &channel{watches: map[*Watch]struct{}{}}
		u.channels[name] = ch
	}
	ch.watches[w] = struct{}{}
	if ch.requested && ch.pending == 0 {
		w.Push(Message{Signal: Confirmed})
		return
	}
	u.changed()
}

func (u *subscriber) remove(name string, w *Watch) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if ch := u.channels[name]; ch != nil {
		delete(ch.watches, w)
		if len(ch.watches) == 0 {
			u.changed()
		}
	}
}

func (u *subscriber) changed() {
	select {
	case u.kick <- struct{}{}:
	default:
	}
}

// run holds one connection after another until the subscriber is stopped.
func (u *subscriber) run() {
	defer close(u.ended)
	wait := firstRedial
	for {
		wasLive, err := u.session()
		u.down(err)
		if u.ctx.Err() != nil || u.refused(err) {
			return
		}
		if wasLive {
			wait = firstRedial
		}
		u.s.rehome(u)
		if sleep(u.ctx, wait) != nil {
			return
		}
		wait = min(wait*2, lastRedial)
	}
}

// refused puts the store into its lesser mode if the Redis user may not
// subscribe.
func (u *subscriber) refused(err error) bool {
	if !redis.IsPermissionError(err) {
		return false
	}
	u.s.livenessOff(u.n.addr, err)
	u.mu.Lock()
	u.denied = err
	u.mu.Unlock()
	return true
}

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

	if err := u.dial(ctx, ps); err != nil {
		return false, err
	}
	u.mu.Lock()
	epoch := u.epoch
	u.mu.Unlock()
	heard := newStopwatch()
	received := make(chan error, 1)
	if !u.s.spawnCall(func() { received <- u.receive(ctx, ps, epoch, heard) }) {
		return false, ErrClosed
	}
	u.changed() // whatever is wanted already
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for err == nil {
		select {
		case <-u.ctx.Done():
			u.leave(ctx, ps, received)
			err = u.ctx.Err()
		case err = <-received:
		case <-u.kick:
			err = u.reconcile(ctx, ps)
		case <-ping.C:
			if silent := heard.elapsed(); silent > deadAfter {
				err = fmt.Errorf("cache: the subscription has been silent for %v", silent.Round(time.Millisecond))
			} else {
				err = ps.Ping(ctx)
			}
		}
	}
	return u.wentLive(), err
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
	case <-u.ctx.Done():
		cancel()
		return u.ctx.Err()
	}
}

// leave takes back the liveness subscription and waits until Redis has said
// so: from then on it refuses an acquire of this process.
func (u *subscriber) leave(ctx context.Context, ps *redis.PubSub, received <-chan error) {
	left := make(chan struct{})
	u.mu.Lock()
	u.left = left
	u.mu.Unlock()
	if ps.Unsubscribe(ctx, u.alive) != nil {
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

// reconcile sends what makes the connection's channels the wanted ones.
func (u *subscriber) reconcile(ctx context.Context, ps *redis.PubSub) error {
	var subscribe, unsubscribe []string
	u.mu.Lock()
	for name, ch := range u.channels {
		wanted := len(ch.watches) > 0
		switch {
		case wanted && !ch.requested:
			subscribe = append(subscribe, name)
		case !wanted && ch.requested:
			unsubscribe = append(unsubscribe, name)
		case !wanted && ch.pending == 0:
			delete(u.channels, name)
			continue
		default:
			continue
		}
		ch.requested = wanted
		ch.pending++
	}
	u.mu.Unlock()
	return errors.Join(u.send(ctx, ps, subscribe, true), u.send(ctx, ps, unsubscribe, false))
}

// send subscribes to or unsubscribes from channels. Sharded ones go one by one:
// a command's channels must lie in one slot.
func (u *subscriber) send(ctx context.Context, ps *redis.PubSub, names []string, subscribe bool) error {
	if len(names) == 0 {
		return nil
	}
	if u.s.publish != "SPUBLISH" {
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
		if _, moved := redis.IsMovedError(err); moved {
			// A slot moved between finding its node and subscribing there.
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

// confirm takes note of Redis's answer to a SUBSCRIBE or UNSUBSCRIBE.
func (u *subscriber) confirm(msg *redis.Subscription, epoch int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if epoch != u.epoch {
		return
	}
	on := msg.Kind == "subscribe" || msg.Kind == "ssubscribe"
	if msg.Channel == u.alive {
		u.confirmAlive(on)
		return
	}
	ch := u.channels[msg.Channel]
	if ch == nil {
		return
	}
	if ch.pending == 0 && !on {
		// Not asked for: the channel's slot has left this node.
		ch.requested = false
		u.s.spawn(func() { u.s.rehome(u) })
		return
	}
	ch.pending = max(0, ch.pending-1)
	if ch.pending > 0 {
		return
	}
	if on && ch.requested {
		for w := range ch.watches {
			w.Push(Message{Signal: Confirmed})
		}
	}
	if !on && len(ch.watches) == 0 {
		delete(u.channels, msg.Channel)
	}
	if ch.requested != (len(ch.watches) > 0) {
		u.changed()
	}
}

// confirmAlive is called with u.mu held.
func (u *subscriber) confirmAlive(on bool) {
	switch {
	case on && !u.isLive && u.ctx.Err() == nil:
		u.isLive = true
		close(u.live)
		u.s.observe(Event{Kind: SubscriptionUp, Node: u.n.addr})
	case !on && u.left != nil:
		close(u.left)
		u.left = nil
	}
}

// bounce forgets what was requested and isn't confirmed: at least one of the
// requests met a node that no longer has the slot, and the error doesn't say
// which.
func (u *subscriber) bounce(epoch int) {
	u.mu.Lock()
	if epoch != u.epoch {
		u.mu.Unlock()
		return
	}
	for _, ch := range u.channels {
		if ch.pending > 0 {
			ch.pending, ch.requested = 0, false
		}
	}
	u.mu.Unlock()
	u.s.spawn(func() {
		if sleep(u.ctx, firstRedial) == nil {
			u.s.rehome(u)
		}
	})
}

// deliver hands a wake-up to those who wait for it.
func (u *subscriber) deliver(msg *redis.Message, epoch int) {
	m, err := ParseMessage([]byte(msg.Payload))
	if err != nil {
		u.s.observe(Event{Kind: MessageDamaged, Node: u.n.addr, Err: err})
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if ch := u.channels[msg.Channel]; ch != nil && epoch == u.epoch {
		for w := range ch.watches {
			w.Push(m)
		}
	}
}

// down notes that nothing is confirmed any more.
func (u *subscriber) down(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.epoch++
	for _, ch := range u.channels {
		ch.requested, ch.pending = false, 0
	}
	if !u.isLive {
		return
	}
	u.isLive = false
	u.live = make(chan struct{})
	if u.ctx.Err() == nil {
		u.s.observe(Event{Kind: SubscriptionLost, Node: u.n.addr, Err: why})
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
