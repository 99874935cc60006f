// Command vendorapi shows the calls of a fleet to a vendor that limits and prices
// each call, in three ways at once: without a guard, with a guard, and with a guard
// that spends from a budget. Each way has a vendor and real client processes of its
// own.
//
//	go run ./examples/vendorapi
//	go run ./examples/vendorapi -procs 8 -for 10s -redis redis://127.0.0.1:6379/0
//
// It exits with 0 if the run went well, 1 if it failed, 2 if it was called wrongly
// and 130 if it was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// A config holds the flags of the command line.
type config struct {
	procs    int
	last     time.Duration
	limit    int
	demand   int
	redisURL string
	json     bool
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("vendorapi", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.IntVar(&c.procs, "procs", 4, "client `processes` of each mode")
	flags.DurationVar(&c.last, "for", 30*time.Second, "how long to run")
	flags.IntVar(&c.limit, "limit", 20, "`calls` that the vendor allows in a second")
	flags.IntVar(&c.demand, "demand", 50, "`answers` that each process wants in a second")
	flags.StringVar(&c.redisURL, "redis", "", "`URL` of the Redis to use (default: an embedded server)")
	flags.BoolVar(&c.json, "json", false, "print one JSON object instead of tables")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	var errs []error
	between := func(name string, n, least, most int) {
		if n < least || n > most {
			errs = append(errs, fmt.Errorf("-%s is %d, must be from %d to %d", name, n, least, most))
		}
	}
	between("procs", c.procs, 1, 100)
	between("limit", c.limit, 1, 100_000)
	between("demand", c.demand, 1, 100_000)
	if c.last < 100*time.Millisecond || c.last > 24*time.Hour {
		errs = append(errs, fmt.Errorf("-for is %v, must be from 100ms to 24h", c.last))
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	err := errors.Join(errs...)
	if err != nil {
		fmt.Fprintln(out, err)
	}
	return c, err
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		childMain()
		return
	}
	c, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	rows, err := run(ctx, c, newTable(os.Stderr))
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "vendorapi: interrupted")
		os.Exit(130)
	case err == nil && c.json:
		err = writeJSON(os.Stdout, rows)
	case err == nil:
		err = writeText(os.Stdout, c, rows)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vendorapi:", err)
		os.Exit(1)
	}
}
