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
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A Process is a child. One goroutine gives it orders.
type Process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	done    chan Event     // answers to orders
	fetches chan time.Time // of orders with Announce
	ended   sync.WaitGroup
	stderr  firstWords
}

// Start starts a child with nothing open.
func Start() (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, stdin: stdin, done: make(chan Event, 1), fetches: make(chan time.Time, 1<<14)}
	cmd.Stderr = &p.stderr
	if err := redistest.StartChild(cmd); err != nil {
		return nil, fmt.Errorf("starting a child: %w", err)
	}
	p.ended.Go(func() { p.read(stdout) })
	return p, nil
}

func (p *Process) read(stdout io.Reader) {
	defer close(p.done)
	defer close(p.fetches)
	in := json.NewDecoder(bufio.NewReader(stdout))
	for {
		var e Event
		if in.Decode(&e) != nil {
			return
		}
		if e.Kind != "fetch" {
			p.done <- e
			continue
		}
		select {
		case p.fetches <- e.At:
		default: // no reader, and more than any reader needs
		}
	}
}

// Fetches gives when fetches began; it is closed when the child ends.
func (p *Process) Fetches() <-chan time.Time { return p.fetches }

// Send gives an order, and Wait waits for its answer. Do does both.
func (p *Process) Send(o Order) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = p.stdin.Write(append(line, '\n'))
	return err
}

// ErrEnded is returned when the child has ended instead of answering.
var ErrEnded = errors.New("fleet: the child has ended")

// Wait returns the answer to the order that was sent last. After an error the
// process is good for nothing but Stop.
func (p *Process) Wait(ctx context.Context) (Event, error) {
	select {
	case e, ok := <-p.done:
		switch {
		case !ok:
			return e, fmt.Errorf("%w: %s", ErrEnded, p.stderr.String())
		case e.Kind == "error":
			return e, errors.New(e.Text)
		}
		return e, nil
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
}

// Do gives an order and waits for its answer.
func (p *Process) Do(ctx context.Context, o Order) (Event, error) {
	if err := p.Send(o); err != nil {
		return Event{}, err
	}
	return p.Wait(ctx)
}

// Kill ends the child with SIGKILL. It returns when that was done.
func (p *Process) Kill() time.Time {
	at := time.Now()
	_ = p.cmd.Process.Kill()
	return at
}

// Stop ends the child and waits for it.
func (p *Process) Stop() {
	_ = p.stdin.Close()
	_ = p.cmd.Process.Kill()
	go func() {
		for range p.done { // read may be about to send
		}
	}()
	p.ended.Wait()
	_ = p.cmd.Wait()
}
