package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// A troupe is the child processes of one scene.
type troupe struct {
	members []*member
	heard   chan heard
	ctx     context.Context
	cancel  context.CancelFunc // kills the remaining processes
	readers sync.WaitGroup
}

// A member is one child process.
type member struct {
	index  int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *json.Encoder
	stderr tail
	killed bool // by us
	gone   bool
}

// heard is a message from a member, or the news that it has ended.
type heard struct {
	from  *member
	msg   message
	ended bool
	err   error // how it ended
}

// hire starts n children of this program.
func hire(ctx context.Context, n int) (*troupe, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("can't find this program to start it again: %w", err)
	}
	t := &troupe{heard: make(chan heard, n)}
	t.ctx, t.cancel = context.WithCancel(ctx)
	for i := range n {
		if err := t.start(exe, i); err != nil {
			t.dismiss()
			return nil, fmt.Errorf("can't start process %d: %w", i, err)
		}
	}
	return t, nil
}

func (t *troupe) start(exe string, index int) error {
	m := &member{index: index, cmd: exec.CommandContext(t.ctx, exe, childArg)}
	m.cmd.Stderr = &m.stderr
	m.cmd.WaitDelay = time.Second
	var err error
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	m.out = json.NewEncoder(m.stdin)
	t.members = append(t.members, m)
	t.readers.Go(func() { t.listen(m, stdout) })
	return nil
}

// listen passes on a member's messages until it ends.
func (t *troupe) listen(m *member, stdout io.Reader) {
	in := json.NewDecoder(stdout)
	for {
		var msg message
		err := in.Decode(&msg)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_, _ = io.Copy(io.Discard, stdout)
			}
			break
		}
		t.tell(heard{from: m, msg: msg})
	}
	t.tell(heard{from: m, ended: true, err: m.cmd.Wait()})
}

func (t *troupe) tell(h heard) {
	select {
	case t.heard <- h:
	case <-t.ctx.Done():
	}
}

// broadcast sends each member a message. A member that can't be written to has ended
// or is about to end, which listen tells.
func (t *troupe) broadcast(make func(m *member) message) {
	for _, m := range t.members {
		_ = m.out.Encode(make(m))
	}
}

// check notes a member's end, which is an error unless it was killed, and returns
// the error that a member reports.
func check(h heard) error {
	switch {
	case h.ended:
		h.from.gone = true
		if !h.from.killed {
			return h.from.died(h.err)
		}
	case h.msg.Type == msgFailed:
		return fmt.Errorf("process %d: %s", h.from.index, h.msg.Error)
	}
	return nil
}

func (m *member) died(err error) error {
	how := "it exited with status 0"
	if err != nil {
		how = err.Error()
	}
	if text := m.stderr.String(); text != "" {
		how += "\n" + text
	}
	return fmt.Errorf("process %d ended unexpectedly: %s", m.index, how)
}

// kill ends a member as the kernel's OOM killer would. It returns the instant
// before.
func (m *member) kill() (time.Time, error) {
	m.killed = true
	at := time.Now()
	if err := m.cmd.Process.Kill(); err != nil {
		return at, fmt.Errorf("can't kill process %d: %w", m.index, err)
	}
	return at, nil
}

// dismiss ends all members and waits until they have ended: politely, by closing
// their standard input, and after two seconds by force.
func (t *troupe) dismiss() {
	for _, m := range t.members {
		_ = m.stdin.Close()
	}
	timeout := time.AfterFunc(2*time.Second, t.cancel)
	defer timeout.Stop()
	for _, m := range t.members {
		for !m.gone && t.ctx.Err() == nil {
			select {
			case h := <-t.heard:
				h.from.gone = h.from.gone || h.ended
			case <-t.ctx.Done():
			}
		}
	}
	t.cancel()
	t.readers.Wait()
}

// A tail keeps the end of the bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if cut := len(t.buf) - 2000; cut > 0 {
		t.buf = t.buf[cut:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}
