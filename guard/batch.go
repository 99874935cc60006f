package guard

import (
	"context"
	"errors"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/stampedeguard/stampede/cache"
)

// A batch is the flights that one call of GetMany is the first caller of. It
// asks for their leases at once, fetches the keys it has won with one call for
// each MaxBatch of them, and gives the leases back at once. Flights whose keys it
// hasn't won go on by themselves. Nothing is waited for while leases are held
// whose fetch hasn't begun, but for the fetch before it.
type batch struct {
	*engine
	fs      *flights
	fetch   manyFetch
	ctx     context.Context // of its flights: see flightContext
	members []*member
}

// A member is one flight of a batch.
type member struct {
	*pursuit
	b   *batch
	err error // of the read

	next chan step     // how the flight goes on, once
	done chan *outcome // what a lease that was won came to

	// The rest is for the goroutine of the batch, or, if it is away, for that of
	// what is fetched unguarded.
	away     bool
	lease    *cache.Lease
	told     bool // next was sent
	answered bool // the flight has its outcome

	part    *part
	dropped atomic.Bool // its part needn't fetch it any more
}

// A step is how a member's flight goes on: with an outcome, with a lease that
// the batch fetches for, or else by itself, from an answer.
type step struct {
	o      *outcome
	part   *part
	answer cache.Answer
}

// A part is what goes into one call of the fetch.
type part struct {
	members  []*member
	wanted   atomic.Int32
	unwanted chan struct{} // closed: nobody can use any result
}

func (e *engine) newBatch(fs *flights, caller context.Context, fetch manyFetch) *batch {
	return &batch{engine: e, fs: fs, fetch: fetch, ctx: e.flightContext(fs, caller)}
}

// join makes the caller of the given number wait for the key's flight, as
// flights.join does; as its first, the batch takes it in.
func (b *batch) join(c call, num uint64, rd read) (f *flight, result <-chan singleflight.Result, m *member) {
	m = &member{b: b, err: rd.err, next: make(chan step, 1), done: make(chan *outcome, 1)}
	f, result, first := b.fs.join(c.key, num, m.fly)
	if !first {
		return f, result, nil
	}
	m.pursuit = b.pursuitOn(b.ctx, b.fs, c, rd)
	m.begun(f)
	b.members = append(b.members, m)
	return f, result, m
}

// start sets the batch to work, when all have joined.
func (b *batch) start() {
	if len(b.members) > 0 {
		b.fs.wg.Go(b.run) // none of its flights has ended yet
	}
}

// fly is the body of a member's flight.
func (m *member) fly(*flight) *outcome {
	s := <-m.next
	o := s.o
	switch {
	case o != nil:
	case s.part != nil:
		o = m.attend()
	default:
		if o = m.take(&s.answer, nil); o == nil {
			o = m.run()
		}
	}
	if m.background {
		m.tellRefreshed(m.f, m.call.key, o)
	}
	return m.ended(o)
}

// attend looks after a lease that was won until the batch is done with it.
func (m *member) attend() *outcome {
	lost, unwanted := m.lease.Lost(), (<-chan struct{})(nil)
	for {
		select {
		case o := <-m.done:
			return o
		case <-lost:
			lost = nil
			m.observe(Event{Kind: cache.LeaseLost, Key: m.call.key, Token: m.lease.Token, Attempt: m.lease.Attempt})
			unwanted = m.fs.supersede(m.call.key, m.f)
		case <-unwanted:
			unwanted = nil
			m.drop()
		}
	}
}

// drop notes that nobody wants the result. A part of such keys alone is
// cancelled.
func (m *member) drop() {
	if m.dropped.CompareAndSwap(false, true) && m.part.wanted.Add(-1) == 0 {
		close(m.part.unwanted)
	}
}

// tell has the flight go on.
func (m *member) tell(s step) {
	m.told = true
	m.next <- s
}

// answer ends the flight.
func (m *member) answer(o *outcome) {
	if m.answered {
		return
	}
	m.answered = true
	if m.told {
		m.done <- o
	} else {
		m.tell(step{o: o})
	}
}

// carefully runs f, which deals with the members that are away, or with the
// others. If something panics, an Observer say, the flights that f has not dealt
// with end, and their leases are released.
func (b *batch) carefully(away bool, f func()) {
	returned := false
	defer func() {
		if returned {
			return
		}
		o := &outcome{err: ErrGoexit, moment: always}
		if p := recover(); p != nil {
			o.err = &PanicError{Value: p, Stack: debug.Stack()}
		}
		var left []*member
		var back []cache.Return
		for _, m := range b.members {
			goesOn := m.told && m.lease == nil
			if m.away != away || m.answered || goesOn {
				continue
			}
			left = append(left, m)
			if m.lease != nil {
				back = append(back, cache.Return{Lease: m.lease})
			}
		}
		b.store.ReturnMany(context.WithoutCancel(b.ctx), back)
		for _, m := range left {
			m.answer(o)
		}
	}()
	f()
	returned = true
}

func (b *batch) run() {
	b.carefully(false, func() {
		if b.fs == &b.locals {
			b.fetchHere(b.members, Fetched)
			return
		}
		b.lead(b.acquire())
	})
}

// acquire asks for all leases at once, and has those flights go on whose lease
// isn't granted. It returns the others.
func (b *batch) acquire() (won []*member) {
	var asked, away []*member
	for _, m := range b.members {
		if m.err != nil {
			away = append(away, m)
		} else {
			asked = append(asked, m)
		}
	}
	if len(asked) > 0 {
		var more []*member
		won, more = b.ask(asked)
		away = append(away, more...)
	}
	if len(away) > 0 {
		b.withoutStore(away)
	}
	return won
}

// ask sends the acquires. It returns those that won, and those that got an error.
func (b *batch) ask(asked []*member) (won, away []*member) {
	fetches := time.Duration((len(asked) + b.policy.MaxBatch - 1) / b.policy.MaxBatch)
	requests := make([]cache.Request, len(asked))
	moment, sent := b.tick(), time.Now()
	for i, m := range asked {
		m.moment, m.sent = moment, sent
		ask := m.ask
		// The last fetch starts when those before it have ended.
		ask.RenewFor = min(ask.RenewFor, cache.MaxTTL/fetches) * fetches
		ask.Window += ask.RenewFor - m.ask.RenewFor
		requests[i] = cache.Request{Key: b.storeKey(m.call.key), Ask: ask}
	}
	answers := b.store.AcquireMany(b.ctx, requests)
	closed := b.engine.ctx.Err() != nil
	var back []cache.Return
	for i, m := range asked {
		switch a := answers[i]; {
		case closed || errors.Is(a.Err, cache.ErrClosed):
			if a.Answer.Verdict == cache.Granted {
				back = append(back, cache.Return{Lease: a.Answer.Lease})
			}
		case a.Err != nil:
			m.err = a.Err
			away = append(away, m)
		case a.Answer.Verdict == cache.Granted:
			m.lease = a.Answer.Lease
			won = append(won, m)
		default:
			m.tell(step{answer: a.Answer})
		}
	}
	if len(back) > 0 {
		b.store.ReturnMany(context.WithoutCancel(b.ctx), back)
	}
	for i, m := range asked {
		if closed || errors.Is(answers[i].Err, cache.ErrClosed) {
			m.answer(guardClosed())
		}
	}
	return won, away
}
