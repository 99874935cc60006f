// Command locks runs the locks on Redis that articles recommend, as they print them, in real
// processes beside package lock, and shows the behaviour of each under faults:
//
//	go run ./examples/locks [-runs 3] [-json]
//
// It starts its own redis-servers, which must be installed. Locks have a TTL of 600 ms. Under
// "lost master" the server comes back without its data; package lock runs on a quorum of
// three servers there, and on one server elsewhere. The exit status is 1 if package lock let
// two processes in at a time, or none for longer than 4 TTLs.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

const (
	ttl = 600 * time.Millisecond
	// deadlock is how long nothing may go on before it counts as one.
	deadlock = 4 * ttl
)

// A fault is how one run goes. act is called when the first child has begun to work, or has
// stopped.
type fault struct {
	name   string
	orders func(i int) (order, bool) // of the ith child
	act    func(r *run) error
}

var faults = []fault{
	{"contention", func(i int) (order, bool) { return order{Rounds: 20, Hold: 2 * time.Millisecond}, i < 4 }, nil},
	{"killed holder", stopped, func(r *run) error { return r.kill(0) }},
	{"slow holder", slow(order{Hold: 5 * ttl / 2}), nil},
	{"clock 15 s off", func(i int) (order, bool) {
		if i == 1 {
			return order{Rounds: 1, Hold: ttl / 4, Clock: 15 * time.Second, Wait: ttl / 4}, true
		}
		return order{Rounds: 1, Hold: 3 * ttl / 4}, i < 2
	}, nil},
	// The first holder works for half its TTL, is then held up, and unlocks while the second
	// one works.
	{"late unlock", func(i int) (order, bool) {
		switch i {
		case 0:
			return order{Rounds: 1, Hold: 3 * ttl / 2, Believes: ttl / 2}, true
		case 1:
			return order{Rounds: 1, Hold: 3 * ttl / 4, Wait: ttl / 4}, true
		}
		return order{Rounds: 1, Hold: ttl / 4, Wait: ttl * 6 / 5}, i < 3
	}, nil},
	{"killed between commands", stopped, func(r *run) error { return r.kill(0) }},
	{"lost master", func(i int) (order, bool) {
		return order{Rounds: 1, Hold: ttl * 19 / 20}, i < 2
	}, func(r *run) error { return r.servers[0].RestartEmpty(context.Background()) }},
}

func stopped(i int) (order, bool) {
	if i == 0 {
		return order{Rounds: 1, Stop: true}, true
	}
	return order{Rounds: 1, Hold: time.Millisecond, Wait: ttl / 4}, i < 2
}

func slow(first order) func(i int) (order, bool) {
	first.Rounds = 1
	return func(i int) (order, bool) {
		if i == 0 {
			return first, true
		}
		return order{Rounds: 1, Hold: ttl / 2, Wait: ttl / 4}, i < 2
	}
}

// A result sums up some runs of one fault.
type result struct {
	Name         string  `json:"name"`
	Runs         int     `json:"runs"`
	Overlaps     int     `json:"overlaps"`
	Deadlocks    int     `json:"deadlocks"`
	LongestBlock int64   `json:"longest_block_ms"`
	Commands     float64 `json:"commands_per_lock"`
	HandOver     float64 `json:"handover_ms"`
}

type report struct {
	Name   string   `json:"name"`
	Lines  int      `json:"lines"`
	Faults []result `json:"faults"`
}

func main() {
	spawn.Main("contender", contend)
	runs := flag.Int("runs", 3, "runs of each fault")
	only := flag.String("technique", "", "run this technique only")
	asJSON := flag.Bool("json", false, "print one JSON object")
	flag.Parse()
	log.SetFlags(0)
	reports, err := all(*runs, *only)
	if err != nil {
		log.Fatal("locks: ", err)
	}
	if *asJSON {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"techniques": reports})
	} else {
		table(reports)
	}
	for _, r := range reports[len(reports)-1].Faults {
		if r.Overlaps > 0 || r.Deadlocks > 0 {
			os.Exit(1)
		}
	}
}

