package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a server may take to end after SIGTERM before it is
// killed.
const stopGrace = 5 * time.Second

var errNotRunning = errors.New("redistest: server is not running")

// process is one child that can be started again after it ended. Its methods
// may be called from any goroutine.
type process struct {
	path string
	args []string
	log  string // path of the file that takes the child's output

	mu    sync.Mutex // guards child
	child *child     // the latest child, alive or not
}

// child is one run of a process.
type child struct {
	os   *os.Process
	done chan struct{} // closed once the child has ended and been reaped
}

func newProcess(path, dir string, args []string) *process {
	return &process{path: path, args: args, log: filepath.Join(dir, "output.log")}
}

func (p *process) start() error {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("redistest: server log: %w", err)
	}
	defer out.Close() // the child has its own copy

	cmd := exec.Command(p.path, p.args...)
	cmd.Dir = filepath.Dir(p.log)
	cmd.Stdout, cmd.Stderr = out, out
	if err := startChild(cmd); err != nil {
		return fmt.Errorf("redistest: start server: %w", err)
	}
	c := &child{os: cmd.Process, done: make(chan struct{})}
	go func() { // ends with the child
		defer close(c.done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	p.mu.Lock()
	p.child = c
	p.mu.Unlock()
	return nil
}

func (p *process) current() *child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
}

func (p *process) alive() bool {
	c := p.current()
	if c == nil {
		return false
	}
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (p *process) pid() int {
	if c := p.current(); c != nil {
		return c.os.Pid
	}
	return 0
}

// stop ends the child in order and waits until it is gone. It is not an error
// if the child is gone already.
func (p *process) stop() error {
	c := p.current()
	if c == nil {
		return nil
	}
	// A stopped (paused) process takes SIGTERM only once it continues.
	_ = c.os.Signal(syscall.SIGTERM)
	_ = resumeProcess(c.os)
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-c.done:
		return nil
	case <-timer.C:
		return p.kill()
	}
}

// kill ends the child without notice and waits until it is gone.
func (p *process) kill() error {
	c := p.current()
	if c == nil {
		return nil
	}
	if err := c.os.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("redistest: kill server: %w", err)
	}
	<-c.done
	return nil
}

func (p *process) pause() error {
	if !p.alive() {
		return errNotRunning
	}
	return pauseProcess(p.current().os)
}

func (p *process) resume() error {
	if !p.alive() {
		return errNotRunning
	}
	return resumeProcess(p.current().os)
}

// tail returns the end of the child's output, for error messages.
func (p *process) tail() string {
	out, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 2048
	if len(out) > most {
		out = out[len(out)-most:]
	}
	return string(out)
}
