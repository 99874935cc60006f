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

// seenWithin is for how long a node that is back is given to see the subscription.
const seenWithin = 500 * time.Millisecond

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
	alive string      // channel
	hears atomic.Bool // invalidations published on the node reach this process

	mu       sync.Mutex
	channels map[string]*channel // wake channels, wanted or not yet unsubscribed
	spare    int                 // channels left since the last that weren't wanted were given back
	ready    chan struct{}       // closed while an acquire has nothing to wait for: see signal
	isLive   bool                // the liveness channel is confirmed
	liveAt   time.Time           // when it last became live
	begun    time.Time           // when the subscriber was started
	dialedAt time.Time           // when the connection was begun
	followed bool                // the channel of invalidations was subscribed to
	follows  bool                // that is confirmed
	epoch    int                 // counts connections: what an earlier one still delivers is ignored
	left     chan struct{}       // closed when the liveness channel was left on purpose
	sight    sight

	kick    chan struct{} // the set of wanted channels changed
	doubted chan struct{} // the connection is to be made anew: Redis doesn't see it
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

func newSubscriber(s *Redis, n *node, ctx context.Context) *subscriber {
	sub := &subscriber{
		s: s, n: n,
		alive:    s.alive,
		channels: map[string]*channel{},
		ready:    make(chan struct{}),
		kick:     make(chan struct{}, 1),
		doubted:  make(chan struct{}, 1),
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
	u.started, u.begun = true, time.Now()
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
	if u.s.liveness.regain(u) && !u.s.closing.Load() {
		u.s.observe(Event{Kind: LivenessOn, Node: u.n.addr})
	}
}

// idle reports whether nothing is watched here.
func (u *subscriber) idle() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, ch := range u.channels {
		if len(ch.watches) > 0 {
			return false
		}
	}
	return true
}

// patience is until when an acquire with that deadline waits for the liveness
// channel: where that has never been confirmed, for as long from the start as a
// dial may take. Else each process that starts on a busy machine would fetch for
// itself.
func (u *subscriber) patience(deadline time.Time) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if first := u.begun.Add(dialWithin); u.liveAt.IsZero() && first.After(deadline) {
		return first
	}
	return deadline
}

// awaitReady waits for at most d until an acquire may be asked again: Redis has confirmed
// the liveness channel, or liveness is off on account of this node.
func (u *subscriber) awaitReady(ctx context.Context, d time.Duration) error {
	u.mu.Lock()
	ready := u.ready
	u.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ready:
		return nil
	case <-timer.C:
		return errUnsubscribed
	case <-ctx.Done():
		return ended(ctx)
	}
}

// signalLocked brings ready up to date.
func (u *subscriber) signalLocked() {
	closed := false
	select {
	case <-u.ready:
		closed = true
	default:
	}
	switch ready := u.isLive || u.sight.lost != lostNothing; {
	case ready && !closed:
		close(u.ready)
	case !ready && closed:
		u.ready = make(chan struct{})
	}
}

// doubt gives the connection up if it has been live since before the given time, at which
// scripts did not see it. Behind Sentinel, a master that was replaced goes on answering
// for some ten seconds. The client closes its pooled connections to it, but not this one.
func (u *subscriber) doubt(since time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.doubtLocked(since)
}

func (u *subscriber) doubtLocked(since time.Time) {
	if !u.isLive || !u.liveAt.Before(since) {
		return
	}
	select {
	case u.doubted <- struct{}{}:
	default:
	}
}

// awaitSeen waits, for at most seenWithin, until Redis sees this process's
// subscription, after it was away: without it Redis grants nothing, and every
// caller would fetch for itself. A connection from before is given up. The error
// is of a Redis that has gone again.
func (u *subscriber) awaitSeen(ctx context.Context) error {
	for began := time.Now(); u.s.liveness.on.Load() && time.Since(began) < seenWithin; {
		n, err := u.seen(ctx)
		if errors.Is(err, ErrUnavailable) {
			return err
		}
		if err != nil || n > 0 {
			return nil
		}
		u.doubt(began)
		u.hurry(began)
		if err := sleep(ctx, unsubscribedWait); err != nil {
			return err
		}
	}
	return nil
}

