package spawn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// ErrDied is wrapped by the error of [Process.Died].
var ErrDied = errors.New("the child process died")

// A Process is a child as its parent sees it. Its methods may be called from
// any goroutine.
type Process struct {
	teller // to its standard input

	name   string
	cmd    *exec.Cmd
	stderr tail
	gone   chan struct{} // closed when the child has ended and all that it wrote is read
}

// Start starts a child. In a goroutine of its own, read takes in the output of the
// child, to the end; see [Lines]. Its error becomes a [Process.Complaint].
func Start(name string, read func(stdout io.Reader) error) (*Process, error) {
	p := &Process{name: name, gone: make(chan struct{})}
	if err := p.start(read); err != nil {
		return nil, p.wrap(err)
	}
	return p, nil
}

func (p *Process) start(read func(io.Reader) error) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(path)
	p.cmd.Env = append(os.Environ(), childEnv+"="+p.name,
		"GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0") // a process that exits is to be gone at once
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.out, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := redistest.StartChild(p.cmd); err != nil {
		return err
	}
	go func() { // ends with the child
		defer close(p.gone)
		if err := read(stdout); err != nil {
			fmt.Fprintln(&p.stderr, p.wrap(err))
		}
		_ = p.cmd.Wait() // Died has the outcome
	}()
	return nil
}

// PID is the child's process number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Died says how the child ended; nil while it runs.
func (p *Process) Died() error {
	select {
	case <-p.gone:
		return p.wrap(fmt.Errorf("%w: pid %d: %v; it said: %q", ErrDied, p.PID(), p.cmd.ProcessState, p.Stderr()))
	default:
		return nil
	}
}

// Stderr returns the end of the child's standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// Complaint is the text of a broken Go program on its standard error,
// or the error of [Main].
func (p *Process) Complaint() error {
	said := p.Stderr()
	for _, sign := range []string{"DATA RACE", "panic: ", "fatal error: ", p.name + ": "} {
		if strings.Contains(said, sign) {
			return p.wrap(fmt.Errorf("pid %d said: %s", p.PID(), said))
		}
	}
	return nil
}

// Wait waits until the child is gone. It returns nil if the child's exit status
// is 0, and the error of Died if not.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.gone:
	case <-ctx.Done():
		return p.wrap(fmt.Errorf("pid %d has not ended: %w", p.PID(), context.Cause(ctx)))
	}
	if p.cmd.ProcessState.Success() {
		return nil
	}
	return p.Died()
}

// CloseInput closes the child's standard input.
func (p *Process) CloseInput() error { return p.out.Close() }

// Kill ends the child with SIGKILL and waits until it is gone. Calling it again,
// or on a child that is gone, does nothing.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return p.wrap(err)
	}
	<-p.gone
	return nil
}

// Stop freezes the child with SIGSTOP; Cont lets it go on.
func (p *Process) Stop() error { return redistest.PauseProcess(p.cmd.Process) }

// Cont is the opposite of Stop.
func (p *Process) Cont() error { return redistest.ResumeProcess(p.cmd.Process) }

func (p *Process) wrap(err error) error { return fmt.Errorf("%s: %w", p.name, err) }
