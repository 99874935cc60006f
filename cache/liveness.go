package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file decides whether the store watches the holders of leases. It does while scripts
// on every node see this process's subscription. Where they don't, as the subscription is
// refused or ends at another server, leases are granted without it and end by expiry alone.

const (
	// unseenFor is for how long scripts must not have seen the subscription before
	// liveness is turned off. It is longer than a failover takes to be followed.
	unseenFor = 3 * time.Second
	// transientFor is that while the connection fails for a cause that passes by itself:
	// the server is loading, or has too many clients, or can't be reached.
	transientFor = 30 * time.Second
	// lookGap is the longest time between two looks of which neither saw the
	// subscription, for them to count as one absence.
	lookGap = 2 * time.Second
	// firstSettling is for how long scripts must have seen the subscription before
	// liveness is turned on again. It doubles with each time that liveness is lost.
	firstSettling = 3 * time.Second
	lastSettling  = 10 * time.Minute

	verifyEvery = 4  // pings between looks at a subscription that matters
	blindEvery  = 25 // pings between looks that are refused
)

// liveness is whether the store watches holders. It is off while any node has a reason.
type liveness struct {
	on       atomic.Bool
	disabled bool // Options.DisableLiveness

	mu      sync.Mutex
	reasons []lostLiveness // oldest first
}

type lostLiveness struct {
	sub *subscriber
	why error
}

// lose notes why a node's holders can't be watched, in place of an earlier reason of that
// node. It reports whether that is news: no other node has a reason.
func (l *liveness) lose(sub *subscriber, why error) (news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.withdrawLocked(sub)
	l.reasons = append(l.reasons, lostLiveness{sub, why})
	l.on.Store(false)
	return len(l.reasons) == 1
}

// regain withdraws a node's reason, and reports whether liveness is on again for that.
func (l *liveness) regain(sub *subscriber) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.withdrawLocked(sub) {
		return false
	}
	l.on.Store(!l.disabled && len(l.reasons) == 0)
	return l.on.Load()
}

func (l *liveness) withdrawLocked(sub *subscriber) bool {
	n := len(l.reasons)
	l.reasons = slices.DeleteFunc(l.reasons, func(r lostLiveness) bool { return r.sub == sub })
	return len(l.reasons) < n
}

// why is the reason for which liveness is off, or nil.
func (l *liveness) why() error {
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

// Liveness returns nil while the store watches whether the holders of leases are alive.
// Otherwise its error says why it does not and what to do: the server or a proxy refuses
// SUBSCRIBE or PUBSUB, scripts have not seen this process's subscription for some seconds,
// or Options.DisableLiveness is set. Liveness comes back by itself when the cause is gone.
func (s *Redis) Liveness() error { return s.liveness.why() }

// A sight is what looks have told of a node's subscription. It is guarded by
// subscriber.mu.
type sight struct {
	seenSince   time.Time // zero if the last look did not see it
	unseenSince time.Time // zero if the last look saw it
	unseenAt    time.Time // time of the last look that did not see it
	transient   bool      // the last connection ended for a cause that passes by itself
	blind       bool      // the last look was refused
	looking     int       // 1 + the epoch of the look that is under way; 0: none
	lost        lossOf    // why liveness is off for this node
	settling    time.Duration
}

// A lossOf is what liveness is off for the want of.
type lossOf int

const (
	lostNothing      lossOf = iota
	lostSight               // PUBSUB is refused: invalidations are heard even so
	lostSubscription        // SUBSCRIBE is refused, or the subscription is not seen
)

// useful reports whether the connection serves its purpose, as far as can be told.
func (u *subscriber) useful() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.isLive && u.trustedLocked()
}

// trustedLocked reports whether scripts see the subscription, or can't be asked.
func (u *subscriber) trustedLocked() bool { return u.sight.blind || !u.sight.seenSince.IsZero() }

// lookIsDue reports whether to look beside the given ping.
func (u *subscriber) lookIsDue(pings int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !u.isLive:
		return false
	case u.sight.blind:
		return pings%blindEvery == 0
	case u.sight.seenSince.IsZero():
		return true
	}
	return pings%verifyEvery == 0 && (u.sight.lost != lostNothing || u.s.feeds.any())
}

