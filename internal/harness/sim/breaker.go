package sim

import (
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A breaker is what a process's store has told of its breaker, and what the checks
// make of it: while it is open nothing is sent but probes, and no caller waits for
// Redis.
type breaker struct {
	p *process

	mu     sync.Mutex
	open   bool
	since  time.Time
	closed time.Time
}

// Observe implements [cache.Observer].
func (b *breaker) Observe(e cache.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e.Kind {
	case cache.BreakerOpened:
		if !b.open {
			b.since = time.Now()
		}
		b.open = true
	case cache.BreakerClosed:
		b.open, b.closed = false, time.Now()
	}
}

// openFor reports whether the breaker has been open for that long.
func (b *breaker) openFor(d time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open && time.Since(b.since) > d
}

// checkCall checks what a process sends. A call that was under way when the breaker
// opened may have another part to send, for as long as the client has patience.
func (b *breaker) checkCall(c *call) {
	if c.n != b.p.n { // a budget has no breaker
		return
	}
	if plan := &b.p.w.plan; !b.openFor(2*plan.redisTimeout + plan.readTimeout) {
		return
	}
	switch c.commands[0].name {
	case "ping", "pubsub", "seen":
	default:
		b.p.w.violate("breaker", "p%d sends %s while its breaker is open", b.p.id, c.label)
	}
}

// underWay is how long what began before the breaker opened may go on: an acquire of
// a process that has just started waits for its subscription.
func (p *plan) underWay() time.Duration { return 2*p.redisTimeout + time.Second }

// waitedForRedis checks that a call did not wait for Redis while the breaker was
// open all the time. What it may wait for is a fetch, its own or another's.
func (b *book) waitedForRedis(w *world, o *op) {
	if !o.away || o.p.leaving || !o.p.breaker.openFor(time.Since(o.began)+w.plan.underWay()) {
		return
	}
	w.seen("call while the breaker was open")
	fetches := o.kind == get || o.kind == getMany || o.kind == reload
	if fetches && (!w.plan.policy.FailClosed || w.fetchedMeanwhile(o)) {
		return
	}
	if waited := o.took.Sub(o.began); waited > ms {
		w.violate("breaker", "%v (%v) waited for %v while the breaker was open", o, o.kind, waited)
	}
}

// fetchedMeanwhile reports whether a fetch ran in the process of a call while the
// call lasted: the call may have waited for it.
func (w *world) fetchedMeanwhile(o *op) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.fetches {
		if f.op.p == o.p && (f.ended == 0 || f.ended >= o.start) {
			return true
		}
	}
	return false
}

// breakersClose waits until all breakers are closed, now that Redis is back.
func (w *world) breakersClose() {
	const soon = 4 * time.Second // two for a probe, and what the scheduler takes
	for _, p := range w.processes {
		if !p.up() {
			continue
		}
		if p.breaker.openFor(0) {
			w.seen("open breaker")
		}
		if !w.until(func() bool { return !p.breaker.openFor(0) }) {
			w.violate("breaker", "p%d has an open breaker %v after Redis is back", p.id, time.Since(w.healedAt))
			continue
		}
		p.breaker.mu.Lock()
		late := p.breaker.closed.Sub(w.healedAt)
		p.breaker.mu.Unlock()
		if late > soon {
			w.violate("breaker", "the breaker of p%d closed %v after Redis was back", p.id, late)
		}
	}
}
