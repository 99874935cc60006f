package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// The environment of a child process.
const (
	childEnv    = "OBSERVABILITY_CHILD" // its number
	addrEnv     = "OBSERVABILITY_ADDR"
	redisEnv    = "OBSERVABILITY_REDIS"
	otlpEnv     = "OBSERVABILITY_OTLP"
	scenarioEnv = "OBSERVABILITY_SCENARIO"
)

// A fleet is the two processes.
type fleet struct {
	redis, otlp string
	links       *links
	members     []*member

	mu       sync.Mutex
	scenario string
	stopping bool
}

type member struct {
	number int
	addr   string
	cmd    *exec.Cmd
	input  io.Closer     // its end ends the process
	died   chan struct{} // closed when the process has ended
}

// start starts a member's process and returns when it serves.
func (f *fleet) start(m *member) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f.mu.Lock()
	if f.stopping {
		f.mu.Unlock()
		return errors.New("stopping")
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+strconv.Itoa(m.number), addrEnv+"="+m.addr, redisEnv+"="+f.redis,
		otlpEnv+"="+f.otlp, scenarioEnv+"="+f.scenario)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	err = errors.Join(err1, err2)
	if err == nil {
		err = cmd.Start()
	}
	m.cmd, m.input, m.died = cmd, in, make(chan struct{})
	f.mu.Unlock()
	if err != nil {
		return err
	}
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var s span
			if json.Unmarshal(lines.Bytes(), &s) == nil {
				f.links.add(m.number, s)
			}
		}
		_ = cmd.Wait()
		close(m.died)
	}()
	for {
		if r, err := http.Get("http://" + m.addr + "/ready"); err == nil {
			_ = r.Body.Close()
			return nil
		}
		select {
		case <-m.died:
			return fmt.Errorf("process %d has ended: %v", m.number, cmd.ProcessState)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// keepAlive starts the processes again that have died. It ends with ctx.
func (f *fleet) keepAlive(ctx context.Context) {
	for _, m := range f.members {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-m.died:
				}
				if ctx.Err() == nil {
					_ = f.start(m) // one that dies at once is started again
				}
			}
		}()
	}
}

// set tells the processes the scenario. One that is down learns of it when it starts.
func (f *fleet) set(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scenario = name
	for _, m := range f.members {
		if r, err := http.PostForm("http://"+m.addr+"/scenario", url.Values{"name": {name}}); err == nil {
			_ = r.Body.Close()
		}
	}
	return nil
}

func (f *fleet) stop() {
	f.mu.Lock()
	f.stopping = true
	members := f.members
	f.mu.Unlock()
	for _, m := range members {
		if m.input == nil {
			continue
		}
		_ = m.input.Close()
		select {
		case <-m.died:
		case <-time.After(5 * time.Second):
			_ = m.cmd.Process.Kill()
		}
	}
}

// A span is a fetch or a wait, as a child tells of it.
type span struct {
	Name, Trace, ID string
	Links           []string // IDs of the spans that it links to
	Took            time.Duration
}

// links prints the waits for fetches of the other process, one a second at most.
type links struct {
	mu      sync.Mutex
	to      io.Writer
	fetches map[string]fetched
	waits   map[string]fetched // for a fetch that has not been heard of: the wait
	printed time.Time
}

type fetched struct {
	process int
	span
}

func newLinks(to io.Writer) *links {
	return &links{to: to, fetches: map[string]fetched{}, waits: map[string]fetched{}}
}

func (l *links) add(process int, s span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fetches)+len(l.waits) > 10_000 {
		clear(l.fetches)
		clear(l.waits)
	}
	if bytes.HasPrefix([]byte(s.Name), []byte("fetch")) {
		l.fetches[s.ID] = fetched{process, s}
		if w, ok := l.waits[s.ID]; ok {
			delete(l.waits, s.ID)
			l.print(w, l.fetches[s.ID])
		}
		return
	}
	for _, id := range s.Links {
		if f, ok := l.fetches[id]; ok {
			l.print(fetched{process, s}, f)
		} else {
			l.waits[id] = fetched{process, s}
		}
	}
}

func (l *links) print(w, f fetched) {
	if w.process == f.process || time.Since(l.printed) < time.Second {
		return
	}
	l.printed = time.Now()
	fmt.Fprintf(l.to, "trace %s: %q in process %d waited %v and links to span %s, %q in process %d, which took %v (trace %s)\n",
		w.Trace, w.Name, w.process, w.Took.Round(time.Millisecond), f.ID, f.Name, f.process, f.Took.Round(time.Millisecond), f.Trace)
}
