package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// runInSteps is a Get by a caller that fetches in steps of its own.
func (o *op) runInSteps(ctx context.Context) {
	refresh := func(t *guard.Turn[string]) { _, _ = o.step(context.Background(), t) }
	r, t, err := o.p.guard.Begin(ctx, o.key, refresh)
	if t == nil {
		o.value, o.source, o.err = r.Value, r.Source, err
		if o.previewed = err == nil && r.Source == guard.Waited && !r.Stored; o.previewed {
			o.w.mu.Lock()
			defer o.w.mu.Unlock()
			o.w.sights["preview"]++
		}
		return
	}
	o.w.mu.Lock()
	o.w.sights["turn"]++
	o.w.mu.Unlock()
	o.turnAt = time.Now()
	o.source = guard.Fetched
	o.value, o.err = o.step(ctx, t)
}

// step takes a turn to its end: it stores a value, fails, or gives the turn back. ctx is the
// caller's.
func (o *op) step(ctx context.Context, t *guard.Turn[string]) (string, error) {
	f := o.newFetch(t.Context(), t.Fill)
	if f.ending == panics || f.ending == panicsError || f.ending == exits {
		f.ending = failure // they would end the caller, and not a fetch
	}
	o.w.begin(f)
	if o.seed&2 != 0 && f.ending == value && f.renews == "" && !f.private {
		f.previewed = true
		t.Preview(f.text())
	}
	ended := sync.OnceFunc(func() { o.w.finished(f) })
	defer ended()
	select {
	case <-f.finish:
	case <-t.Context().Done(): // the turn has ended
		return "", fmt.Errorf("%w: %s", errUpstream, f.text())
	case <-ctx.Done():
		ended()
		t.Release()
		return "", context.Cause(ctx)
	case <-o.p.dead:
		return "", errDead
	}
	value, err := o.answer(f, t.Fill)
	ended() // to end the turn is no part of the fetch
	if err == nil {
		t.Store(value)
	} else {
		t.Fail(err)
	}
	if f.renews != "" {
		return f.renews, nil
	}
	return value, err
}
