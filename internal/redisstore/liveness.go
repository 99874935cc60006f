package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// This file decides whether the store watches the holders of leases. It does while scripts
// on every node see this process's subscription. Where they don't, as the subscription is
// refused or ends at another server, leases are granted without it and end by expiry alone.

const (
	// unseenFor is for how long scripts must not have seen the subscription before liveness
	// is turned off. It is longer than a failover takes to be followed.
	unseenFor = 3 * time.Second
	// transientFor is that while the connection fails for a cause that passes by itself: the
	// server is loading, or has too many clients, or can't be reached.
	transientFor = 30 * time.Second
	// lookGap is the longest time between two looks of which neither saw the subscription,
	// for them to count as one absence.
	lookGap = 2 * time.Second
	// firstSettling is for how long scripts must have seen the subscription before liveness is
	// turned on again. It doubles with each time that liveness is lost.
	firstSettling = 3 * time.Second
	lastSettling  = 10 * time.Minute

	verifyEvery = 4  // pings between looks at a subscription that matters
	blindEvery  = 25 // pings between looks that are refused

	// seenWithin is for how long a node that is back is given to see the subscription.
	seenWithin = 500 * time.Millisecond
	// unsubscribedWait is the pause before asking again after Redis did not see this process's
	// subscription.
	unsubscribedWait = 5 * time.Millisecond
)

// liveness is whether the store watches holders. It is off while any node has a reason.
type liveness struct {
	on       atomic.Bool
	disabled bool // Options.DisableLiveness

	mu      sync.Mutex
	reasons []lostLiveness // oldest first
}

type lostLiveness struct {
	sub *subscription
	why error
}

// lose notes why a node's holders can't be watched, in place of an earlier reason of that
// node. It reports whether that is news: no other node has a reason.
func (l *liveness) lose(sub *subscription, why error) (news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.withdrawLocked(sub)
	l.reasons = append(l.reasons, lostLiveness{sub, why})
	l.on.Store(false)
	return len(l.reasons) == 1
}

// regain withdraws a node's reason, and reports whether liveness is on again for that.
func (l *liveness) regain(sub *subscription) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.withdrawLocked(sub) {
		return false
	}
	l.on.Store(!l.disabled && len(l.reasons) == 0)
	return l.on.Load()
}

func (l *liveness) withdrawLocked(sub *subscription) bool {
	n := len(l.reasons)
	l.reasons = slices.DeleteFunc(l.reasons, func(r lostLiveness) bool { return r.sub == sub })
	return len(l.reasons) < n
}

// Liveness returns nil while the store watches whether the holders of leases are alive.
// Otherwise its error names the reason and the remedy.
func (s *watches) Liveness() error {
	l := &s.liveness
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.reasons) > 0:
		return l.reasons[0].why
	case l.disabled:
		return errors.New("cache: liveness is off (Options.DisableLiveness)")
	}
	return nil
}

// livenessArg is whether holders are watched, as an argument.
func (s *watches) livenessArg() int {
	if s.liveness.on.Load() {
		return 1
	}
	return 0
}

// A sight holds the results of looks at a node's subscription. It is the owner's.
type sight struct {
	seenSince   time.Time // zero if the last look did not see it
	unseenSince time.Time // zero if the last look saw it
	unseenAt    time.Time // time of the last look that did not see it
	transient   bool      // the last connection ended for a cause that passes by itself
	blind       bool      // the last look was refused
	looking     *connection
	under       bool // a look is under way, on behalf of looking
	lost        lossOf
	settling    time.Duration
	left        bool // the liveness channel is being left
}

// A lossOf is the reason why liveness is off.
type lossOf int

const (
	lostNothing      lossOf = iota
	lostSight               // PUBSUB is refused: invalidations are heard even so
	lostSubscription        // SUBSCRIBE is refused, or the subscription is not seen
)

// trusted reports whether scripts see the subscription, or can't be asked.
func (u *subscription) trusted() bool { return u.sight.blind || !u.sight.seenSince.IsZero() }

