// Package lockchaos runs locks in real processes against real Redis servers under faults, and
// checks rules L1 to L3 of package lock: no two holders at a time, fences that rise, and no
// lock that stays held.
//
// Faults: a process is killed or frozen (SIGSTOP), for up to three TTLs; a server is paused;
// the clients of a server are disconnected; in a quorum, a server comes back without its
// data. A failover of a master is left out, as a lock on a single master does not outlive it
// (docs/guide/lock.md). A time of holding is as the process itself saw it: the context
// was good at its beginning and at its end. Fences are for a stall between that look and a
// write.
package lockchaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

// The kinds of Redis.
const (
	Standalone = "standalone"
	Sentinel   = "sentinel"
	Cluster    = "cluster"
	Quorum     = "quorum" // three independent servers
)

// Options configure [Run].
type Options struct {
	For      time.Duration
	Kind     string
	Seed     uint64
	Procs    int
	Progress io.Writer
}

// A Result is the findings of a run.
type Result struct {
	Kind      string         `json:"redis"`
	Seconds   float64        `json:"seconds"`
	Faults    map[string]int `json:"faults"`
	Holds     int            `json:"holds"`
	Lost      int            `json:"lost"`
	Overlaps  int            `json:"overlaps"`
	Fences    int            `json:"fences_out_of_order"`
	Stuck     int            `json:"stuck"`
	Leaks     int            `json:"leaks"`
	WaitP50MS float64        `json:"wait_p50_ms"`
	Problems  []string       `json:"problems,omitempty"`
}

// OK reports whether all is zero that must be.
func (r *Result) OK() bool {
	return r.Overlaps == 0 && r.Fences == 0 && r.Stuck == 0 && r.Leaks == 0 && len(r.Problems) == 0 && r.Holds > 0
}

// WriteJSON writes one object.
func (r *Result) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// WriteText writes the figures.
func (r *Result) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s Redis, %.0f s, faults %v\nholds %d, lost %d, overlaps %d, fences out of order %d, stuck %d, leaks %d, median wait %.1f ms\n%s\n",
		r.Kind, r.Seconds, r.Faults, r.Holds, r.Lost, r.Overlaps, r.Fences, r.Stuck, r.Leaks, r.WaitP50MS, strings.Join(r.Problems, "\n"))
	return err
}

// servers are where the locks lie.
type servers struct {
	all   []*redistest.Server // that take locks
	order order
	stop  func() error
}

func start(ctx context.Context, kind string) (*servers, error) {
	s := &servers{order: order{Kind: kind, Namespace: "chaos"}}
	switch kind {
	case Sentinel:
		st, err := redistest.StartSentinel(ctx, redistest.SentinelConfig{})
		if err != nil {
			return nil, err
		}
		s.stop, s.order.Addrs = st.Stop, append([]string{st.Options().MasterName}, st.Addrs()...)
		master, err := st.Master(ctx)
		s.all = []*redistest.Server{master}
		return s, err
	case Cluster:
		c, err := redistest.StartCluster(ctx, redistest.ClusterConfig{})
		if err != nil {
			return nil, err
		}
		s.stop, s.order.Addrs, s.all = c.Stop, c.Addrs(), c.Masters()
		return s, nil
	case Standalone, Quorum:
		n := 1
		if kind == Quorum {
			n = 3
		}
		for range n {
			server, err := redistest.StartStandalone(ctx, redistest.StandaloneConfig{})
			if err != nil {
				return nil, err
			}
			s.all, s.order.Addrs = append(s.all, server), append(s.order.Addrs, server.Addr())
		}
		s.stop = func() (err error) {
			for _, server := range s.all {
				err = errors.Join(err, server.Stop())
			}
			return err
		}
		return s, nil
	}
	return nil, fmt.Errorf("lockchaos: there is no kind %q: use standalone, sentinel, cluster or quorum", kind)
}

type run struct {
	opts    Options
	servers *servers
	random  *rand.Rand
	res     Result

	mu    sync.Mutex
	procs []*spawn.Process
	spans []told
}

// Run runs locks under faults.
func Run(ctx context.Context, opts Options) (*Result, error) {
	s, err := start(ctx, opts.Kind)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.stop() }()
	r := &run{opts: opts, servers: s, random: rand.New(rand.NewPCG(opts.Seed, 1)), res: Result{Kind: opts.Kind, Faults: map[string]int{}}}
	defer func() {
		for _, p := range r.procs {
			_ = p.Kill()
		}
	}()
	for range opts.Procs {
		if err := r.start(); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	for time.Since(began) < opts.For && ctx.Err() == nil {
		time.Sleep(50*time.Millisecond + time.Duration(r.random.Int64N(int64(800*time.Millisecond))))
		if err := r.fault(ctx); err != nil {
			return nil, err
		}
	}
	r.res.Seconds = time.Since(began).Seconds()
	fmt.Fprintf(opts.Progress, "closing %d processes\n", len(r.procs))
	if err := r.close(ctx); err != nil {
		return nil, err
	}
	r.check()
	return &r.res, nil
}

