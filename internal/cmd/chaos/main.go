// Command chaos breaks things around a fleet of guards and checks that the
// promises of the lease protocol held:
//
//	go run ./internal/cmd/chaos -for 5m -redis sentinel -seed 7
//	go run ./internal/cmd/chaos -for 15s -redis standalone -faults kill,freeze -json
//
// Package internal/harness/chaos describes the processes, the faults, the checks and their
// limits. The order and the choice of the faults follow from the seed. The state that a
// fault meets does not, so the same seed does not always find the same.
//
// Progress goes to standard error. The exit status is 0 if all is zero that must
// be, 1 if not or if the run failed, 2 if it was called wrongly, and 130 if it
// was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/stampedeguard/stampede/internal/harness/chaos"
	"github.com/stampedeguard/stampede/internal/harness/lockchaos"
)

func main() {
	chaos.ChildMain()
	lockchaos.ChildMain()
	logging.Disable() // servers are down on purpose
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, out, progress io.Writer) int {
	opts, asJSON, err := parse(args, progress)
	if locks := (*locksError)(nil); errors.As(err, &locks) {
		return runLocks(ctx, locks.opts, asJSON, out, progress)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	res, err := chaos.Run(ctx, opts)
	if res != nil {
		write := res.WriteText
		if asJSON {
			write = res.WriteJSON
		}
		err = errors.Join(err, write(out))
	}
	switch {
	case err != nil:
		fmt.Fprintln(progress, err)
		return 1
	case !res.OK():
		return 1
	case res.Interrupted:
		return 130
	}
	return 0
}

// A locksError says that the load is locks.
type locksError struct{ opts lockchaos.Options }

func (*locksError) Error() string { return "chaos: -load locks" }

// runLocks is run for the load of locks.
func runLocks(ctx context.Context, opts lockchaos.Options, asJSON bool, out, progress io.Writer) int {
	res, err := lockchaos.Run(ctx, opts)
	if res != nil {
		write := res.WriteText
		if asJSON {
			write = res.WriteJSON
		}
		err = errors.Join(err, write(out))
	}
	if err != nil {
		fmt.Fprintln(progress, err)
	}
	if err != nil || !res.OK() {
		return 1
	}
	return 0
}

func parse(args []string, out io.Writer) (opts chaos.Options, asJSON bool, err error) {
	opts.Progress = out
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.DurationVar(&opts.For, "for", 5*time.Minute, "how `long` new faults begin")
	flags.StringVar(&opts.Topology, "redis", chaos.Standalone, "standalone, sentinel or cluster")
	flags.Uint64Var(&opts.Seed, "seed", 1, "of the faults and the load")
	flags.IntVar(&opts.Procs, "procs", 4, "`processes`, at least 2")
	flags.Float64Var(&opts.Rate, "rate", 200, "`callers` in a second, in each process")
	flags.DurationVar(&opts.RedisTimeout, "redis-timeout", 0, "of the stores (default: theirs; raise it on a busy machine)")
	flags.DurationVar(&opts.Calm, "calm", 0, "before the first fault (default: a tenth of -for, at least 3s)")
	load := flags.String("load", "guards", "guards or locks (with -for, -redis, -seed, -procs and -json only; -redis quorum is for locks)")
	names := flags.String("faults", "", "`names`, with commas between (default: all that there are on the Redis)")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object instead of the table")
	flags.BoolVar(&opts.Verbose, "v", false, "tell of breakers and subscriptions as they change")
	flags.Usage = func() {
		fmt.Fprintln(out, "usage: chaos [flags]")
		flags.PrintDefaults()
		for _, redis := range []string{chaos.Standalone, chaos.Sentinel, chaos.Cluster} {
			names, _ := chaos.Faults(redis)
			fmt.Fprintf(out, "faults, %s: %s\n", redis, strings.Join(names, ","))
		}
	}
	if err := flags.Parse(args); err != nil {
		return opts, asJSON, err
	}
	if *load == "locks" {
		return opts, asJSON, &locksError{lockchaos.Options{For: opts.For, Kind: opts.Topology, Seed: opts.Seed, Procs: opts.Procs, Progress: out}}
	}
	if *names != "" {
		opts.Faults = strings.Split(*names, ",")
	}
	err = opts.Validate()
	if flags.NArg() > 0 {
		err = errors.Join(err, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if err != nil {
		fmt.Fprintln(out, err)
	}
	return opts, asJSON, err
}