// lookIsDue reports whether to look beside this ping.
func (u *subscription) lookIsDue() bool {
	switch {
	case u.state != live:
		return false
	case u.sight.blind:
		return u.pings%blindEvery == 0
	case u.sight.seenSince.IsZero():
		return true
	}
	return u.pings%verifyEvery == 0 && (u.sight.lost != lostNothing || u.watches.feeds.Strict())
}

// look asks a script on the node whether it sees the subscription, and draws the
// conclusions. A near cache needs them even without liveness, and an acquire, which could
// tell as well, may be rare.
func (u *subscription) look() {
	if u.sight.under && u.sight.looking == u.conn {
		return
	}
	conn, asked := u.conn, time.Now()
	u.sight.looking, u.sight.under = conn, true
	u.n.s.spawn(func() {
		count, err := u.seen(u.ctx)
		u.post(func() {
			if u.sight.looking == conn {
				u.sight.under = false
			}
			switch {
			case errors.Is(err, store.ErrRefused):
				u.refused("PUBSUB", err)
			case err != nil || conn != u.conn: // no answer, or to an old question
			case count > 0:
				u.saw(asked)
			case u.state == live && !u.liveAt.Before(asked): // it became live in between
			default:
				u.sight.seenSince, u.sight.blind = time.Time{}, false
				u.unseen(asked)
				u.judgeHearing()
				u.doubt(asked)
			}
		})
	})
}

// seen asks a script on the node how often this process is subscribed there. It asks
// even while the breaker is open.
func (u *subscription) seen(ctx context.Context) (int64, error) {
	n := u.n
	inv := seenScript.invoke(0, n.s.alive)
	if n.single {
		inv = seenScript.invoke(1, &n.s.names.names("").lease, n.s.alive)
	}
	cmd := inv.command(ctx, false)
	err := n.direct(ctx, "PUBSUB NUMSUB", cmd)
	if isUnknownScript(err) {
		cmd = inv.command(ctx, true)
		err = n.direct(ctx, "PUBSUB NUMSUB", cmd)
	}
	if err != nil {
		return 0, err
	}
	count, _ := cmd.Val().(int64)
	return count, nil
}

// awaitSeen waits, for at most seenWithin, until Redis sees this process's subscription,
// after it was away: without it Redis grants nothing, and every caller would fetch for
// itself. A connection from before is given up. The error is of a Redis that has gone
// again.
func (u *subscription) awaitSeen(ctx context.Context) error {
	for began := time.Now(); u.watches.liveness.on.Load() && time.Since(began) < seenWithin; {
		n, err := u.seen(ctx)
		if errors.Is(err, store.ErrUnavailable) {
			return err
		}
		if err != nil || n > 0 {
			return nil
		}
		u.post(func() {
			u.doubt(began)
			u.hurry(began)
		})
		if err := sleep(ctx, unsubscribedWait); err != nil {
			return err
		}
	}
	return nil
}

// awaitSubscription waits, after an acquire that was sent at the time asked, until it is
// worth asking again, and for no longer than the deadline allows. Redis did not see this
// process's subscription.
func (s *watches) awaitSubscription(ctx context.Context, key string, asked, deadline time.Time) error {
	n, err := s.topo.node(s.names.entry(key))
	if err != nil {
		return err
	}
	u := n.sub
	u.post(func() {
		// Another server than this node's may have carried the acquire out, as when a slot
		// moves. So the results of earlier looks stay until the next look.
		u.unseen(asked)
		if u.trusted() {
			u.look()
		}
	})
	if !s.liveness.on.Load() {
		return nil // the next acquire does without
	}
	// Where the channel has never been confirmed, an acquire waits for as long from the start
	// as a dial may take. Else each process that starts on a busy machine would fetch for
	// itself.
	until := deadline
	if first := u.started.Add(dialWithin); !u.wasLive.Load() && first.After(deadline) {
		until = first
	}
	if time.Now().After(until) {
		u.post(func() { u.doubt(deadline.Add(-s.opts.RedisTimeout)) })
		return n.explain(errUnsubscribed)
	}
	if err := u.awaitReady(ctx, time.Until(until)); err != nil {
		return n.explain(err)
	}
	// The subscription may be confirmed and still not be seen: no busy loop.
	if sleep(ctx, unsubscribedWait) != nil {
		return store.Ended(ctx)
	}
	return nil
}