func table(reports []report) {
	fmt.Printf("%-30s %-24s %8s %9s %9s %9s %9s\n", "technique (lines)", "fault", "overlaps", "deadlocks", "block ms", "commands", "hand-over")
	for _, t := range reports {
		title := fmt.Sprintf("%s (%d)", t.Name, t.Lines)
		for _, f := range t.Faults {
			fmt.Printf("%-30s %-24s %8d %9d %9d %9.1f %6.1f ms\n", title, f.Name, f.Overlaps, f.Deadlocks, f.LongestBlock, f.Commands, f.HandOver)
			title = ""
		}
	}
}

func all(runs int, only string) ([]report, error) {
	var servers []*redistest.Server
	defer func() {
		for _, s := range servers {
			_ = s.Stop()
		}
	}()
	for range 3 {
		s, err := redistest.StartStandalone(context.Background(), redistest.StandaloneConfig{})
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	count := lines()
	var reports []report
	for _, t := range techniques {
		if only != "" && t.name != only {
			continue
		}
		rep := report{Name: t.name, Lines: count[funcOf(t.name)]}
		for i := range faults {
			res, err := repeat(&t, &faults[i], servers, runs)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", t.name, faults[i].name, err)
			}
			rep.Faults = append(rep.Faults, res)
		}
		reports = append(reports, rep)
		var shown []string
		for _, f := range rep.Faults {
			if f.Overlaps > 0 || f.Deadlocks > 0 {
				shown = append(shown, fmt.Sprintf("%s (overlaps %d, deadlocks %d)", f.Name, f.Overlaps, f.Deadlocks))
			}
		}
		log.Printf("%s: %s", t.name, strings.Join(shown, ", "))
		for _, known := range t.faults {
			if !slices.ContainsFunc(rep.Faults, func(f result) bool { return f.Name == known && f.Overlaps+f.Deadlocks > 0 }) {
				log.Printf("%s: its known fault under %q did not show in this run", t.name, known)
			}
		}
	}
	return reports, nil
}

// funcOf is the function of a technique.
func funcOf(technique string) string {
	return map[string]string{
		"GET then SET": "getThenSet", "SETNX without TTL": "setnx", "SETNX then PEXPIRE": "setnxThenPexpire", "MULTI SETNX PEXPIRE": "multi",
		"SETNX and GETSET with times": "getset", "SETEX and RENAMENX": "renamenx", "WATCH": "watch", "SET NX PX, blind DEL": "blindDel",
		"spinlock on a set": "sadd", "INCR and DECR": "incr", "Lua SETNX and PEXPIRE": "lua",
		"SET NX PX, compare and delete": "compareAndDelete", "attempt counter": "attemptCounter", "paired worker": "paired", "stampede": "stampede",
	}[technique]
}

func repeat(t *technique, f *fault, servers []*redistest.Server, runs int) (result, error) {
	res := result{Name: f.name, Runs: runs}
	var hands []time.Duration
	var commands, locks int64
	for range runs {
		r := &run{t: t, f: f, servers: servers[:1], changed: make(chan struct{}, 1)}
		if t.name == "stampede" && f.name == "lost master" {
			r.servers = servers
		}
		if err := r.run(); err != nil {
			return res, err
		}
		res.Overlaps += r.overlaps()
		res.LongestBlock = max(res.LongestBlock, r.block.Milliseconds())
		if r.block >= deadlock {
			res.Deadlocks++
		}
		hands = append(hands, r.handOvers()...)
		commands += r.commands
		locks += int64(len(r.spans))
	}
	if locks > 0 {
		res.Commands = float64(commands) / float64(locks)
	}
	if len(hands) > 0 {
		slices.SortFunc(hands, cmp.Compare)
		res.HandOver = float64(hands[len(hands)/2].Microseconds()) / 1000
	}
	return res, nil
}

