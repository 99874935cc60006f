package middleware

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// trIndexTTL is how long it is remembered what a URL's responses vary on.
const trIndexTTL = 24 * time.Hour

// branch stores a response that varies on names which its slot doesn't know, in a
// slot of its own, and says in the index that there are such. The lease of that
// slot is taken before the index is known, so that who waits now waits there.
//
// An index is changed under the lease of the URL's own key alone, and what is stored
// with a new one was called for under that lease: so what a Delete of the index has
// put out of reach stays there.
func (x *trExchange) branch(slot trSlot, f *guard.Fill[*page], op *trOpening, dec trDecision, indexed *page) (*page, error) {
	ix := &index{gen: f.IdempotencyKey, names: dec.page.vary}
	known := slot.ix
	if indexed != nil {
		known = indexed.ix
	}
	if known != nil && known.covers(dec.page.vary) {
		ix = known // the variants that are there stay reachable
	} else if known != nil {
		ix.names = append(slices.Clone(known.names), dec.page.vary...)
		slices.Sort(ix.names)
		ix.names = slices.Compact(ix.names)
	}
	if slot.ix != nil {
		// This call was made under the lease of an old variant, and only its client
		// gets what it brought. The next one finds the index right.
		op.stored, op.detail = false, "vary"
		f.Private = true
		x.offer(op)
		op.d.hand()
		x.adopt(trSlot{key: x.key}, nil, func(f *guard.Fill[*page]) (*page, error) { return keepIndex(f, ix) })
		return &page{}, nil
	}
	x.offer(op)
	x.adoptDownload(trSlot{key: x.t.keys.variant(x.key, ix, x.own()), ix: ix}, op, dec)
	return keepIndex(f, ix)
}

func keepIndex(f *guard.Fill[*page], ix *index) (*page, error) {
	f.TTL, f.StaleFor, f.StaleUse = trIndexTTL, trIndexTTL, guard.OnlyValidate
	return &page{ix: ix}, nil
}

// adoptDownload records what is on its way under the lease of another slot, or
// else leaves it to its client.
func (x *trExchange) adoptDownload(slot trSlot, op *trOpening, dec trDecision) {
	if !x.adopt(slot, op.d, func(f *guard.Fill[*page]) (*page, error) { return x.record(f, op, dec) }) {
		op.d.hand()
	}
}

// adopt stores a page, or what is on its way, under the lease of a slot: whoever
// asks for it then waits. It returns false if it couldn't get the lease, and
// finish isn't called then. The download, if there is one, ends with that lease's
// fetch from then on.
func (x *trExchange) adopt(slot trSlot, d *trDownload, finish func(*guard.Fill[*page]) (*page, error)) bool {
	var (
		mu        sync.Mutex
		withdrawn bool
		claimed   = make(chan struct{})
		once      bool
		done      = make(chan struct{})
	)
	ctx, cancel := context.WithCancel(context.WithoutCancel(x.ctx))
	go func() {
		defer close(done)
		defer cancel()
		_, _ = x.t.guard.Load(ctx, slot.key, func(ctx context.Context, f *guard.Fill[*page]) (*page, error) {
			mu.Lock()
			mine := !withdrawn && !once && !f.Private
			once = once || mine
			mu.Unlock()
			if !mine { // too late, or again after a loss: others may wait for it by now
				return x.fetch(slot)(ctx, f)
			}
			if d != nil {
				d.tie(ctx)
			}
			close(claimed)
			return finish(f)
		}, guard.MaxAge(0))
	}()
	timer := time.NewTimer(adoptWithin)
	defer timer.Stop()
	select {
	case <-claimed:
		return true
	case <-done:
	case <-timer.C:
	}
	mu.Lock()
	defer mu.Unlock()
	if once {
		return true
	}
	withdrawn = true
	cancel()
	return false
}

// adoptWithin bounds the wait for a lease for what is on its way already.
const adoptWithin = 100 * time.Millisecond
