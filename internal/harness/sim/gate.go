package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A gate lies between a guard and a memory store, as a network does between a store
// and Redis. It holds each call twice, before it is carried out and before it
// returns, and it holds messages. Calls may fail. A failed call may have been carried out
// or not: its error does not tell.
type gate struct {
	store.Store // a memory store
	p           *process

	mu      sync.Mutex
	calls   []*passage
	watches []*heldWatch
	arrived int
}

// A passage is one call of the store on its way.
type passage struct {
	g       *gate
	label   string
	arrival int
	state   callState     // guarded by gate.mu
	note    func(b *book) // the effect, for the scheduler to take in

	request, answer chan error // the scheduler's decisions
}

var (
	errLost       = fmt.Errorf("%w: sim: the call is lost", store.ErrUnavailable)
	errUnanswered = fmt.Errorf("%w: sim: the answer is lost", store.ErrUnavailable)
)

// pass takes a call to the store and its answer back, as the scheduler says. do
// carries the call out, and returns its effect for the scheduler.
func (g *gate) pass(ctx context.Context, label string, do func() (note func(b *book))) error {
	c := &passage{g: g, label: fmt.Sprintf("%v %s", caller(ctx), label), request: make(chan error), answer: make(chan error)}
	g.mu.Lock()
	g.arrived++
	c.arrival = g.arrived
	g.calls = append(g.calls, c)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		c.state = gone
		g.calls = without(g.calls, c)
	}()
	// As Redis's calls are: a stamp that took longer would outlast the lease.
	timeout := time.NewTimer(g.p.w.plan.redisTimeout)
	defer timeout.Stop()
	select {
	case err := <-c.request:
		if err != nil {
			return err
		}
	case <-timeout.C:
		return errLost
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	note := do()
	g.mu.Lock()
	c.note, c.state = note, executed
	g.mu.Unlock()
	select {
	case err := <-c.answer:
		return err
	case <-timeout.C:
		return errUnanswered
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// eligible lists the possible events of calls and messages, in an order that does not
// depend on which goroutine came first.
func (g *gate) eligible() (all []event) {
	g.mu.Lock()
	calls := slices.Clone(g.calls)
	watches := slices.Clone(g.watches)
	g.mu.Unlock()
	slices.SortStableFunc(calls, func(a, b *passage) int {
		if d := strings.Compare(a.label, b.label); d != 0 {
			return d
		}
		return a.arrival - b.arrival
	})
	w := g.p.w
	for _, c := range calls {
		switch g.stateOf(c) {
		case waiting:
			all = append(all, event{phase{c, int(waiting)}, func() { w.admit(c) }, false})
		case executed:
			all = append(all, event{phase{c, int(executed)}, func() { w.dismiss(c) }, false})
		}
	}
	for _, held := range watches {
		if n := held.held(); n > 0 {
			all = append(all, event{phase{held, n}, func() { w.wake(held) }, true})
		}
	}
	return all
}

func (g *gate) stateOf(c *passage) callState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.state
}

// admit has a call carried out, or loses it.
func (w *world) admit(c *passage) {
	if !w.healed && w.chance(w.plan.loseRequest) {
		w.fault("call lost")
		w.say("p%d: %s is lost", c.g.p.id, c.label)
		c.request <- errLost
		return
	}
	w.say("p%d: %s is carried out", c.g.p.id, c.label)
	c.request <- nil
	synctest.Wait()
	c.g.mu.Lock()
	note := c.note
	c.g.mu.Unlock()
	if note != nil {
		note(&w.book)
	}
}

// dismiss lets a call return, or loses its answer.
func (w *world) dismiss(c *passage) {
	if !w.healed && w.chance(w.plan.loseAnswer) {
		w.fault("answer of a call lost")
		w.say("p%d: the answer of %s is lost", c.g.p.id, c.label)
		c.answer <- errUnanswered
		return
	}
	w.say("p%d: %s returns", c.g.p.id, c.label)
	c.answer <- nil
}

// Unwrap makes it a cache.Store.
func (g *gate) Unwrap() store.Store { return g }

// Read implements [store.Store].
func (g *gate) Read(ctx context.Context, prefix, key string, to store.Reader) {
	go func() { // ends with the call
		var a answer
		lost := g.pass(context.WithoutCancel(ctx), "read "+prefix+key, func() func(*book) {
			to.Sending()
			g.Store.Read(ctx, prefix, key, &a)
			return nil
		})
		if lost != nil {
			a = answer{err: lost}
		}
		to.Answered(a.r, a.err)
	}()
}

// An answer is a [store.Reader] that keeps its answer.
type answer struct {
	r   *store.Reading
	err error
}

// Sending implements [store.Reader].
func (*answer) Sending() {}

// Answered implements [store.Reader].
func (a *answer) Answered(r *store.Reading, err error) { a.r, a.err = r, err }

// ReadMany implements [store.Store].
func (g *gate) ReadMany(ctx context.Context, prefix string, keys []string, each func(int, *store.Reading, error)) {
	results := make([]answer, len(keys))
	lost := g.pass(ctx, "read many "+strings.Join(keys, " "), func() func(*book) {
		g.Store.ReadMany(ctx, prefix, keys, func(i int, r *store.Reading, err error) {
			if r != nil {
				r = r.Keep()
			}
			results[i] = answer{r, err}
		})
		return nil
	})
	for i, one := range results {
		if lost != nil {
			one = answer{err: lost}
		}
		each(i, one.r, one.err)
	}
}

// Acquire implements [store.Store]. A grant with a lost answer is given back: the
// memory store does not know it for an orphan.
func (g *gate) Acquire(ctx context.Context, requests []store.Request) (all []store.Answer) {
	lost := g.pass(ctx, "acquire "+several(requests[0].Key, len(requests)), func() func(*book) {
		all = g.Store.Acquire(ctx, requests)
		answers := slices.Clone(all)
		return func(b *book) {
			for i := range answers {
				b.answeredInMemory(g.p, &requests[i], &answers[i])
			}
		}
	})
	if lost == nil {
		return all
	}
	for _, a := range all {
		g.giveUp(a.Lease)
	}
	return slices.Repeat([]store.Answer{{Err: lost}}, len(requests))
}

// several names a call for n keys.
func several(key string, n int) string {
	if n == 1 {
		return key
	}
	return fmt.Sprintf("%s and %d more", key, n-1)
}

// Return implements [store.Store]. If it is lost the leases are given back, as the guard
// does not count them as held after an error.
func (g *gate) Return(ctx context.Context, returns []store.Return) (all []store.Returned) {
	if len(returns) == 0 {
		return nil
	}
	label := "return"
	if r := &returns[0]; len(returns) == 1 {
		switch {
		case r.Entry != nil:
			label = "fill"
		case r.Failed:
			label = "fail"
		default:
			label = "release"
		}
	}
	lost := g.pass(ctx, label+" "+several(returns[0].Lease.Key, len(returns)), func() func(*book) {
		all = g.Store.Return(ctx, returns)
		done := slices.Clone(all)
		return func(b *book) {
			for i := range returns {
				b.returnedInMemory(g.p.w, &returns[i], done[i])
			}
		}
	})
	if lost == nil {
		return all
	}
	for _, r := range returns {
		g.giveUp(r.Lease)
	}
	return slices.Repeat([]store.Returned{{Err: lost}}, len(returns))
}

// giveUp gives a lease back of which the guard does not know, nil: none.
func (g *gate) giveUp(l *store.Lease) {
	if l == nil {
		return
	}
	g.Store.Return(context.Background(), []store.Return{{Lease: l}}) // fails only if the store has given it back
	w := g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.givenUp = append(w.givenUp, string(l.Token[:]))
}

// Change implements [store.Store].
func (g *gate) Change(ctx context.Context, changes []store.Change) (errs []error) {
	names := make([]string, len(changes))
	for i, c := range changes {
		names[i] = c.Kind.String() + " " + c.Key
	}
	lost := g.pass(ctx, strings.Join(names, ", "), func() func(*book) {
		errs = g.Store.Change(ctx, changes)
		done := slices.Clone(errs)
		return func(b *book) {
			for i, c := range changes {
				if done[i] == nil && c.Kind != store.Reset {
					b.changedInMemory(g.p.w, caller(ctx), c.Key, c.Entry, true)
				}
			}
		}
	})
	if lost != nil {
		return slices.Repeat([]error{lost}, len(changes))
	}
	return errs
}

// ChangeTags implements [store.Store].
func (g *gate) ChangeTags(ctx context.Context, what store.TagChange, tags []string) (err error) {
	lost := g.pass(ctx, fmt.Sprintf("change %d of tags %s", what, strings.Join(tags, " ")), func() func(*book) {
		if err = g.Store.ChangeTags(ctx, what, tags); err != nil {
			return nil
		}
		return func(b *book) {
			for _, tag := range tags {
				b.changedInMemory(g.p.w, caller(ctx), tag, nil, false)
			}
		}
	})
	if lost != nil {
		return lost
	}
	return err
}

// Stamp implements [store.Store].
func (g *gate) Stamp(ctx context.Context) (s store.Stamp, err error) {
	if lost := g.pass(ctx, "stamp", func() func(*book) { s, err = g.Store.Stamp(ctx); return nil }); lost != nil {
		return store.Stamp{}, lost
	}
	return s, err
}

// A heldWatch holds the messages of one watch.
type heldWatch struct {
	key   string
	outer *store.Watch

	mu       sync.Mutex
	messages []store.Message
	passed   int
}

// held is the place of the first message that is held, counted from 1; 0: none is.
func (h *heldWatch) held() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.messages) == 0 {
		return 0
	}
	return h.passed + 1
}

