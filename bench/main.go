// Command bench measures this library and others of its kind, side by side in
// one run: `make bench-peers`, or
//
//	go run . -quick                 # about three minutes
//	go run . -run stampede,killed   # some workloads
//	go run . -list
//
// It starts its own redis-server, which must be installed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/bench/fleet"
	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/bench/report"
	"github.com/stampedeguard/stampede/bench/work"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func main() {
	if fleet.IsChild() {
		fleet.RunChild()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	run, systems       string
	rounds             int
	quick, list, merge bool
	json, md, svg      string
	command            string
}

const growthName = "growth"

func run(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.run, "run", "all", "workloads, by name and with commas; \"none\" only draws -json again")
	f.StringVar(&o.systems, "systems", "all", "systems, by name and with semicolons")
	f.IntVar(&o.rounds, "rounds", 5, "rounds of each workload")
	f.BoolVar(&o.quick, "quick", false, "one round, shorter, fewer cases")
	f.BoolVar(&o.list, "list", false, "list workloads and systems")
	f.BoolVar(&o.merge, "merge", false, "keep the other workloads that the -json file has")
	f.StringVar(&o.json, "json", "", "write the figures to this file")
	f.StringVar(&o.md, "md", "", "write the tables to this file instead of standard output")
	f.StringVar(&o.svg, "svg", "", "write the charts to this file")
	f.StringVar(&o.command, "as", "cd bench && go run .", "how to run it, as the report says it")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.quick {
		o.rounds = 1
	}
	if o.list {
		return list()
	}
	r := &report.Report{}
	if o.merge || o.run == "none" {
		if err := r.ReadFile(o.json); err != nil {
			return err
		}
	}
	if o.run != "none" {
		if err := measure(ctx, o, r); err != nil {
			return err
		}
	}
	refresh(r)
	return write(o, r)
}

// refresh takes the words and the judgement of each workload from the code, so
// that figures measured before are drawn as they would be now.
func refresh(r *report.Report) {
	r.Missing = peer.Missing
	for i, old := range r.Systems {
		if s, err := peer.Named(old.Name); err == nil {
			r.Systems[i] = describe(s)
			r.Systems[i].Version = old.Version // of when it was measured
		}
	}
	for _, w := range work.All() {
		for _, spec := range r.Workloads {
			if spec.Name == w.Spec.Name {
				spec.Title, spec.About, spec.Metrics = w.Spec.Title, w.Spec.About, w.Spec.Metrics
				judge(w, spec)
			}
		}
	}
}

// judge marks the peers that did the work.
func judge(w *work.Workload, spec *report.Workload) {
	for _, c := range spec.Cases {
		for _, r := range c.Results {
			r.Rival, r.WhyNot = false, ""
			s, err := peer.Named(r.System)
			if err != nil || s.Ours {
				continue
			}
			if rival, why := w.Rival(s, r); rival {
				r.Rival = true
			} else {
				r.WhyNot = why
			}
		}
	}
}

func list() error {
	for _, w := range work.All() {
		fmt.Printf("%-10s %s\n", w.Spec.Name, w.Spec.Title)
	}
	fmt.Printf("%-10s cost of a stampede for each process\n\n", growthName)
	for _, s := range peer.All() {
		fmt.Printf("%-24s %s\n", s.Name, s.Note)
	}
	return nil
}

// selected returns the chosen workloads and systems.
func selected(o options) (works []*work.Workload, systems []peer.System, growth bool, err error) {
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(o.run, ",") {
		wanted[name] = true
	}
	all := wanted["all"]
	growth = all || wanted[growthName]
	for _, w := range work.All() {
		if all || wanted[w.Spec.Name] {
			works = append(works, w)
		}
		delete(wanted, w.Spec.Name)
	}
	delete(wanted, "all")
	delete(wanted, growthName)
	for name := range wanted {
		return nil, nil, false, fmt.Errorf("no workload is called %q", name)
	}
	if o.systems == "all" {
		return works, peer.All(), growth, nil
	}
	for name := range strings.SplitSeq(o.systems, ";") {
		s, err := peer.Named(strings.TrimSpace(name))
		if err != nil {
			return nil, nil, false, err
		}
		systems = append(systems, s)
	}
	return works, systems, growth, nil
}

func measure(ctx context.Context, o options, r *report.Report) error {
	works, systems, growth, err := selected(o)
	if err != nil {
		return err
	}
	began := time.Now()
	server, err := redistest.StartStandalone(ctx, redistest.StandaloneConfig{})
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }()
	b := &work.Bench{Server: server, Client: server.Client(), Quick: o.quick}
	env, err := environment(ctx, b.Client)
	if err != nil {
		return err
	}
	env.Command, env.Rounds, env.Quick = o.command, o.rounds, o.quick
	specs := make([]*report.Workload, len(works))
	for i, w := range works {
		spec := w.Spec
		specs[i] = &spec
	}
	for round := range o.rounds {
		for i, w := range works {
			if w.Rounds > 0 && round >= w.Rounds {
				continue
			}
			for _, k := range rand.Perm(len(systems)) {
				if s := systems[k]; w.Takes(s) {
					if err := turn(ctx, b, w, s, specs[i], round); err != nil {
						return err
					}
				}
			}
		}
	}
	if growth {
		fmt.Fprintln(os.Stderr, growthName)
		if r.Growth, err = work.Growth(ctx, b, min(o.rounds, 3)); err != nil {
			return err
		}
	}
	env.Took = time.Since(began)
	if o.merge && r.Env.Date != "" {
		names := make([]string, 0, len(specs)+1)
		for _, spec := range specs {
			names = append(names, spec.Name)
		}
		if growth {
			names = append(names, growthName)
		}
		r.Env.Remeasured(names, env)
	} else {
		r.Env = env
	}
	var described []report.System
	for _, s := range systems {
		described = append(described, describe(s))
	}
	r.Merge(specs, described)
	return nil
}

func turn(ctx context.Context, b *work.Bench, w *work.Workload, s peer.System, spec *report.Workload, round int) error {
	if err := b.Client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, w.Limit, fmt.Errorf("hangs: not done within %v", w.Limit))
	defer cancel()
	from, last := time.Now(), ""
	err := w.Run(bounded, b, s, func(kase, metric string, value float64) {
		last = kase
		spec.Case(kase).Result(s.Name).Add(metric, value)
	})
	fmt.Fprintf(os.Stderr, "%-10s %-24s round %d  %6.1f s\n", w.Spec.Name, s.Name, round+1, time.Since(from).Seconds())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "  failed: %v\n", err)
		res := spec.Case(last).Result(s.Name)
		res.Failed = append(res.Failed, err.Error())
	}
	return nil
}

func describe(s peer.System) report.System {
	return report.System{
		Name: s.Name, Version: s.Version(), Link: s.Link, Note: s.Note,
		Ours: s.Ours, Limit: s.Limit, Near: s.Near, Fleet: s.Fleet,
	}
}

func write(o options, r *report.Report) error {
	if o.json != "" {
		if err := r.WriteFile(o.json); err != nil {
			return err
		}
	}
	if o.svg != "" {
		if err := toFile(o.svg, r.SVG); err != nil {
			return err
		}
	}
	if o.md != "" {
		return toFile(o.md, r.Markdown)
	}
	return r.Markdown(os.Stdout)
}
