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
	off     atomic.Bool // Redis refuses it, and LivenessOff was reported
}

const (
	pingEvery   = 500 * time.Millisecond
	silentPings = 3 // unanswered pings after which the connection is given up
	dialWithin  = time.Second
	// A lost connection is replaced at once: two looks must not both miss it. The pauses
	// after connections that fail at once double.
	firstRedial = 100 * time.Millisecond
	lastRedial  = 500 * time.Millisecond
	// refusedRedial is the longest pause while Redis refuses the subscription.
	refusedRedial = time.Minute
)

// run ends with the server.
func (p *presence) run() {
	redial := firstRedial
	for p.server.ctx.Err() == nil {
		began, longest := time.Now(), lastRedial
		err := p.session()
		p.seen.Store(false)
		if refused(err) {
			longest = refusedRedial
			if p.server.ctx.Err() == nil && !p.off.Swap(true) {
				p.observe(cache.Event{Kind: cache.LivenessOff, Err: err})
			}
		} else if time.Since(began) >= firstRedial {
			redial = firstRedial
			continue
		}
		_ = p.server.wait(p.server.ctx, redial, nil)
		redial = min(2*redial, longest)
	}
}

// session returns when the connection fails, and when the server is closed.
func (p *presence) session() error {
	// A PubSub whose connection fails dials a new one before Receive returns. On a context
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
		if s, ok := msg.(*redis.Subscription); ok && s.Kind == "subscribe" {
			p.confirm()
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

func (p *presence) confirm() {
	p.seen.Store(true)
	if p.off.Swap(false) {
		p.observe(cache.Event{Kind: cache.LivenessOn})
	}
}