// look asks a script on the node whether it sees the subscription, and draws the
// conclusions. A near cache needs them even without liveness, and an acquire, which could
// tell as well, may be rare.
func (u *subscriber) look() {
	u.mu.Lock()
	epoch := u.epoch
	if u.sight.looking == 1+epoch {
		u.mu.Unlock()
		return
	}
	u.sight.looking = 1 + epoch
	u.mu.Unlock()
	asked := time.Now()
	n, err := u.seen(u.ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sight.looking == 1+epoch {
		u.sight.looking = 0
	}
	switch {
	case errors.Is(err, ErrRefused):
		u.refusedLocked("PUBSUB", err)
	case err != nil || epoch != u.epoch: // no answer, or to an old question
	case n > 0:
		u.sawLocked(asked)
	case u.isLive && !u.liveAt.Before(asked): // it became live in between
	default:
		u.sight.seenSince, u.sight.blind = time.Time{}, false
		u.unseenLocked(asked)
		u.judgeHearingLocked()
		u.doubtLocked(asked)
	}
}

// seen asks a script on the node how often this process is subscribed there.
func (u *subscriber) seen(ctx context.Context) (int64, error) {
	n := make(chan int64, 1)
	inv := seenScript.invoke(0, u.alive)
	if _, ok := u.s.topo.(*single); ok {
		inv = seenScript.invoke(1, u.s.keys.names("").lease, u.alive)
	}
	err := u.s.bounded(ctx, u.n, "PUBSUB NUMSUB", func(ctx context.Context) error {
		reply, err := inv.try(ctx, u.n.client)
		count, _ := reply.(int64)
		n <- count
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-n, nil
}

// sawLocked takes in that a look saw the subscription.
func (u *subscriber) sawLocked(asked time.Time) {
	v := &u.sight
	v.unseenSince, v.unseenAt, v.blind = time.Time{}, time.Time{}, false
	if v.seenSince.IsZero() {
		v.seenSince = asked
	}
	if v.lost != lostNothing && asked.Sub(v.seenSince) >= v.settling {
		v.lost = lostNothing
		u.signalLocked()
		if u.s.liveness.regain(u) {
			u.s.observe(Event{Kind: LivenessOn, Node: u.n.addr})
		}
	}
	u.judgeHearingLocked()
}

// unseenLocked takes in that a script was asked at that time and did not see the
// subscription.
func (u *subscriber) unseenLocked(asked time.Time) {
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
		u.loseLocked(lostSubscription, fmt.Errorf("%w, and near caches keep nothing: scripts have not seen this process's subscription for %v"+
			" (use an address at which scripts and subscriptions reach the same server, and a proxy that supports SUBSCRIBE)",
			errLivenessOff, d.Round(time.Second)))
	}
}

// failed takes in why the last connection ended.
func (u *subscriber) failed(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	reply := redis.Error(nil)
	replied := errors.As(why, &reply)
	u.sight.transient = errors.Is(why, errNoConnection) || replied && passing(reply)
	if replied && errors.Is(why, errRefusedHere) {
		u.refusedLocked("SUBSCRIBE", reply)
	}
}

// unsubscribed takes in that an acquire of that time did not see the subscription. It may
// have been carried out by another server than this node's, as when a slot moves, so what
// looks have told stays until the next.
func (u *subscriber) unsubscribed(asked time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unseenLocked(asked)
	if u.trustedLocked() {
		u.s.spawn(u.look)
	}
}

// refusedLocked takes in that the node refuses SUBSCRIBE, or PUBSUB.
func (u *subscriber) refusedLocked(command string, reply error) {
	loss, cost, what := lostSubscription, ", and near caches keep nothing", "the subscription"
	if command == "PUBSUB" {
		loss, cost, what = lostSight, "", "PUBSUB in scripts"
		u.sight.blind = true
	}
	advice := "use a server or proxy that supports it"
	if rule := u.s.keys.toGrant(command, reply); rule != "" {
		advice = "grant the Redis user " + rule
	}
	u.loseLocked(loss, fmt.Errorf("%w%s: Redis refuses %s (%s): %w", errLivenessOff, cost, what, advice, reply))
	u.judgeHearingLocked()
}

var errLivenessOff = errors.New("cache: liveness is off, dead holders are replaced when their lease expires")

// loseLocked turns liveness off on account of this node, unless it is off already and no
// more is lost now than before.
func (u *subscriber) loseLocked(loss lossOf, why error) {
	v := &u.sight
	if v.lost >= loss || u.ctx.Err() != nil {
		return
	}
	if v.lost == lostNothing {
		v.settling = min(max(firstSettling, 2*v.settling), lastSettling)
	}
	v.lost = loss
	u.signalLocked()
	if u.s.liveness.lose(u, why) {
		u.s.observe(Event{Kind: LivenessOff, Node: u.n.addr, Err: why})
	}
}

// judgeHearingLocked decides whether this process hears of the node's invalidations.
func (u *subscriber) judgeHearingLocked() {
	hears := u.follows && u.trustedLocked()
	if u.hears.Swap(hears) == hears {
		return
	}
	if hears {
		u.s.spawn(u.s.checkFeeds)
	} else {
		u.s.feeds.down()
	}
}
