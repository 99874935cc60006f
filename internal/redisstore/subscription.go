package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// A subscription keeps this process subscribed on a node, on one connection. Its liveness
// channel lies there, on which nothing is ever published: that Redis counts a subscriber
// says that the process is alive. The wake-ups of the keys that are waited for come
// there, and the invalidations that near caches follow.
//
// One goroutine owns all state. Others post requests to it. Its states:
//
//	pausing   there is no connection; the next one is due at a time
//	dialing   a connection is being made
//	connected the liveness channel is subscribed to, and not confirmed
//	live      the liveness channel is confirmed
//	leaving   the store closes: the liveness channel is being left
//
// A connection that fails is never mended. A new one takes its place: the client itself
// resubscribes wrongly in a cluster, and only a new connection tells which channels are
// confirmed.
type subscription struct {
	n       *node
	watches *watches
	begun   atomic.Bool
	hears   atomic.Bool // invalidations published on the node reach this process
	wasLive atomic.Bool // once at least
	isLive  atomic.Bool // the state is live
	started time.Time

	mu       sync.Mutex // guards the requests only
	requests []func()
	posted   chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}

	// All of the rest is the owner's.
	state    subscriptionState
	conn     *connection // nil while pausing
	writing  time.Time   // since when a write is under way; zero: none is
	heard    time.Time   // when the last sign of life came, or none was asked for
	pinged   time.Time   // when the last ping was written
	due      time.Time   // pausing: of the next connection
	wait     time.Duration
	dialedAt time.Time
	liveAt   time.Time
	pings    int
	channels map[string]*channel
	resume   time.Time       // no channel is asked for until then: see bounce
	spare    int             // channels that are no longer wanted and not yet given back
	giveBack bool            // they are to be given back
	followed bool            // the channel of invalidations was subscribed to
	follows  bool            // that is confirmed
	ready    []chan struct{} // acquires that wait to be asked again
	sight    sight
}

type subscriptionState byte

const (
	pausing subscriptionState = iota
	dialing
	connected
	live
	leaving
)

// A channel is one wake channel.
type channel struct {
	watches   map[*store.Watch]struct{}
	requested bool // a SUBSCRIBE is the last that was written about it
	pending   int  // SUBSCRIBEs and UNSUBSCRIBEs written on this connection and not yet confirmed
}

func newSubscription(n *node, w *watches) *subscription {
	u := &subscription{
		n: n, watches: w, channels: map[string]*channel{}, posted: make(chan struct{}, 1), ended: make(chan struct{}), wait: firstRedial,
	}
	u.ctx, u.cancel = context.WithCancel(n.ctx)
	return u
}

// start begins the subscription; stop ends it and waits until it has ended.
func (u *subscription) start() {
	if u.ctx.Err() != nil || u.begun.Swap(true) {
		return
	}
	u.started = time.Now()
	if !u.n.s.spawn(u.run) {
		close(u.ended)
	}
}

func (u *subscription) stop() {
	u.cancel()
	if u.begun.Load() {
		<-u.ended
	}
	if u.watches.liveness.regain(u) && !u.n.s.closing.Load() {
		u.n.s.report(store.Event{Kind: store.LivenessOn, Node: u.n.addr})
	}
}

// post has the owner call f. It never blocks; f is not called once the owner has ended.
func (u *subscription) post(f func()) {
	u.mu.Lock()
	u.requests = append(u.requests, f)
	u.mu.Unlock()
	select {
	case u.posted <- struct{}{}:
	default:
	}
}

