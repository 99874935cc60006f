package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A gate lies between a guard and a memory store, as a network does between a store
// and Redis. It holds each call twice, before it is carried out and before it
// returns, and it holds messages. Calls may fail: then they were not carried out, or
// were and nothing says so.
type gate struct {
	cache.Store // a cache.Memory
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
	note    func(b *book) // what was carried out, for the scheduler to take in

	request, answer chan error // the scheduler's decisions
}

var (
	errLost       = fmt.Errorf("%w: sim: the call is lost", cache.ErrUnavailable)
	errUnanswered = fmt.Errorf("%w: sim: the answer is lost", cache.ErrUnavailable)
)

// pass takes a call to the store and its answer back, as the scheduler says. do
// carries the call out, and returns what the scheduler is to take note of.
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

// eligible lists what can happen to calls and messages, in an order that does not
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

// Read implements [cache.Store].
func (g *gate) Read(ctx context.Context, key string) (r *cache.Reading, err error) {
	if lost := g.pass(ctx, "read "+key, func() func(*book) { r, err = g.Store.Read(ctx, key); return nil }); lost != nil {
		return nil, lost
	}
	return r, err
}

// ReadMany implements [cache.Store].
func (g *gate) ReadMany(ctx context.Context, prefix string, keys []string, each func(int, *cache.Reading, error)) {
	type result struct {
		r   *cache.Reading
		err error
	}
	results := make([]result, len(keys))
	lost := g.pass(ctx, "read many "+strings.Join(keys, " "), func() func(*book) {
		g.Store.ReadMany(ctx, prefix, keys, func(i int, r *cache.Reading, err error) {
			if r != nil {
				r = r.Keep()
			}
			results[i] = result{r, err}
		})
		return nil
	})
	for i, one := range results {
		if lost != nil {
			one = result{err: lost}
		}
		each(i, one.r, one.err)
	}
}

// Acquire implements [cache.Store]. A grant whose answer is lost is given back: the
// memory store does not know it for an orphan.
func (g *gate) Acquire(ctx context.Context, key string, ask cache.Ask) (a cache.Answer, err error) {
	lost := g.pass(ctx, "acquire "+key, func() func(*book) {
		a, err = g.Store.Acquire(ctx, key, ask)
		answer := a
		return func(b *book) { b.answeredInMemory(g.p, key, &ask, &answer) }
	})
	if lost != nil {
		g.giveUp(a.Lease)
		return cache.Answer{}, lost
	}
	return a, err
}

// AcquireMany implements [cache.Store].
func (g *gate) AcquireMany(ctx context.Context, requests []cache.Request) (all []cache.Acquired) {
	lost := g.pass(ctx, "acquire many "+requests[0].Key, func() func(*book) {
		all = g.Store.AcquireMany(ctx, requests)
		answers := slices.Clone(all)
		return func(b *book) {
			for i := range answers {
				b.answeredInMemory(g.p, requests[i].Key, &requests[i].Ask, &answers[i].Answer)
			}
		}
	})
	if lost == nil {
		return all
	}
	for _, a := range all {
		g.giveUp(a.Answer.Lease)
	}
	return slices.Repeat([]cache.Acquired{{Err: lost}}, len(requests))
}

// Fill implements [cache.Store]. A fill that is lost gives its lease back, as the
// store of a guard does not count it as held after an error.
func (g *gate) Fill(ctx context.Context, l *cache.Lease, e *cache.Entry) (bool, error) {
	done := g.giveBack(ctx, "fill "+l.Key, []cache.Return{{Lease: l, Entry: e}})
	return done[0].OK, done[0].Err
}

// Fail implements [cache.Store].
func (g *gate) Fail(ctx context.Context, l *cache.Lease, failure []byte, pause time.Duration) (bool, error) {
	done := g.giveBack(ctx, "fail "+l.Key, []cache.Return{{Lease: l, Failed: true, Failure: failure, Pause: pause}})
	return done[0].OK, done[0].Err
}

// Release implements [cache.Store].
func (g *gate) Release(ctx context.Context, l *cache.Lease) error {
	return g.giveBack(ctx, "release "+l.Key, []cache.Return{{Lease: l}})[0].Err
}

// ReturnMany implements [cache.Store].
func (g *gate) ReturnMany(ctx context.Context, returns []cache.Return) []cache.Returned {
	if len(returns) == 0 {
		return nil
	}
	return g.giveBack(ctx, "return many "+returns[0].Lease.Key, returns)
}

func (g *gate) giveBack(ctx context.Context, label string, returns []cache.Return) (all []cache.Returned) {
	lost := g.pass(ctx, label, func() func(*book) {
		all = g.Store.ReturnMany(ctx, returns)
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
	return slices.Repeat([]cache.Returned{{Err: lost}}, len(returns))
}

// giveUp gives a lease back of which the guard does not know, nil: none.
func (g *gate) giveUp(l *cache.Lease) {
	if l == nil {
		return
	}
	_ = g.Store.Release(context.Background(), l) // fails only if the store has given it back
	w := g.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.givenUp = append(w.givenUp, string(l.Token[:]))
}

// Set, Delete, Expire, DeleteTag and ExpireTag implement [cache.Store].
func (g *gate) Set(ctx context.Context, key string, e *cache.Entry) error {
	return g.change(ctx, "set", []string{key}, func() error { return g.Store.Set(ctx, key, e) }, string(e.Payload))
}

func (g *gate) Delete(ctx context.Context, key string) error {
	return g.change(ctx, "delete", []string{key}, func() error { return g.Store.Delete(ctx, key) }, "")
}

func (g *gate) Expire(ctx context.Context, key string) error {
	return g.change(ctx, "expire", []string{key}, func() error { return g.Store.Expire(ctx, key) }, "")
}

func (g *gate) DeleteTag(ctx context.Context, tags ...string) error {
	return g.change(ctx, "delete tag", tags, func() error { return g.Store.DeleteTag(ctx, tags...) }, "")
}

func (g *gate) ExpireTag(ctx context.Context, tags ...string) error {
	return g.change(ctx, "expire tag", tags, func() error { return g.Store.ExpireTag(ctx, tags...) }, "")
}

// change carries out a change of keys or tags, which stores a value if there is one.
func (g *gate) change(ctx context.Context, what string, names []string, do func() error, stores string) (err error) {
	lost := g.pass(ctx, what+" "+strings.Join(names, " "), func() func(*book) {
		if err = do(); err != nil {
			return nil
		}
		return func(b *book) { b.changedInMemory(g.p.w, caller(ctx), what, names, stores) }
	})
	if lost != nil {
		return lost
	}
	return err
}

// Reset implements [cache.Store].
func (g *gate) Reset(ctx context.Context, key string) (err error) {
	if lost := g.pass(ctx, "reset "+key, func() func(*book) { err = g.Store.Reset(ctx, key); return nil }); lost != nil {
		return lost
	}
	return err
}

// Stamp implements [cache.Store].
func (g *gate) Stamp(ctx context.Context) (s cache.Stamp, err error) {
	if lost := g.pass(ctx, "stamp", func() func(*book) { s, err = g.Store.Stamp(ctx); return nil }); lost != nil {
		return cache.Stamp{}, lost
	}
	return s, err
}

// A heldWatch holds the messages of one watch.
type heldWatch struct {
	key   string
	outer *cache.Watch

	mu       sync.Mutex
	messages []cache.Message
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

// Watch implements [cache.Store].
func (g *gate) Watch(key string) *cache.Watch {
	inner := g.Store.Watch(key)
	h := &heldWatch{key: key}
	end := make(chan struct{})
	h.outer = cache.NewWatch(func() {
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
