package fleet

import (
	"context"
	"sync"

	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

// ErrDied is wrapped by the errors of calls to a child that is gone.
var ErrDied = spawn.ErrDied

// A Process is a child as its parent sees it. Its methods may be called from
// any goroutine; their errors are a *[Failure] if they are the child's own.
type Process struct {
	*spawn.Process
	log *Log

	mu      sync.Mutex // guards the rest
	lastID  int64
	pending map[int64]chan reply
}

// start runs a child that has opened nothing yet.
func start(log *Log) (*Process, error) {
	p := &Process{log: log, pending: map[int64]chan reply{}}
	child, err := spawn.Start(childName, spawn.Lines(p.hear))
	if err != nil {
		return nil, err
	}
	p.Process = child
	return p, nil
}

func (p *Process) hear(l *line) {
	if l.Event != nil {
		p.log.add(*l.Event)
	}
	if l.Reply != nil {
		p.answered(*l.Reply)
	}
}

func (p *Process) answered(r reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if answer := p.pending[r.ID]; answer != nil {
		delete(p.pending, r.ID)
		answer <- r
	}
}

// A Call is a request under way.
type Call struct {
	p      *Process
	answer chan reply
}

func (p *Process) send(r request) *Call {
	c := &Call{p: p, answer: make(chan reply, 1)}
	p.mu.Lock()
	p.lastID++
	r.ID = p.lastID
	p.pending[r.ID] = c.answer
	p.mu.Unlock()
	p.Tell(r)
	return c
}

func (c *Call) await(ctx context.Context) (reply, error) {
	r, err := spawn.Await(ctx, c.p.Process, c.answer)
	if err == nil && r.Err != nil {
		err = r.Err
	}
	return r, err
}

// Wait returns the outcomes of the callers of a Get, when the last of them has
// returned. Their errors are in the outcomes.
func (c *Call) Wait(ctx context.Context) ([]Outcome, error) {
	r, err := c.await(ctx)
	return r.Outcomes, err
}

// Go has callers call the guard; see [Call.Wait].
func (p *Process) Go(g Get) *Call { return p.send(request{Op: "get", Get: &g}) }

// Get is Go and Wait.
func (p *Process) Get(ctx context.Context, g Get) ([]Outcome, error) { return p.Go(g).Wait(ctx) }

// StartLoad has the child call the guard at a steady rate; see [Call.Loaded].
func (p *Process) StartLoad(l Load) *Call { return p.send(request{Op: "load", Load: &l}) }

// Loaded returns the sums of a load, when its last call has returned.
func (c *Call) Loaded(ctx context.Context) (*Loaded, error) {
	r, err := c.await(ctx)
	return r.Loaded, err
}

func (p *Process) change(ctx context.Context, r request) (Span, error) {
	answer, err := p.send(r).await(ctx)
	return answer.Span, err
}

// Set calls Guard.Set.
func (p *Process) Set(ctx context.Context, key, value string) (Span, error) {
	return p.change(ctx, request{Op: "set", Key: key, Value: value})
}

// Delete calls Guard.Delete.
func (p *Process) Delete(ctx context.Context, key string) (Span, error) {
	return p.change(ctx, request{Op: "delete", Key: key})
}

// Reset calls Guard.Reset.
func (p *Process) Reset(ctx context.Context, key string) (Span, error) {
	return p.change(ctx, request{Op: "reset", Key: key})
}

// Peek calls Guard.Peek.
func (p *Process) Peek(ctx context.Context, key string) (Peeked, error) {
	r, err := p.send(request{Op: "peek", Key: key}).await(ctx)
	return r.Peeked, err
}

// Stats returns figures of the child.
func (p *Process) Stats(ctx context.Context) (Stats, error) {
	r, err := p.send(request{Op: "stats"}).await(ctx)
	return r.Stats, err
}

// Close closes the child's guard, store and client in this order, as a service
// that is shut down does, and waits until the child is gone. Gets under way
// return guard.ErrClosed.
func (p *Process) Close(ctx context.Context) error {
	_, err := p.send(request{Op: "close"}).await(ctx)
	if ended := p.Wait(ctx); err == nil {
		err = ended
	}
	return err
}