// A run is one run of a fault.
type run struct {
	t       *technique
	f       *fault
	servers []*redistest.Server

	mu       sync.Mutex
	children []*spawn.Process
	spans    []message // times of work, of all children
	began    bool
	stopped  bool
	done     int
	err      error
	last     time.Time // when something last went on
	changed  chan struct{}

	block    time.Duration
	commands int64
}

func (r *run) run() error {
	ctx := context.Background()
	for _, s := range r.servers {
		c := s.Client()
		if err := c.FlushAll(ctx).Err(); err != nil {
			return err
		}
		_ = c.Close()
	}
	defer func() {
		for _, p := range r.children {
			_ = p.Kill()
		}
	}()
	n := 0
	for i := 0; ; i++ { // all processes are there before the first one begins
		if _, ok := r.f.orders(i); !ok {
			break
		}
		if err := r.start(); err != nil {
			return err
		}
	}
	for i := 0; ; i++ {
		o, ok := r.f.orders(i)
		if !ok {
			break
		}
		o.Technique, o.ID = r.t.name, fmt.Sprint(i)
		for _, s := range r.servers {
			o.Addrs = append(o.Addrs, s.Addr())
		}
		r.children[i].Tell(o)
		if !o.Stop {
			n++
		}
		if i == 0 && r.f.name != "contention" { // the first one has the lock, or has stopped on its way
			if err := r.await(func() bool { return r.began || r.stopped }); err != nil {
				return err
			}
			if o.Stop {
				if err := r.await(func() bool { return r.stopped }); err != nil {
					return err
				}
			}
			if r.f.act != nil {
				if err := r.f.act(r); err != nil {
					return err
				}
			}
		}
	}
	r.went()
	for r.finished() < n && r.blocked() < deadlock {
		select {
		case <-r.changed:
		case <-time.After(ttl / 8):
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *run) start() error {
	p, err := spawn.Start("contender", spawn.Lines(r.take))
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.children = append(r.children, p)
	return nil
}

func (r *run) kill(i int) error {
	r.mu.Lock()
	p := r.children[i]
	r.mu.Unlock()
	err := p.Kill()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began { // it held the lock until now
		now := time.Now()
		r.spans = append(r.spans, message{ID: fmt.Sprint(i), In: now, Out: now})
	}
	return err
}

func (r *run) take(m *message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wentLocked()
	switch {
	case m.Begins:
		r.began = true
	case m.Stopped:
		r.stopped = true
	case m.Done:
		r.done++
		r.commands += m.Sent
	case m.Err != "":
		r.err = fmt.Errorf("a child: %s", m.Err)
		r.done++
	default:
		r.spans = append(r.spans, *m)
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// went notes that something went on.
func (r *run) went() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wentLocked()
}

func (r *run) wentLocked() {
	if !r.last.IsZero() {
		r.block = max(r.block, time.Since(r.last))
	}
	r.last = time.Now()
}

func (r *run) blocked() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := time.Since(r.last)
	if d >= deadlock {
		r.block = max(r.block, d)
	}
	return d
}

func (r *run) finished() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

func (r *run) await(cond func() bool) error {
	deadline := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		ok, err := cond(), r.err
		r.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-r.changed:
		case <-deadline:
			return errors.New("the first child has not begun")
		}
	}
}

// overlaps counts the times of work that began while another one was under way.
func (r *run) overlaps() (n int) {
	slices.SortFunc(r.spans, func(a, b message) int { return a.In.Compare(b.In) })
	var busy time.Time
	for _, s := range r.spans {
		if s.In.Before(busy) {
			n++
		}
		if s.Out.After(busy) {
			busy = s.Out
		}
	}
	return n
}

// handOvers are the times from the end of one process's work, or its death, to the beginning
// of another one's.
func (r *run) handOvers() (all []time.Duration) {
	for i := 1; i < len(r.spans); i++ {
		if d := r.spans[i].In.Sub(r.spans[i-1].Out); d > 0 && r.spans[i].ID != r.spans[i-1].ID {
			all = append(all, d)
		}
	}
	return all
}
