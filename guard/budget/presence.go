package budget

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
)

// A presence keeps this process subscribed to a channel of its own, which never has a
// message. When the process dies, the kernel closes the connection and Redis drops the
// subscription. lua/spend.lua then gives the slots of the process to others before they
// expire. In a cluster the channel's name leads to the master that has the budget.
type presence struct {
	server  *server
	channel string
	observe func(cache.Event)
	seen    atomic.Bool // Redis confirmed the subscription
	off     bool        // LivenessOff was reported
}

const (
	pingEvery   = 500 * time.Millisecond
	silentPings = 3 // unanswered pings after which the connection is given up
	dialWithin  = time.Second
	// A connection that was lost is replaced at once, as two looks must not both miss it.
	// After one that failed at once the pauses double, to lastRedial, or to refusedRedial
	// if Redis refuses the subscription.
	firstRedial   = 100 * time.Millisecond
	lastRedial    = 500 * time.Millisecond
	refusedRedial = time.Minute
)

// run ends with the server.
func (p *presence) run() {
	for pause := firstRedial; ; {
		began, longest := time.Now(), lastRedial
		err := p.session()
		p.seen.Store(false)
		switch {
		case p.server.ctx.Err() != nil:
			return
		case refused(err):
			longest = refusedRedial
			p.report(cache.LivenessOff, true, err)
		case time.Since(began) >= firstRedial:
			pause = firstRedial
			continue
		}
		_ = p.server.wait(p.server.ctx, pause, nil)
		pause = min(2*pause, longest)
	}
}

// session returns when the connection fails, and when the server is closed.
func (p *presence) session() error {
	// After its connection failed a PubSub dials a new one before Receive returns. On a context
	// that has ended that dial fails at once.
	spent, spend := context.WithCancel(context.WithoutCancel(p.server.ctx))
	defer spend()
	ps := p.server.rdb.Subscribe(spent)
	defer ps.Close()
	defer context.AfterFunc(p.server.ctx, func() { _ = ps.Close() })()
	dial, cancel := context.WithTimeout(p.server.ctx, dialWithin)
	err := ps.Subscribe(dial, p.channel)
	cancel()
	spend()
	for silent := 0; err == nil; {
		var msg any
		msg, err = ps.ReceiveTimeout(spent, pingEvery)
		var timeout net.Error
		if _, ok := msg.(*redis.Subscription); ok {
			p.seen.Store(true)
			p.report(cache.LivenessOn, false, nil)
		}
		if err == nil {
			silent = 0
		} else if errors.As(err, &timeout) && timeout.Timeout() && silent < silentPings {
			silent++
			err = ps.Ping(spent)
		}
	}
	return err
}

// report reports a change of off once.
func (p *presence) report(kind cache.EventKind, off bool, err error) {
	if p.off != off {
		p.off = off
		p.observe(cache.Event{Kind: kind, Err: err})
	}
}