func (r *run) start() error {
	p, err := spawn.Start(childName, spawn.Lines(func(m *told) {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case m.Err != "":
			r.res.Problems = append(r.res.Problems, m.Err)
		case m.Closed:
			r.res.Leaks += m.Leaked
		default:
			r.spans = append(r.spans, *m)
		}
	}))
	if err != nil {
		return err
	}
	p.Tell(r.servers.order)
	r.procs = append(r.procs, p)
	return nil
}

// fault breaks something, and mends it.
func (r *run) fault(ctx context.Context) error {
	server := r.servers.all[r.random.IntN(len(r.servers.all))]
	i := r.random.IntN(len(r.procs))
	p := r.procs[i]
	names := []string{"kill", "freeze", "freeze", "pause", "disconnect"}
	if r.opts.Kind == Quorum {
		names = append(names, "forget")
	}
	name := names[r.random.IntN(len(names))]
	r.res.Faults[name]++
	part := time.Duration(r.random.Float64() * float64(time.Second))
	switch name {
	case "kill":
		if err := p.Complaint(); err != nil {
			return err
		}
		if err := p.Kill(); err != nil {
			return err
		}
		r.procs = slices.Delete(r.procs, i, i+1)
		return r.start()
	case "freeze":
		if err := p.Stop(); err != nil {
			return err
		}
		time.Sleep(3 * part)
		return p.Cont()
	case "pause": // too short for a failover
		if r.opts.Kind == Sentinel || r.opts.Kind == Cluster {
			part /= 4
		}
		if err := server.Pause(); err != nil {
			return err
		}
		time.Sleep(part)
		return server.Resume()
	case "forget":
		return server.RestartEmpty(ctx)
	}
	c := redis.NewClient(server.Options())
	defer func() { _ = c.Close() }()
	for _, kind := range []string{"normal", "pubsub"} {
		if err := c.ClientKillByFilter(ctx, "TYPE", kind, "SKIPME", "yes").Err(); err != nil && r.opts.Kind != Cluster {
			return err
		}
	}
	return nil
}

// close ends all processes in order, and looks at the remaining keys in Redis.
func (r *run) close(ctx context.Context) error {
	time.Sleep(3 * TTL) // all is well again
	r.mu.Lock()
	before := map[string]int{}
	for _, s := range r.spans {
		before[s.Name]++
	}
	r.mu.Unlock()
	time.Sleep(3 * TTL)
	r.mu.Lock()
	after := map[string]int{}
	for _, s := range r.spans {
		after[s.Name]++
	}
	r.mu.Unlock()
	for i := range Names {
		if name := fmt.Sprint("name", i); before[name] == after[name] {
			r.res.Stuck++
			r.res.Problems = append(r.res.Problems, name+" is not granted any more")
		}
	}
	for _, p := range r.procs {
		p.Tell(order{Close: true})
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, p := range r.procs {
		if err := p.Wait(ctx); err != nil {
			r.res.Stuck++
			r.res.Problems = append(r.res.Problems, err.Error())
		}
	}
	time.Sleep(2 * TTL) // an acquire that was not answered may have been carried out last
	for _, server := range r.servers.all {
		c := redis.NewClient(server.Options())
		left, err := c.Keys(ctx, "chaos:*:lock*").Result()
		_ = c.Close()
		if err != nil {
			return err
		}
		for _, key := range left {
			r.res.Leaks++
			r.res.Problems = append(r.res.Problems, key+" is left")
		}
	}
	return nil
}

// check looks for times of holding that overlap, and for fences that do not rise.
func (r *run) check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	byName := map[string][]told{}
	var waits []time.Duration
	for _, s := range r.spans {
		byName[s.Name] = append(byName[s.Name], s)
		waits = append(waits, s.Waited)
		if r.res.Holds++; s.Lost {
			r.res.Lost++
		}
	}
	if len(waits) > 0 {
		slices.Sort(waits)
		r.res.WaitP50MS = float64(waits[len(waits)/2].Microseconds()) / 1000
	}
	for name, all := range byName {
		slices.SortFunc(all, func(a, b told) int { return a.From.Compare(b.From) })
		for i := 1; i < len(all); i++ {
			a, b := &all[i-1], &all[i]
			if b.From.Before(a.To) {
				r.res.Overlaps++
				r.res.Problems = append(r.res.Problems, fmt.Sprintf("%s: fence %d held until %v, fence %d from %v", name, a.Fence, a.To, b.Fence, b.From))
			}
			if b.Fence <= a.Fence {
				r.res.Fences++
				r.res.Problems = append(r.res.Problems, fmt.Sprintf("%s: fence %d after %d", name, b.Fence, a.Fence))
			}
		}
	}
}
