package guard

import (
	"context"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// Preview gives a value to the calls of Begin in this process that wait for the turn,
// before its end. An example is a response while its body is still being read. The calls
// return it as [Waited], and not stored. The other callers wait for the end, and so do
// those with MaxAge, those in other processes, and Get.
//
// A caller that came after the turn began gets the preview only if the store has
// confirmed since that the turn's lease is held: then no Delete, Set or Expire lies
// between the two. A value that is to carry tags, the given ones or those of [Fill.Tags]
// and [Policy.Tags], and one without a lease are for the callers that came before. So are
// all values of a guard with [TagsOf].
//
// The first call counts. Preview does nothing while [Fill.Private] is set, nor once the turn
// is over.
func (t *Turn[V]) Preview(value V, tags ...string) {
	if t.Fill.Private {
		return
	}
	of := &t.t.e.tags // TagsOf may need the whole value
	t.t.preview(&value, len(tags)+len(t.Fill.Tags)+len(of.own) > 0 || of.of != nil)
}

func (o *openTurn) preview(value any, tagged bool) {
	if o.turn == nil || o.turn.f.kind != foreground {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.turn.f
	if o.ended || f.preview != nil {
		return
	}
	f.preview = &preview{t: o.turn, value: value, allowed: o.turn.start, closed: tagged || o.turn.lease == nil}
	close(f.previewed)
}

// A preview is the value of a turn that is not over, under the sharing rule.
type preview struct {
	t     *turn
	value any // *V

	mu      sync.Mutex
	allowed uint64        // callers with a lower sequence number may have the value
	closed  bool          // it is for no others
	over    bool          // the turn is ending: its lease is gone for that
	check   chan struct{} // closed at the end of the check under way; nil: there is none
}

// outcome returns the preview for a caller that may have it. Otherwise it returns a
// channel: after its close the caller may ask again. nil: the caller waits for the turn's
// end. One caller at a time asks the store, for all that have come by then.
func (p *preview) outcome(ctx context.Context, number uint64) (*outcome, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case number < p.allowed:
		return &outcome{value: p.value, source: Waited, shared: true, moment: always}, nil
	case p.closed, p.over:
		return nil, nil
	case p.check != nil:
		return nil, p.check
	}
	done := make(chan struct{})
	p.check = done
	p.mu.Unlock()
	moment, held, gone := p.t.stillHeld(ctx)
	p.mu.Lock()
	p.check = nil
	defer close(done)
	if gone && !p.over {
		p.t.lease.Lose() // so that the callers do not wait for the store to notice
	}
	switch {
	case held:
		p.allowed = moment
		return &outcome{value: p.value, source: Waited, shared: true, moment: always}, nil
	case ctx.Err() == nil: // else the next caller asks
		p.closed = true
	}
	return nil, nil
}

// end is called before the turn gives its lease back.
func (p *preview) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

// stillHeld asks the store whether the turn's lease is held, or gone; neither if the store
// does not answer. The answer holds for callers with a sequence number below moment.
func (t *turn) stillHeld(ctx context.Context) (moment uint64, held, gone bool) {
	f, e := t.f, t.f.e
	r := f.request
	r.Seen, r.LastHeld, r.Suspect, r.Once = "", t.lease.Token, store.Token{}, true
	moment = e.sequence.Add(1)
	sent := time.Now()
	a := e.store.Acquire(ctx, []store.Request{r})[0]
	switch {
	case a.Err != nil:
		return moment, false, false
	case a.Verdict == store.Granted:
		e.store.Return(context.WithoutCancel(ctx), []store.Return{{Lease: a.Lease}})
		fallthrough
	case a.Verdict != store.Held, a.Holder != t.lease.Token:
		return moment, false, true
	}
	return moment, !e.backlog.covers(f.key, &store.Entry{}, sent), false
}