// run owns the subscription until it is stopped.
func (u *subscription) run() {
	defer close(u.ended)
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var leaveBy <-chan time.Time
	stopped := u.ctx.Done()
	for {
		var events chan event
		if u.conn != nil {
			events = u.conn.events
		}
		select {
		case e := <-events:
			u.take(e)
		case <-u.posted:
			u.carryOut()
		case <-ping.C:
			u.ping()
		case <-timer.C:
		case <-stopped:
			stopped = nil
			if u.state != live {
				u.lose(u.ctx.Err())
				return
			}
			u.state = leaving
			leave := time.NewTimer(u.n.s.opts.RedisTimeout)
			defer leave.Stop()
			leaveBy = leave.C
		case <-leaveBy:
			u.lose(u.ctx.Err())
		}
		switch {
		case u.state == leaving && u.writing.IsZero() && !u.sight.left:
			u.sight.left = true
			u.write(func(ctx context.Context, ps *redis.PubSub) error { return ps.Unsubscribe(ctx, u.n.s.alive) })
		case u.ctx.Err() != nil && u.conn == nil:
			return
		case u.state == pausing:
			if wait := time.Until(u.due); wait > 0 {
				timer.Reset(wait)
			} else {
				u.dial()
			}
		case u.state == connected || u.state == live:
			u.reconcile()
		}
	}
}

func (u *subscription) carryOut() {
	u.mu.Lock()
	requests := u.requests
	u.requests = nil
	u.mu.Unlock()
	for _, f := range requests {
		f()
	}
}

func (u *subscription) dial() {
	u.state, u.dialedAt, u.writing, u.heard = dialing, time.Now(), time.Now(), time.Now()
	u.conn = dial(u.n, u.n.s.alive)
}

// take acts on an event of the connection.
func (u *subscription) take(e event) {
	switch {
	case e.failed != nil:
		u.lose(e.failed)
		return
	case e.written:
		if u.writing = (time.Time{}); u.state == dialing {
			u.state = connected
		}
		return
	}
	u.heard = time.Now()
	switch msg := e.message.(type) {
	case *redis.Subscription:
		u.confirm(msg)
	case *redis.Message:
		u.deliver(msg)
	}
	if e.moved {
		u.bounce()
	}
}

// ping asks for a sign of life and gives up a connection that shows none. Looks and the
// return of channels go at the same pace.
func (u *subscription) ping() {
	switch silent := time.Since(u.heard); {
	case u.conn == nil:
		return
	case u.state == dialing:
		if time.Since(u.dialedAt) > dialWithin {
			u.lose(fmt.Errorf("%w: %w", errNoConnection, context.DeadlineExceeded))
		}
		return
	case silent > deadAfter:
		u.lose(fmt.Errorf("cache: the subscription has been silent for %v", silent.Round(time.Millisecond)))
		return
	case !u.writing.IsZero():
		if time.Since(u.writing) > min(u.n.s.opts.RedisTimeout, deadAfter) {
			u.lose(fmt.Errorf("cache: a write on the subscription took longer than %v", u.n.s.opts.RedisTimeout))
		}
		return
	case u.state == leaving:
		return
	}
	u.giveBack = true
	if u.rests() {
		u.heard = time.Now()
		return
	}
	if u.pings++; u.lookIsDue() {
		u.look()
	}
	u.pinged = time.Now()
	u.write(func(ctx context.Context, ps *redis.PubSub) error { return ps.Ping(ctx) })
}

// rests reports whether no ping is due yet, as nothing depends on the connection: no wake-up
// is waited for, no lease is held, no near cache relies on it, and the node answers.
func (u *subscription) rests() bool {
	if u.state != live || !u.trusted() || u.sight.lost != lostNothing || u.heard.Before(u.pinged) || time.Since(u.pinged) >= restsFor {
		return false
	}
	for _, ch := range u.channels {
		if len(ch.watches) > 0 {
			return false
		}
	}
	return !u.watches.feeds.Strict() && !u.watches.ledger.holds() && !u.n.breaker.open.Load()
}

// write has the connection written to. Only one write is under way at a time.
func (u *subscription) write(w write) {
	u.writing = time.Now()
	u.conn.writes <- w
}

// maxSpare channels may be subscribed to that are not wanted any more, until the next
// ping. They are given back together: when a flight ends, its waiters want all CPU time,
// in every process of the fleet; and a key that is waited for again meanwhile needs no
// subscription.
const maxSpare = 256

