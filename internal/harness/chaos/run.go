package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// Options configure [Run].
type Options struct {
	Topology     string        // Standalone, Sentinel or Cluster
	For          time.Duration // how long faults begin; the last one is brought to its end
	Seed         uint64
	Procs        int           // at least 2
	Rate         float64       // callers in a second, in each process
	RedisTimeout time.Duration // of the stores; 0: their default
	Calm         time.Duration // at the start; 0: a tenth of For, at least 3 s
	Faults       []string      // names; none: all of the topology
	Progress     io.Writer
	Verbose      bool // progress tells of the stores' events too
}

// Validate returns all that is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("chaos: "+format, args...)) }
	names, _ := Faults(o.Topology)
	if !slices.Contains([]string{Standalone, Sentinel, Cluster}, o.Topology) {
		bad("there is no Redis %q: use standalone, sentinel or cluster", o.Topology)
	}
	for _, f := range o.Faults {
		if !slices.Contains(names, f) {
			bad("there is no fault %q on a %s Redis: use %s", f, o.Topology, strings.Join(names, ","))
		}
	}
	if o.Procs < 2 {
		bad("%d processes are no fleet, use at least 2", o.Procs)
	}
	if o.Rate < 1 || o.Rate > 10_000 {
		bad("the rate is %v, must be from 1 to 10000", o.Rate)
	}
	if o.For < time.Second {
		bad("the run lasts %v, must be at least 1s", o.For)
	}
	if o.RedisTimeout < 0 || o.Calm < 0 {
		bad("negative durations are not allowed")
	}
	return errors.Join(errs...)
}

// A Result is a run and its findings.
type Result struct {
	Topology    string  `json:"redis"`
	Seed        uint64  `json:"seed"`
	Seconds     float64 `json:"seconds"` // under load
	Procs       int     `json:"procs"`
	Started     int     `json:"processes_started"`
	Rate        float64 `json:"rate"`
	Interrupted bool    `json:"interrupted"`
	ClockStepMS float64 `json:"clock_step_ms"` // of the wall clock, against the monotonic one
	*Verdict
	Odd map[string]int `json:"other_errors"` // texts of errors of kind "other"
}

// A link is one process's line to one server.
type link struct {
	*redistest.Proxy
	addr string // of the server
}

// A place is taken by one process after the other.
type place struct {
	links []*link
	proc  *process
}

type runner struct {
	Options
	life    context.Context // ends when the run is interrupted
	topo    topology
	rec     *recorder
	places  []*place
	started int
	begin   time.Time

	talking sync.Mutex // guards Progress
}

// Run runs a fleet under chaos until its time is over or ctx ends, and judges
// the history until then. An error means that the run itself failed.
func Run(ctx context.Context, opts Options) (*Result, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.Calm == 0 {
		opts.Calm = max(3*time.Second, opts.For/10)
	}
	if opts.RedisTimeout == 0 {
		opts.RedisTimeout = 250 * time.Millisecond
	}
	r := &runner{Options: opts, life: ctx, begin: time.Now()}
	r.rec = newRecorder(r.hear)
	err := r.run()
	ended, interrupted := time.Now(), ctx.Err() != nil
	if stopErr := r.stop(); err == nil {
		err = stopErr
	}
	// Not before stop: then all that the processes wrote has been read.
	res := r.result(ended)
	res.Interrupted = interrupted
	if interrupted {
		err = nil
	}
	return res, err
}

func (r *runner) run() error {
	r.progress("starting Redis (%s) and %d processes, seed %d", r.Topology, r.Procs, r.Seed)
	var err error
	if r.topo, err = startTopology(r.life, r.Topology); err != nil {
		r.topo = nil
		return err
	}
	for range r.Procs {
		if err := r.addPlace(); err != nil {
			return err
		}
	}
	watching, unwatch := context.WithCancel(r.life)
	var watch sync.WaitGroup
	watch.Go(func() { r.watchRoles(watching) })
	defer watch.Wait()
	defer unwatch()
	r.begin = time.Now()
	n := &nemesis{runner: r, rng: rand.New(rand.NewPCG(r.Seed, 0))}
	ctx, cancel := context.WithTimeout(r.life, r.For)
	defer cancel()
	r.progress("calm for %v", r.Calm)
	wait(ctx, r.Calm)
	r.rec.calmUntil(now())
	if err := n.run(ctx, r.selected()); err != nil {
		return err
	}
	if r.life.Err() != nil {
		return nil
	}
	r.progress("no more load; the processes come to rest")
	return r.rest()
}