// hurry has a connection that isn't live made anew at once, unless its making
// has begun since the given time: it may be stuck in a dial, wait for an answer
// that was lost, or for the time of the next try.
func (u *subscriber) hurry(since time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.isLive || !u.dialedAt.Before(since) {
		return
	}
	select {
	case u.doubted <- struct{}{}:
	default:
	}
}

// maxSpare channels may be subscribed to that nobody waits on any more: until
// the next ping, which is when they are given back.
const maxSpare = 256

// add watches a wake channel; remove ends that. The channel that nobody watches
// any more is given back a little later, with others: when a flight ends, all
// processor time is wanted by those who waited for it, in every process of the
// fleet. Who asks for the key again meanwhile need not subscribe.
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
		switch {
		case len(ch.watches) > 0:
		case !ch.requested && ch.pending == 0:
			delete(u.channels, name) // nothing was sent about it, or all that was is gone
		default:
			if u.spare++; u.spare >= maxSpare {
				u.changed()
			}
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
		wasUseful, err := u.session()
		u.down(err)
		if u.ctx.Err() != nil {
			return
		}
		u.failed(err)
		if wasUseful && !errors.Is(err, errRefusedHere) {
			wait = firstRedial
		}
		u.s.rehome(u)
		if u.isMissing() {
			u.s.spawn(u.look)
		}
		if u.pause(wait) != nil {
			return
		}
		wait = min(wait*2, u.longestPause())
	}
}

// isMissing reports whether Redis answers and does not see the subscription, and so
// whether to look again even if no connection gets as far as to be confirmed.
func (u *subscriber) isMissing() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sight.lost == lostNothing && time.Since(u.sight.unseenAt) < lookGap
}

func (u *subscriber) longestPause() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sight.lost != lostNothing {
		return refusedRedial
	}
	return lastRedial
}

// pause waits for d before the next connection, or until there is no reason to.
func (u *subscriber) pause(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-u.doubted:
	case <-u.ctx.Done():
	}
	return u.ctx.Err()
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
	if msg.Channel == u.s.keys.invalidations() {
		u.follows = on
		u.judgeHearingLocked()
		return
	}
	ch := u.channels[msg.Channel]
	if ch == nil {
		return
	}
	if ch.pending == 0 && !on {
		// Not asked for: the channel's slot has left this node.
		ch.requested = false
		if len(ch.watches) == 0 {
			delete(u.channels, msg.Channel)
			return
		}
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
	if !ch.requested && len(ch.watches) > 0 {
		u.changed()
	}
}

// confirmAlive is called with u.mu held.
func (u *subscriber) confirmAlive(on bool) {
	switch {
	case on && !u.isLive && u.ctx.Err() == nil:
		u.isLive, u.liveAt = true, time.Now()
		select {
		case <-u.doubted: // it was about an earlier connection
		default:
		}
		u.signalLocked()
		u.s.observe(Event{Kind: SubscriptionUp, Node: u.n.addr})
		u.s.spawn(u.look)
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
	if msg.Channel == u.s.keys.invalidations() {
		if what, ok := parseInvalidation(msg.Payload); ok {
			u.s.feeds.forget(what)
		} else {
			u.s.observe(Event{Kind: MessageDamaged, Node: u.n.addr, Err: errForeignMessage})
		}
		return
	}
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

var errForeignMessage = fmt.Errorf("%w: on the channel of invalidations", ErrDamaged)

// down notes that nothing is confirmed any more.
func (u *subscriber) down(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.epoch++
	u.followed, u.follows = false, false
	u.sight.seenSince, u.sight.blind = time.Time{}, false
	u.hears.Store(false)
	u.s.feeds.down()
	for name, ch := range u.channels {
		ch.requested, ch.pending = false, 0
		if len(ch.watches) == 0 {
			delete(u.channels, name)
		}
	}
	if !u.isLive {
		return
	}
	u.isLive = false
	u.signalLocked()
	if u.ctx.Err() == nil {
		u.s.observe(Event{Kind: SubscriptionLost, Node: u.n.addr, Err: why})
	}
}