// reconcile writes what makes the connection's channels the wanted ones.
func (u *subscription) reconcile() {
	if !u.writing.IsZero() || time.Now().Before(u.resume) {
		return
	}
	giveBack := u.giveBack || u.spare >= maxSpare
	if u.giveBack = false; giveBack {
		u.spare = 0
	}
	follow := !u.followed && u.watches.feeds.Any()
	u.followed = u.followed || follow
	var subscribe, unsubscribe []string
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
	if !follow && len(subscribe)+len(unsubscribe) == 0 {
		return
	}
	s := u.n.s
	u.write(func(ctx context.Context, ps *redis.PubSub) error {
		if follow {
			if err := ps.Subscribe(ctx, s.names.invalidations()); err != nil {
				return err
			}
		}
		return errors.Join(u.subscribe(ctx, ps, subscribe, true), u.subscribe(ctx, ps, unsubscribe, false))
	})
}

// subscribe subscribes to or unsubscribes from channels. Sharded ones go one by one: a
// command's channels must lie in one slot.
func (u *subscription) subscribe(ctx context.Context, ps *redis.PubSub, names []string, on bool) error {
	all, each := ps.Unsubscribe, ps.SUnsubscribe
	if on {
		all, each = ps.Subscribe, ps.SSubscribe
	}
	if len(names) == 0 {
		return nil
	}
	if !u.n.s.sharded.Load() {
		return all(ctx, names...)
	}
	for _, name := range names {
		if err := each(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// add watches a wake channel; remove ends that.
func (u *subscription) add(name string, w *store.Watch) {
	u.post(func() {
		ch := u.channels[name]
		if ch == nil {
			ch = &channel{watches: map[*store.Watch]struct{}{}}
			u.channels[name] = ch
		}
		ch.watches[w] = struct{}{}
		if ch.requested && ch.pending == 0 {
			w.Push(store.Message{Signal: store.Confirmed})
		}
	})
}

func (u *subscription) remove(name string, w *store.Watch) {
	u.post(func() {
		ch := u.channels[name]
		if ch == nil {
			return
		}
		delete(ch.watches, w)
		switch {
		case len(ch.watches) > 0:
		case !ch.requested && ch.pending == 0:
			delete(u.channels, name)
		default:
			u.spare++
		}
	})
}

// confirm takes note of Redis's answer to a SUBSCRIBE or UNSUBSCRIBE.
func (u *subscription) confirm(msg *redis.Subscription) {
	on := msg.Kind == "subscribe" || msg.Kind == "ssubscribe"
	switch ch := u.channels[msg.Channel]; {
	case msg.Channel == u.n.s.alive:
		u.confirmAlive(on)
	case msg.Channel == u.n.s.names.invalidations():
		u.follows = on
		u.judgeHearing()
	case ch == nil:
	case ch.pending == 0 && !on:
		// Not asked for: the channel's slot has left this node.
		if ch.requested = false; len(ch.watches) == 0 {
			delete(u.channels, msg.Channel)
			return
		}
		u.n.s.spawn(func() { u.watches.rehome(u) })
	default:
		if ch.pending = max(0, ch.pending-1); ch.pending > 0 {
			return
		}
		if on && ch.requested {
			for w := range ch.watches {
				w.Push(store.Message{Signal: store.Confirmed})
			}
		}
		if !on && len(ch.watches) == 0 {
			delete(u.channels, msg.Channel)
		}
	}
}

func (u *subscription) confirmAlive(on bool) {
	switch {
	case on && u.state == connected:
		u.state, u.liveAt = live, time.Now()
		u.isLive.Store(true)
		u.wasLive.Store(true)
		u.signal()
		u.n.s.report(store.Event{Kind: store.SubscriptionUp, Node: u.n.addr})
		u.look()
	case !on && u.state == leaving:
		u.lose(u.ctx.Err())
	}
}

// bounce forgets the requests that are not confirmed: one of them at least met a node that
// no longer has the slot, and the error does not say which. They are made again after a pause.
func (u *subscription) bounce() {
	u.resume = time.Now().Add(firstRedial)
	for _, ch := range u.channels {
		if ch.pending > 0 {
			ch.pending, ch.requested = 0, false
		}
	}
	u.n.s.spawn(func() {
		if sleep(u.ctx, firstRedial) == nil {
			u.watches.rehome(u)
		}
	})
}

// deliver hands a message to those that wait for it.
func (u *subscription) deliver(msg *redis.Message) {
	s := u.n.s
	if msg.Channel == s.names.invalidations() {
		if what, ok := parseInvalidation(msg.Payload); ok {
			u.watches.feeds.Forget(what)
		} else {
			s.report(store.Event{Kind: store.MessageDamaged, Node: u.n.addr, Err: errForeignMessage})
		}
		return
	}
	m, err := store.ParseMessage([]byte(msg.Payload))
	if err != nil {
		s.report(store.Event{Kind: store.MessageDamaged, Node: u.n.addr, Err: err})
		return
	}
	if ch := u.channels[msg.Channel]; ch != nil {
		for w := range ch.watches {
			w.Push(m)
		}
	}
}

var errForeignMessage = fmt.Errorf("%w: on the channel of invalidations", store.ErrDamaged)

// parseInvalidation reports false for a message that is none.
func parseInvalidation(payload string) (store.Invalidation, bool) {
	switch {
	case len(payload) > 1 && payload[:1] == tagChanged:
		return store.Invalidation{Tag: payload[1:]}, true
	case len(payload) > 0 && payload[:1] == keyChanged:
		return store.Invalidation{Key: payload[1:]}, true
	}
	return store.Invalidation{}, false
}

// lose gives the connection up: nothing is confirmed any more.
func (u *subscription) lose(why error) {
	if u.conn == nil {
		return
	}
	wasLive, useful := u.state == live || u.state == leaving, u.state == live && u.trusted()
	u.conn.close()
	u.conn, u.state = nil, pausing
	u.isLive.Store(false)
	u.writing, u.followed, u.follows = time.Time{}, false, false
	u.sight.seenSince, u.sight.blind = time.Time{}, false
	u.hears.Store(false)
	u.watches.feeds.Down()
	for name, ch := range u.channels {
		if ch.requested, ch.pending = false, 0; len(ch.watches) == 0 {
			delete(u.channels, name)
		}
	}
	if u.ctx.Err() != nil {
		return
	}
	if wasLive {
		u.n.s.report(store.Event{Kind: store.SubscriptionLost, Node: u.n.addr, Err: why})
	}
	u.failed(why)
	if useful && !errors.Is(why, errRefusedHere) {
		u.wait = firstRedial
	}
	u.due = time.Now().Add(u.wait)
	longest := lastRedial
	if u.sight.lost != lostNothing {
		longest = refusedRedial
	}
	u.wait = min(u.wait*2, longest)
	u.n.s.spawn(func() { u.watches.rehome(u) })
	if u.sight.lost == lostNothing && time.Since(u.sight.unseenAt) < lookGap {
		u.look() // even if no connection gets as far as to be confirmed
	}
}

// doubt gives the connection up if it has been live since before the given time, at which
// scripts did not see it. Behind Sentinel, a master that was replaced goes on answering for
// some ten seconds. The client closes its pooled connections to it, but not this one.
func (u *subscription) doubt(since time.Time) {
	if u.state == live && u.liveAt.Before(since) {
		u.lose(errElsewhere)
		u.due = time.Now()
	}
}

// hurry makes a connection that is not live anew at once, unless its making has begun since
// the given time: it may be stuck in a dial, wait for an answer that was lost, or for the
// time of the next try.
func (u *subscription) hurry(since time.Time) {
	if u.state == live || u.state == leaving || !u.dialedAt.Before(since) {
		return
	}
	u.lose(errElsewhere)
	u.due = time.Now()
}

// signal lets the acquires go on that wait for the liveness channel, or to hear that the
// store does without.
func (u *subscription) signal() {
	if u.state != live && u.sight.lost == lostNothing {
		return
	}
	for _, c := range u.ready {
		close(c)
	}
	u.ready = nil
}

// awaitReady waits for at most d until an acquire may be asked again.
func (u *subscription) awaitReady(ctx context.Context, d time.Duration) error {
	ready := make(chan struct{})
	u.post(func() {
		u.ready = append(u.ready, ready)
		u.signal()
	})
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ready:
		return nil
	case <-timer.C:
		return errUnsubscribed
	case <-ctx.Done():
		return store.Ended(ctx)
	}
}