// saw takes in that a look saw the subscription.
func (u *subscription) saw(asked time.Time) {
	v := &u.sight
	v.unseenSince, v.unseenAt, v.blind = time.Time{}, time.Time{}, false
	if v.seenSince.IsZero() {
		v.seenSince = asked
	}
	if v.lost != lostNothing && asked.Sub(v.seenSince) >= v.settling {
		v.lost = lostNothing
		if u.watches.liveness.regain(u) {
			u.n.s.report(store.Event{Kind: store.LivenessOn, Node: u.n.addr})
		}
	}
	u.judgeHearing()
}

// unseen takes in that a script was asked at that time and did not see the subscription.
func (u *subscription) unseen(asked time.Time) {
	v := &u.sight
	if v.unseenSince.IsZero() || asked.Sub(v.unseenAt) > lookGap {
		v.unseenSince = asked
	}
	v.unseenAt = asked
	limit := unseenFor
	if v.transient {
		limit = transientFor
	}
	if d := asked.Sub(v.unseenSince); d >= limit {
		u.forgo(lostSubscription, fmt.Errorf("%w, and near caches keep nothing: scripts have not seen this process's subscription for %v"+
			" (use an address at which scripts and subscriptions reach the same server, and a proxy that supports SUBSCRIBE)",
			errLivenessOff, d.Round(time.Second)))
	}
}

// failed takes in why the last connection ended.
func (u *subscription) failed(why error) {
	reply := redis.Error(nil)
	replied := errors.As(why, &reply)
	u.sight.transient = errors.Is(why, errNoConnection) || replied && passing(reply)
	if replied && errors.Is(why, errRefusedHere) {
		u.refused("SUBSCRIBE", reply)
	}
}

// refused takes in that the node refuses SUBSCRIBE, or PUBSUB.
func (u *subscription) refused(command string, reply error) {
	loss, cost, what := lostSubscription, ", and near caches keep nothing", "the subscription"
	if command == "PUBSUB" {
		loss, cost, what = lostSight, "", "PUBSUB in scripts"
		u.sight.blind = true
	}
	advice := "use a server or proxy that supports it"
	if rule := u.n.s.names.toGrant(command, reply); rule != "" {
		advice = "grant the Redis user " + rule
	}
	u.forgo(loss, fmt.Errorf("%w%s: Redis refuses %s (%s): %w", errLivenessOff, cost, what, advice, reply))
	u.judgeHearing()
}

var errLivenessOff = errors.New("cache: liveness is off, dead holders are replaced when their lease expires")

// forgo turns liveness off on account of this node, unless it is off already and no more is
// lost now than before.
func (u *subscription) forgo(loss lossOf, why error) {
	v := &u.sight
	if v.lost >= loss || u.ctx.Err() != nil {
		return
	}
	if v.lost == lostNothing {
		v.settling = min(max(firstSettling, 2*v.settling), lastSettling)
	}
	v.lost = loss
	news := u.watches.liveness.lose(u, why)
	u.signal()
	if news {
		u.n.s.report(store.Event{Kind: store.LivenessOff, Node: u.n.addr, Err: why})
	}
}

// judgeHearing decides whether this process hears of the node's invalidations.
func (u *subscription) judgeHearing() {
	hears := u.follows && u.trusted()
	if u.hears.Swap(hears) == hears {
		return
	}
	if hears {
		u.n.s.spawn(u.watches.checkFeeds)
	} else {
		u.watches.feeds.Down()
	}
}
