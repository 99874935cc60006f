// Command metastable finds out from which loads a system of caches in front of an origin
// recovers by itself after a trigger. docs/metastability.md explains the experiment and its
// result.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "metastable:", err)
		os.Exit(1)
	}
}

// A config is the flags.
type config struct {
	Modes    []string `json:"modes"`
	Triggers []string `json:"triggers"`
	Loads    []int    `json:"loads_per_s"`

	Keys      int           `json:"keys"`
	Processes int           `json:"processes"`
	Workers   int           `json:"origin_workers"`
	Fetch     time.Duration `json:"fetch_ns"`
	Timeout   time.Duration `json:"client_timeout_ns"`
	TTL       time.Duration `json:"ttl_ns"`
	Stop      time.Duration `json:"stop_ns"`
	Slow      time.Duration `json:"slow_ns"`
	Watch     time.Duration `json:"watch_ns"`

	parallel int
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var cfg config
	flags := flag.NewFlagSet("metastable", flag.ContinueOnError)
	modes := flags.String("modes", strings.Join(allModes, ","), "the caches to try")
	triggers := flags.String("triggers", strings.Join(allTriggers, ","), "the triggers to try")
	loads := flags.String("loads", "250,750,1500", "open-loop loads to try, in calls per second")
	asJSON := flags.Bool("json", false, "print one JSON object")
	chart := flags.String("chart", "", "write a chart of the greatest load to this file, as SVG")
	flags.IntVar(&cfg.Keys, "keys", 1000, "keys, asked for by Zipf's law with exponent 1.00001")
	flags.IntVar(&cfg.Processes, "processes", 4, "processes, each with a store of its own")
	flags.IntVar(&cfg.Workers, "workers", 6, "fetches that the origin serves at once; further ones queue")
	flags.DurationVar(&cfg.Fetch, "fetch", 20*time.Millisecond, "how long the origin takes for one")
	flags.DurationVar(&cfg.Timeout, "timeout", time.Second, "how long a client waits for its call")
	flags.DurationVar(&cfg.TTL, "ttl", 30*time.Second, "how long a value is fresh")
	flags.DurationVar(&cfg.Stop, "stop", 30*time.Second, "how long Redis is stopped")
	flags.DurationVar(&cfg.Slow, "slow", 10*time.Second, "how long the origin takes three times as long")
	flags.DurationVar(&cfg.Watch, "watch", 30*time.Second, "how long to wait for the recovery")
	flags.IntVar(&cfg.parallel, "parallel", 1, "runs at once")
	if err := flags.Parse(args); err != nil {
		return err
	}
	logging.Disable() // the client's own log: errors come back from its calls
	cfg.Modes, cfg.Triggers = strings.Split(*modes, ","), strings.Split(*triggers, ",")
	for _, l := range strings.Split(*loads, ",") {
		n, err := strconv.Atoi(l)
		if err != nil || n < 1 {
			return fmt.Errorf("-loads: %q is no load", l)
		}
		cfg.Loads = append(cfg.Loads, n)
	}
	r, err := cfg.sweep(ctx, progress)
	if err != nil {
		return err
	}
	if *chart != "" {
		if err := os.WriteFile(*chart, []byte(r.chart()), 0o644); err != nil {
			return err
		}
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	r.print(out)
	return nil
}

// sweep makes all runs.
func (cfg *config) sweep(ctx context.Context, progress io.Writer) (*report, error) {
	r := &report{Config: *cfg}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	places := make(chan struct{}, max(1, cfg.parallel))
	for _, load := range cfg.Loads {
		for _, trigger := range cfg.Triggers {
			for _, mode := range cfg.Modes {
				places <- struct{}{}
				wg.Go(func() {
					defer func() { <-places }()
					one, err := cfg.one(ctx, mode, trigger, load)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						errs = append(errs, fmt.Errorf("%s, %s, %d calls/s: %w", mode, trigger, load, err))
						return
					}
					r.Runs = append(r.Runs, one)
					fmt.Fprintln(progress, one)
				})
			}
		}
	}
	wg.Wait()
	r.summarize()
	return r, errors.Join(errs...)
}