// Watch implements [store.Store].
func (g *gate) Watch(key string) *store.Watch {
	inner := g.Store.Watch(key)
	h := &heldWatch{key: key}
	end := make(chan struct{})
	h.outer = store.NewWatch(func() {
		close(end)
		inner.Close()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.watches = without(g.watches, h)
	})
	g.mu.Lock()
	g.watches = append(g.watches, h)
	slices.SortStableFunc(g.watches, func(a, b *heldWatch) int { return strings.Compare(a.key, b.key) })
	g.mu.Unlock()
	go func() { // ends with the watch
		for {
			select {
			case m := <-inner.C:
				h.mu.Lock()
				h.messages = append(h.messages, m)
				h.mu.Unlock()
			case <-end:
				return
			}
		}
	}()
	return h.outer
}

// wake hands on a message, or loses it.
func (w *world) wake(h *heldWatch) {
	h.mu.Lock()
	m := h.messages[0]
	h.messages = h.messages[1:]
	h.passed++
	h.mu.Unlock()
	if !w.healed && w.chance(w.plan.loseMessage) {
		w.fault("message lost")
		w.say("message %v of %s is lost", m.Signal, h.key)
		return
	}
	w.say("message %v of %s arrives", m.Signal, h.key)
	h.outer.Push(m)
}
