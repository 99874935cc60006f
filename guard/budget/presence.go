package budget

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A presence keeps this process subscribed to a channel of its own, on which
// nothing is ever published: when the process dies, the kernel closes the
// connection, Redis counts nobody there, and lua/spend.lua gives its slots to
// others at once instead of when they expire. In a cluster the channel's name
// brings it to the master that has the budget.
type presence struct{ on atomic.Bool }

const (
	pingEvery   = 500 * time.Millisecond
	silentPings = 3 // without an answer, and the connection is given up
	redial      = 100 * time.Millisecond
)

// attend ends with the budget.
func attend(b *Budget) *presence {
	p := &presence{}
	b.spawn(func() {
		for b.ctx.Err() == nil {
			began := time.Now()
			err := p.session(b)
			p.on.Store(false)
			if redis.IsPermissionError(err) {
				return // slots of this process expire, then
			}
			if time.Since(began) < redial {
				_ = b.pause(b.ctx, redial, nil) // else at once: those who look twice may miss it
			}
		}
	})
	return p
}

// confirmed reports whether Redis has confirmed the subscription.
func (p *presence) confirmed() bool { return p != nil && p.on.Load() }

func (p *presence) session(b *Budget) error {
	ps := b.rdb.Subscribe(b.ctx, b.names.alive+b.process)
	defer ps.Close()
	defer context.AfterFunc(b.ctx, func() { _ = ps.Close() })()
	for silent := 0; ; {
		msg, err := ps.ReceiveTimeout(b.ctx, pingEvery)
		var timeout net.Error
		switch {
		case b.ctx.Err() != nil:
			return b.ctx.Err()
		case err == nil:
			silent = 0
			if s, ok := msg.(*redis.Subscription); ok {
				p.on.Store(s.Kind == "subscribe")
			}
		case errors.As(err, &timeout) && timeout.Timeout() && silent < silentPings:
			silent++
			if err := ps.Ping(b.ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}
