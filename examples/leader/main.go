// Command leader elects a leader among three processes, over independent Redis servers, and
// kills the leader, then servers:
//
//	go run ./examples/leader [-masters 5] [-json]
//
// It starts its own redis-servers, which must be installed: 1, 3 or 5. The exit status is 1
// if there were ever two leaders, none while a majority of the servers was up, or one
// without a majority.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
	"github.com/stampedeguard/stampede/lock"
)

const (
	ttl   = time.Second
	procs = 3
)

// A message says that a process leads, or does not any more.
type message struct {
	Leads bool
	At    time.Time
}

// candidate is a child: it leads whenever it can.
func candidate(parent *spawn.Parent) error {
	var addrs []string
	if err := parent.Hear(&addrs); err != nil {
		return err
	}
	var backends []lock.Backend
	for _, addr := range addrs {
		client := redis.NewClient(&redis.Options{Addr: addr, DialTimeout: ttl / 4})
		store, err := cache.NewRedis(client, cache.Options{Namespace: "example"})
		if err != nil {
			return err
		}
		backends = append(backends, lock.On(store))
	}
	locker, err := lock.New(lock.Options{TTL: ttl, Retry: 100 * time.Millisecond}, backends...)
	if err != nil {
		return err
	}
	return locker.Lead(context.Background(), "leader", func(ctx context.Context, _ *lock.Lock) error {
		parent.Tell(message{true, time.Now()})
		<-ctx.Done()
		parent.Tell(message{false, time.Now()})
		return nil
	})
}

func main() {
	spawn.Main("candidate", candidate)
	masters := flag.Int("masters", 3, "Redis servers: an odd number")
	asJSON := flag.Bool("json", false, "print one JSON object")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	phases, err := run(*masters)
	if err != nil {
		log.Fatal("leader: ", err)
	}
	if *asJSON {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"phases": phases})
	}
	ok := true
	for _, p := range phases {
		if !*asJSON {
			fmt.Printf("%-28s at most %d leaders, elected after %d ms\n", p.Name, p.MaxLeaders, p.ElectedMS)
		}
		ok = ok && p.MaxLeaders == p.want
	}
	if !ok {
		os.Exit(1)
	}
}

// A phase is a time in which nothing was killed. ElectedMS is how long it took until there was
// a leader; -1: there was none.
type phase struct {
	Name       string `json:"name"`
	MaxLeaders int    `json:"max_leaders"`
	ElectedMS  int64  `json:"elected_ms"`

	want  int
	began time.Time
}

// A term is a time for which a process led.
type term struct {
	p        *spawn.Process
	from, to time.Time
}

type election struct {
	servers []*redistest.Server

	mu      sync.Mutex
	terms   []*term
	running []*spawn.Process
	changed chan struct{}
}

func run(masters int) ([]*phase, error) {
	e := &election{changed: make(chan struct{}, 1)}
	defer e.stop()
	for range masters {
		server, err := redistest.StartStandalone(context.Background(), redistest.StandaloneConfig{})
		if err != nil {
			return nil, err
		}
		e.servers = append(e.servers, server)
	}
	for range procs {
		if err := e.start(); err != nil {
			return nil, err
		}
	}
	minority := (masters - 1) / 2
	steps := []struct {
		name string
		do   func() error
		want int
	}{
		{"start", func() error { return nil }, 1},
		{"leader killed", e.killLeader, 1},
		{fmt.Sprintf("%d of %d servers down", minority, masters), func() error { return e.killServers(0, minority) }, 1},
		{"leader killed again", e.killLeader, 1},
		{fmt.Sprintf("%d of %d servers down", minority+1, masters), func() error { return e.killServers(minority, minority+1) }, 0},
		{"all servers back, empty", func() error { return e.restart(minority + 1) }, 1},
	}
	if minority == 0 {
		steps = slices.Delete(steps, 2, 4)
	}
	var phases []*phase
	for _, s := range steps {
		p := &phase{Name: s.name, want: s.want, began: time.Now()}
		if err := s.do(); err != nil {
			return nil, err
		}
		phases = append(phases, p)
		if err := e.observe(p); err != nil {
			return nil, err
		}
		log.Printf("%s: at most %d leaders, elected after %d ms", p.Name, p.MaxLeaders, p.ElectedMS)
	}
	return phases, nil
}

// observe waits for a leader, or for the end of the last one, and then for two TTLs more.
func (e *election) observe(p *phase) error {
	deadline := time.After(20 * time.Second)
	for e.leaders(time.Now()) != p.want {
		select {
		case <-e.changed:
		case <-deadline:
			return fmt.Errorf("%s: there are %d leaders after 20 s, want %d", p.Name, e.leaders(time.Now()), p.want)
		}
	}
	p.ElectedMS = time.Since(p.began).Milliseconds()
	if p.want == 0 {
		p.began, p.ElectedMS = time.Now(), -1
	}
	time.Sleep(2 * ttl)
	e.mu.Lock()
	var starts []time.Time
	for _, t := range e.terms {
		if t.to.After(p.began) {
			starts = append(starts, t.from)
		}
	}
	e.mu.Unlock()
	for _, at := range starts {
		p.MaxLeaders = max(p.MaxLeaders, e.leaders(at))
	}
	return nil
}

// leaders counts those that led at a time.
func (e *election) leaders(at time.Time) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.terms {
		if !t.from.After(at) && at.Before(t.to) {
			n++
		}
	}
	return n
}

func (e *election) start() error {
	started := make(chan *spawn.Process, 1)
	var self *spawn.Process
	p, err := spawn.Start("candidate", spawn.Lines(func(m *message) {
		if self == nil {
			self = <-started
		}
		e.take(self, m)
	}))
	if err != nil {
		return err
	}
	started <- p
	var addrs []string
	for _, s := range e.servers {
		addrs = append(addrs, s.Addr())
	}
	p.Tell(addrs)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = append(e.running, p)
	return nil
}

func (e *election) take(p *spawn.Process, m *message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m.Leads {
		e.terms = append(e.terms, &term{p, m.At, time.Now().Add(time.Hour)})
	} else {
		e.endLocked(p, m.At)
	}
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

func (e *election) endLocked(p *spawn.Process, at time.Time) {
	for _, t := range e.terms {
		if t.p == p && at.Before(t.to) {
			t.to = at
		}
	}
}

// killLeader kills the leader's process and starts another.
func (e *election) killLeader() error {
	e.mu.Lock()
	last := e.terms[len(e.terms)-1].p
	e.mu.Unlock()
	if last.Died() != nil {
		return errors.New("the last leader is dead already")
	}
	if err := last.Kill(); err != nil {
		return err
	}
	e.mu.Lock()
	e.endLocked(last, time.Now())
	e.mu.Unlock()
	return e.start()
}

func (e *election) killServers(from, to int) error {
	for _, s := range e.servers[from:to] {
		if err := s.Kill(); err != nil {
			return err
		}
	}
	return nil
}

func (e *election) restart(n int) error {
	for _, s := range e.servers[:n] {
		if err := s.RestartEmpty(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

func (e *election) stop() {
	for _, p := range e.running {
		_ = p.Kill()
	}
	for _, s := range e.servers {
		_ = s.Stop()
	}
}
