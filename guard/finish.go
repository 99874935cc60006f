package guard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// maskOne returns an outcome with the entry that the call has read in place of an error,
// if the policy allows it. A call that has read nothing does now. Either read was sent
// after the caller came, so no sharing rule is needed.
func (c *call) maskOne(w *want, o *outcome) *outcome {
	e := c.e
	if o.err == nil || e.policy.StaleIfError == 0 || c.ctx.Err() != nil || !o.maskable(&e.policy) {
		return o
	}
	if w.rd == nil {
		w.rd = e.lookups.read(c.ctx, w.key)
	}
	r, waited := w.rd.found(), w.rd.waited()
	if !servableIfError(r, waited) || e.backlog.covers(w.key, &r.Entry, w.rd.at) {
		return o
	}
	value, err := e.packer.unpack(c.ctx, w.key, w.rd)
	if err != nil {
		return o
	}
	older := &store.Reading{Entry: r.Entry, Found: true, Age: r.Age + waited, Left: r.Left - waited}
	e.events.report(c.ctx, cache.StaleServed, cache.Event{Reason: staleReason(o.err), Key: w.key, Token: cache.Token(r.Entry.Version), Duration: older.Age, Err: o.err})
	return &outcome{value: value, source: Stale, stored: true, entry: older}
}

// mask serves stale values instead of errors, where the policy allows it.
func (c *call) mask(all []*want) {
	if c.kind() == forced {
		return
	}
	e := c.e
	var failed []*want
	for _, w := range all {
		if w.out.err != nil {
			failed = append(failed, w)
		}
	}
	if len(failed) > 1 {
		maskable := slices.DeleteFunc(unread(failed), func(w *want) bool { return !w.out.maskable(&e.policy) })
		if e.policy.StaleIfError > 0 && c.ctx.Err() == nil {
			c.read(maskable)
		}
	}
	for _, w := range failed {
		w.out = c.maskOne(w, w.out)
	}
}

// finish counts the outcomes, keeps values near, and starts the refreshes.
func (c *call) finish(all []*want) {
	e := c.e
	var stale []*want
	ended := c.ctx.Err() != nil
	c.reportWaits(all)
	for _, w := range all {
		e.events.served(w.out, ended)
		if e.events.hits != nil && w.out.err == nil && (w.out.source == FromStore || w.out.source == Stale) {
			e.events.hits.ObserveHit(c.ctx, w.out.source, w.out.age())
		}
		if w.out.turn != nil {
			continue
		}
		if w.out.refresh != nil {
			e.reportStale(c.ctx, w.key, w.out)
			stale = append(stale, w)
		}
		e.keep(w.key, w.ticket, w.out)
	}
	c.refresh(stale)
}

// reportWaits reports the keys of the call for which it waited for another's fetch.
func (c *call) reportWaits(all []*want) {
	if len(c.e.events.to) == 0 {
		return
	}
	took, count := time.Since(c.began), len(all)
	for _, w := range all {
		if w.f == nil || w.out.turn != nil {
			continue
		}
		if outcome := c.waitOutcome(w); outcome != "" {
			c.e.events.report(c.ctx, cache.CallWaited, cache.Event{
				Key: w.key, Duration: took, Outcome: outcome, Err: w.out.err, Trace: w.f.knownTrace(), Count: count,
			})
			count = 0
		}
	}
}

// waitOutcome is how a call's wait for another's fetch ended; empty: it did not wait for
// one, as it made the fetch itself.
func (c *call) waitOutcome(w *want) string {
	switch {
	case w.owned() && w.f.waiting.Load():
		return telemetry.OutcomeTakeover
	case w.owned():
		return ""
	case c.ctx.Err() != nil:
		return telemetry.OutcomeCanceled
	case w.out.late(), c.softOver && w.out.source == Stale:
		return telemetry.OutcomeTimeout
	case w.out.err != nil && !errors.Is(w.out.err, ErrNotFound):
		return telemetry.OutcomeFailure
	}
	return telemetry.OutcomeValue
}

