package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"github.com/stampedeguard/stampede/internal/redistest"
)

// ErrDied is wrapped by the errors of calls to a child that is gone.
var ErrDied = errors.New("fleet: the child process died")

// A Process is a child as its parent sees it. Its methods may be called from
// any goroutine; their errors are a *[Failure] if they are the child's own.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr *tail
	log    *Log
	gone   chan struct{} // closed when the child has ended and everything it wrote is read

	mu      sync.Mutex // guards the rest, and writing
	lastID  int64
	pending map[int64]chan reply
	ended   error // why it is gone; wraps ErrDied
}

// start runs a child that has opened nothing yet.
func start(log *Log) (*Process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	p := &Process{
		cmd: exec.Command(path), stderr: &tail{}, log: log,
		gone: make(chan struct{}), pending: map[int64]chan reply{},
	}
	p.cmd.Env = append(os.Environ(), childEnv+"=1",
		"GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0") // a process that exits is to be gone at once
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	if err := redistest.StartChild(p.cmd); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	go p.read(stdout)
	return p, nil
}

// read takes in what the child writes until it ends, and says so to whoever
// waits for a reply.
func (p *Process) read(stdout io.Reader) {
	defer close(p.gone)
	in := bufio.NewReader(stdout)
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			fmt.Fprintf(p.stderr, "fleet: the child wrote %q: %v\n", text, err)
			continue
		}
		if l.Event != nil {
			p.log.add(*l.Event)
		}
		if l.Reply != nil {
			p.answered(*l.Reply)
		}
	}
	err := p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = fmt.Errorf("%w: pid %d: %v; it said: %q", ErrDied, p.PID(), err, p.stderr)
	for id, answer := range p.pending {
		delete(p.pending, id)
		close(answer)
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
	answer chan reply // closed when the child is gone
}

// send writes a request. What can't be written, as the child is gone, is told
// by await.
func (p *Process) send(r request) *Call {
	c := &Call{p: p, answer: make(chan reply, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		close(c.answer)
		return c
	}
	p.lastID++
	r.ID = p.lastID
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // a type in protocol.go that JSON can't hold
	}
	p.pending[r.ID] = c.answer
	_, _ = p.stdin.Write(append(text, '\n')) // if this fails, read fails too
	return c
}

func (c *Call) await(ctx context.Context) (reply, error) {
	select {
	case r, ok := <-c.answer:
		switch {
		case !ok:
			return r, c.p.Died()
		case r.Err != nil:
			return r, r.Err
		}
		return r, nil
	case <-ctx.Done():
		return reply{}, fmt.Errorf("fleet: pid %d has not answered: %w", c.p.PID(), context.Cause(ctx))
	}
}

// Wait returns what the callers of a Get got, when the last of them has
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

// Loaded returns what a load came to, when its last call has returned.
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

// Expire calls Guard.Expire.
func (p *Process) Expire(ctx context.Context, key string) (Span, error) {
	return p.change(ctx, request{Op: "expire", Key: key})
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

// PID is the child's process number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Gone is closed when the child has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Died says how the child ended; nil while it runs.
func (p *Process) Died() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// Kill ends the child with SIGKILL and waits until it is gone. Calling it again,
// or on a child that is gone, does nothing.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("fleet: %w", err)
	}
	<-p.gone
	return nil
}

// Stop freezes the child with SIGSTOP; Cont lets it go on.
func (p *Process) Stop() error { return redistest.PauseProcess(p.cmd.Process) }

// Cont is the opposite of Stop.
func (p *Process) Cont() error { return redistest.ResumeProcess(p.cmd.Process) }

// Close closes the child's guard, store and client in this order, as a service
// that is shut down does, and waits until the child is gone. Gets under way
// return guard.ErrClosed.
func (p *Process) Close(ctx context.Context) error {
	_, err := p.send(request{Op: "close"}).await(ctx)
	if ctx.Err() != nil {
		return err
	}
	<-p.gone
	if state := p.cmd.ProcessState; err == nil && !state.Success() {
		err = p.Died()
	}
	return err
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 16 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
