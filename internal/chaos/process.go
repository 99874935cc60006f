package chaos

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
	"time"

	"github.com/stampedeguard/stampede/internal/redistest"
)

// A process is a child as the parent sees it.
type process struct {
	number int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	rec    *recorder
	stderr *said
	gone   chan struct{} // closed when it has ended and all it wrote is read
	done   chan report   // answers to orders
}

// startProcess runs a child that has opened nothing yet.
func startProcess(number int, rec *recorder) (*process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("chaos: %w", err)
	}
	p := &process{
		number: number, cmd: exec.Command(path), rec: rec, stderr: &said{},
		gone: make(chan struct{}), done: make(chan report, 8),
	}
	p.cmd.Env = append(os.Environ(), childEnv+"=1")
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("chaos: %w", err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("chaos: %w", err)
	}
	if err := redistest.StartChild(p.cmd); err != nil {
		return nil, fmt.Errorf("chaos: %w", err)
	}
	go p.read(stdout) // ends with the child
	return p, nil
}

func (p *process) read(stdout io.Reader) {
	defer close(p.gone)
	in := bufio.NewReaderSize(stdout, 1<<18)
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var r report
		if err := json.Unmarshal(text, &r); err != nil {
			fmt.Fprintf(p.stderr, "chaos: the child wrote %q: %v\n", text, err)
			continue
		}
		if r.Done == "" {
			p.rec.add(p.number, &r)
			continue
		}
		if r.Idle != nil {
			p.rec.idle(p.number, r.Idle)
		}
		p.done <- r
	}
	_ = p.cmd.Wait()
	p.rec.ended(p.number)
}

// order gives an order and waits until it is carried out.
func (p *process) order(ctx context.Context, o order) error {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // a type in wire.go that JSON can't hold
	}
	if _, err := p.stdin.Write(append(text, '\n')); err != nil {
		return p.died()
	}
	select {
	case r := <-p.done:
		if r.Err != "" {
			return fmt.Errorf("chaos: process %d: %s: %s", p.number, o.Op, r.Err)
		}
		return nil
	case <-p.gone:
		return p.died()
	case <-ctx.Done():
		return fmt.Errorf("chaos: process %d has not carried out %q: %w", p.number, o.Op, context.Cause(ctx))
	}
}

func (p *process) died() error {
	return fmt.Errorf("chaos: process %d ended by itself; it said: %s", p.number, p.stderr)
}

// kill ends it with SIGKILL and waits until it is gone.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("chaos: %w", err)
	}
	<-p.gone
	return nil
}

// freeze stops it for d.
func (p *process) freeze(ctx context.Context, d time.Duration) error {
	from := now()
	if err := redistest.PauseProcess(p.cmd.Process); err != nil {
		return err
	}
	wait(ctx, d)
	err := redistest.ResumeProcess(p.cmd.Process)
	p.rec.frozen(p.number, from, now())
	return err
}

// close has it shut down in order, and waits until it is gone.
func (p *process) close(ctx context.Context) error {
	err := p.order(ctx, order{Op: "close"})
	if ctx.Err() == nil {
		select {
		case <-p.gone:
		case <-ctx.Done():
		}
	}
	return err
}

// said keeps the end of what a child writes to its standard error.
type said struct {
	mu   sync.Mutex
	text []byte
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b...)
	s.text = s.text[max(0, len(s.text)-(64<<10)):]
	return len(b), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.text)
}