// refresh starts a background flight for each key that has none.
func (c *call) refresh(ws []*want) {
	e := c.e
	if len(ws) == 0 || c.steps && c.refreshed == nil || e.policy.Budget != nil && e.policy.Budget.Exhausted(Background) {
		return // or each stale hit would ask for a lease to be told so
	}
	ws = slices.DeleteFunc(ws, func(w *want) bool {
		return e.flights.has(background, w.key) || w.out.refresh.reserved && !e.reserve.mayRefresh()
	})
	l := c.newLeader(background)
	l.refresh = c.refreshed
	solo := len(ws) == 1
	var joined []*flight
	for _, w := range ws {
		f, _, first := e.flights.join(background, w.key, 0, func() *flight {
			return l.open(background, w.key, 0, w.out.refresh, solo)
		})
		if first {
			e.events.refreshes.Add(1)
		}
		if f != nil {
			joined = append(joined, f)
		}
	}
	if !solo {
		l.start()
	}
	for _, f := range joined {
		e.flights.leave(f, 0)
	}
}

// fetchAlone fetches keys with private values for this caller alone, on its own context. Nothing is stored.
func (c *call) fetchAlone(ws []*want) {
	if len(ws) == 0 {
		return
	}
	c.fetchOwn(ws, Fetched, func(w *want, r *fill) {
		r.private, r.ttl = true, 0
		if w.out.entry != nil {
			r.ttl = w.out.entry.Left // of the marker; a wake-up tells nothing of it
		}
	})
}

// fetchInstead is StaleOrFetch: all keys that were waited for too long share a slot.
func (c *call) fetchInstead(all []*want) {
	e := c.e
	if e.policy.OnWaitTimeout != StaleOrFetch {
		return
	}
	late := slices.DeleteFunc(slices.Clone(all), func(w *want) bool { return !w.out.late() })
	if len(late) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, e.policy.WaitTimeout)
	defer cancel()
	leave := e.slots.wait(ctx, nil)
	if leave == nil {
		for _, w := range late {
			w.out = cmp.Or(e.endedFor(c.ctx, nil), w.out)
		}
		return
	}
	own := *c
	own.ctx = context.WithValue(c.ctx, slotKey{e.slots}, true)
	defer func() {
		if t := late[0].out.turn; t != nil {
			context.AfterFunc(t.ctx, leave)
		} else {
			leave()
		}
	}()
	for _, w := range late {
		e.events.report(c.ctx, cache.Unguarded, cache.Event{Key: w.key, Err: w.out.err})
	}
	own.fetchOwn(late, UnguardedFetch, func(_ *want, r *fill) { r.private = true })
}

// fetchOwn fetches on the call's own context, MaxBatch keys at once.
func (c *call) fetchOwn(ws []*want, source Source, preset func(*want, *fill)) {
	e := c.e
	index := map[string]int{}
	for i, w := range ws {
		index[w.key] = i / e.policy.MaxBatch
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(ErrClosed) })()
	for n := 0; len(ws) > 0; n++ {
		some := ws[:min(len(ws), e.policy.MaxBatch)]
		if o := e.endedFor(c.ctx, nil); o != nil { // else all parts that are left would run at once
			for _, w := range ws {
				w.out = o
			}
			return
		}
		ws = ws[len(some):]
		fills := make([]*fill, len(some))
		for i, w := range some {
			r := e.newFill(w.key)
			r.token = randomToken()
			fills[i] = &r
			preset(w, fills[i])
		}
		var paid payment
		var err error
		if !c.paid {
			paid, err = e.payer.alone(ctx, some[0].key)
		}
		switch {
		case err != nil:
			fills = e.givenUp(fills, err)
		case c.steps:
			fills[0].cost = paid.cost
			some[0].out = &outcome{turn: startTurn(c.ctx, e, nil, nil, fills[0], &fetchKeys{fetch: index, now: n}, paid.expense), source: source}
			continue
		default:
			fills[0].cost = paid.cost
			fills = run{e, c.fetch, fills, &fetchKeys{fetch: index, now: n}, paid.expense}.do(ctx)
		}
		for i, r := range fills {
			some[i].out = &outcome{value: r.value, err: r.err, source: source}
			if r.err != nil {
				some[i].out = cmp.Or(e.endedFor(c.ctx, nil), some[i].out)
			}
		}
	}
}