// watchRoles notes when a replica becomes a master, or a master a replica.
func (r *runner) watchRoles(ctx context.Context) {
	servers := r.topo.servers()
	if len(servers) == 1 {
		return
	}
	roles := make([]string, len(servers))
	for wait(ctx, 100*time.Millisecond) {
		for i, s := range servers {
			asking, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			state, err := replication(asking, s)
			cancel()
			if err != nil || state["role"] == roles[i] {
				continue
			}
			if roles[i] != "" {
				r.rec.failover()
				if r.Verbose {
					r.progress("    %s was a %s and is a %s", s.Addr(), roles[i], state["role"])
				}
			}
			roles[i] = state["role"]
		}
	}
}

func (r *runner) selected() []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return !f.fits(r.Topology) || len(r.Faults) > 0 && !slices.Contains(r.Faults, f.name)
	})
}

// addPlace starts a process behind proxies of its own.
func (r *runner) addPlace() error {
	p := &place{}
	r.places = append(r.places, p)
	_, all := r.topo.addrs()
	for _, addr := range all {
		proxy, err := redistest.StartProxy(addr)
		if err != nil {
			return err
		}
		p.links = append(p.links, &link{proxy, addr})
	}
	return r.populate(r.life, p)
}

// populate puts a new process under load in a place.
func (r *runner) populate(ctx context.Context, p *place) error {
	r.started++
	proc, err := startProcess(r.started, r.rec)
	if err != nil {
		return err
	}
	p.proc = proc
	seeds, _ := r.topo.addrs()
	cfg := &config{
		Proc: p.proc.number, Topology: r.Topology, Addrs: seeds, Proxies: map[string]string{},
		Master: redistest.MasterName, Seed: r.Seed, Rate: r.Rate, RedisTimeout: r.RedisTimeout,
	}
	for _, l := range p.links {
		cfg.Proxies[l.addr] = l.Addr()
	}
	if err := p.proc.order(ctx, order{Op: "open", Config: cfg}); err != nil {
		return err
	}
	return p.proc.order(ctx, order{Op: "load"})
}

// rest ends the load, inspects the idle processes and shuts them
// down in order.
func (r *runner) rest() error {
	ctx, cancel := context.WithTimeout(r.life, recoveryTimeout)
	defer cancel()
	errs := make(chan error, len(r.places))
	for _, p := range r.places {
		go func() { // ends with ctx
			errs <- p.proc.order(ctx, order{Op: "idle"})
		}()
	}
	var all []error
	for range r.places {
		all = append(all, <-errs)
	}
	for _, p := range r.places {
		all = append(all, p.proc.close(ctx))
		if said := p.proc.Stderr(); said != "" {
			r.progress("process %d said: %s", p.proc.number, said)
		}
	}
	return errors.Join(all...)
}

// stop ends all that still runs.
func (r *runner) stop() error {
	var errs []error
	for _, p := range r.places {
		if p.proc != nil {
			errs = append(errs, p.proc.Kill())
		}
		for _, l := range p.links {
			errs = append(errs, l.Stop())
		}
	}
	if r.topo != nil {
		errs = append(errs, r.topo.stop())
	}
	return errors.Join(errs...)
}

func (r *runner) result(ended time.Time) *Result {
	h := r.rec.finish()
	h.Terms = terms(r.RedisTimeout)
	// Both clocks are read at once, so a difference in the elapsed times is a step
	// of the wall clock.
	elapsed := ended.Sub(r.begin)
	step := ended.Round(0).Sub(r.begin.Round(0)) - elapsed
	return &Result{
		Topology: r.Topology, Seed: r.Seed, Seconds: elapsed.Seconds(), Procs: r.Procs, Started: r.started,
		Rate: r.Rate, ClockStepMS: float64(step) / 1e6, Verdict: Check(h), Odd: maps.Clone(r.rec.odd),
	}
}

// hear tells of breakers and subscriptions, if that is asked for.
func (r *runner) hear(e Event) {
	if r.Verbose {
		r.progress("    process %d: %s %s %s", e.Proc, e.Kind, e.Node, e.Err)
	}
}

func (r *runner) progress(format string, args ...any) {
	if r.Progress != nil {
		r.talking.Lock()
		defer r.talking.Unlock()
		fmt.Fprintf(r.Progress, "%6.1f s  %s\n", time.Since(r.begin).Seconds(), fmt.Sprintf(format, args...))
	}
}
