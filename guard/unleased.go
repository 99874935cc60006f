package guard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/callers"
)

// This file is what is fetched without a lease, and never stored: while Redis is
// away, for one caller whose values may not be shared, and instead of waiting any
// longer.

// unguardedFetch fetches without a lease: callers of the key in this process
// share it, and MaxUnguarded bounds them all.
func (p *pursuit) unguardedFetch(why error) *outcome {
	leave := p.turn(p.ctx, func() bool { return p.Deserted() || p.f.fetchTaken() })
	if leave == nil {
		return p.noTurn()
	}
	defer leave()
	if !p.f.claimFetch() {
		return p.noTurn()
	}
	p.ctx = context.WithValue(p.ctx, slotKey{}, p.engine)
	p.observe(Event{Kind: cache.Unguarded, Key: p.call.key, Err: why})
	return p.fetchHere(UnguardedFetch)
}

// slotKey marks the context of a fetch that has a slot of the engine it names:
// a fetch of another key from within must not queue behind its own caller.
type slotKey struct{}

// turn waits for one of the MaxUnguarded slots, and returns what gives it back; nil if
// ctx or the guard ended before, or deserted, if there is one, says that nobody is
// there any more.
func (e *engine) turn(ctx context.Context, deserted func() bool) (leave func()) {
	if ctx.Value(slotKey{}) == e {
		return func() {} // asked for by a fetch that has one
	}
	select {
	case e.unguarded <- struct{}{}:
	default:
		wanted, stop := callers.WhileWanted(ctx, e.ctx.Done(), deserted)
		defer stop()
		select {
		case e.unguarded <- struct{}{}:
		case <-wanted.Done():
			return nil
		}
	}
	leave = func() { <-e.unguarded }
	if deserted != nil && deserted() {
		leave()
		return nil
	}
	return leave
}

// noTurn is the outcome of a flight that isn't to fetch any more: who has joined it at
// this very moment goes round.
func (e *engine) noTurn() *outcome {
	if e.ctx.Err() != nil {
		return guardClosed()
	}
	return goRound()
}

// fetchHere fetches for the callers who were there before, and stores nothing.
func (p *pursuit) fetchHere(source Source) *outcome {
	f := p.newFill()
	f.token = randomToken()
	if err := p.afford(f, nil); err != nil {
		return p.unaffordable(nil, err)
	}
	start := p.fs.fetching(p.f, p.tick)
	return p.fetchedHere(p.runFetch(callers.With(p.ctx, p), p.call, p.f, f, nil, nil, nil), f, start, source)
}

// fetchedHere is the outcome of a fetch without a lease.
func (p *pursuit) fetchedHere(r *fetched, f *fill, start uint64, source Source) *outcome {
	if p.engine.ctx.Err() != nil {
		return guardClosed()
	}
	if errors.Is(r.err, errNotWanted) {
		return goRound()
	}
	o := &outcome{value: r.value, err: r.err, source: source, moment: start}
	if errors.Is(r.err, ErrNotModified) && f.stale != nil {
		o.value, o.err, o.moment = f.stale, nil, min(start, p.knownMoment) // see renew
	}
	// A failure is nobody's secret, and each sharer would repeat it.
	o.private = r.fill.private && (o.err == nil || errors.Is(o.err, ErrNotFound))
	return o
}

// alone fetches for one caller whose key's values may not be shared, on the
// caller's own context. mark is what says so, if this caller has read it.
func (e *engine) alone(c call, mark *cache.Reading) *outcome {
	if within(c.ctx, e, c.key) {
		return e.reentrant(c.key)
	}
	if mark == nil {
		mark = &cache.Reading{} // a wake-up has told of it, and what is left of it isn't known
	}
	return e.forOneself(c, Fetched, mark)
}

// forOneself fetches for one caller, on its own context, and stores nothing.
func (e *engine) forOneself(c call, source Source, mark *cache.Reading) *outcome {
	f := &fill{attempt: 1, ttl: e.policy.TTL, staleFor: e.policy.Stale, token: randomToken(), private: true, tags: e.policy.Tags}
	if mark != nil {
		f.ttl = mark.Left
	}
	if err := e.affordAlone(c.ctx, c.key, f); err != nil {
		if o := e.endedFor(c.ctx, nil); o != nil {
			return o
		}
		return &outcome{err: err}
	}
	r := e.runFetch(c.ctx, c, nil, f, nil, nil, e.ctx.Done())
	if r.err != nil {
		if o := e.endedFor(c.ctx, nil); o != nil {
			return o
		}
	}
	return &outcome{value: r.value, err: r.err, source: source}
}

// insteadOfWaiting is StaleOrFetch's fetch, bounded with those that run while
// Redis is away.
func (e *engine) insteadOfWaiting(c call, late *outcome) *outcome {
	leave := e.ownTurn(c.ctx)
	if leave == nil {
		return cmp.Or(e.endedFor(c.ctx, nil), late)
	}
	defer leave()
	c.ctx = context.WithValue(c.ctx, slotKey{}, e)
	e.observe(Event{Kind: cache.Unguarded, Key: c.key, Err: late.err})
	return e.forOneself(c, UnguardedFetch, nil)
}

// ownTurn is turn for one caller, who waits for WaitTimeout at most.
func (e *engine) ownTurn(ctx context.Context) (leave func()) {
	ctx, cancel := context.WithTimeout(ctx, e.policy.WaitTimeout)
	defer cancel()
	return e.turn(ctx, nil)
}

// randomToken stands in for a lease's where there is no lease.
func randomToken() (t cache.Token) {
	rand.Read(t[:])
	return t
}
