// Command stampede shows the effect of a cold key on an origin. Real processes,
// each with many callers, ask for the same key at the same instant: without any
// protection, with a singleflight in each process, and with a guard. Then the
// fetching process is killed, and then the origin fails.
//
//	go run ./examples/stampede
//	go run ./examples/stampede -procs 8 -callers 1000 -redis redis://127.0.0.1:6379/0
//
// It exits with 0 if the guard kept its promise, 1 if it did not or the run
// failed, 2 if it was called wrongly and 130 if it was interrupted.
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
	callers  int
	fetch    time.Duration
	redisURL string
	origin   string
	html     string
	svg      string
	json     bool
}

func (c config) validate() error {
	var errs []error
	if c.procs < 2 {
		errs = append(errs, fmt.Errorf("-procs is %d, must be at least 2: when one is killed, another takes over", c.procs))
	}
	if c.callers < 1 {
		errs = append(errs, fmt.Errorf("-callers is %d, must be at least 1", c.callers))
	}
	if c.fetch < time.Millisecond || c.fetch > 20*time.Second {
		errs = append(errs, fmt.Errorf("-fetch is %v, must be from 1ms to 20s", c.fetch))
	}
	return errors.Join(errs...)
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("stampede", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.IntVar(&c.procs, "procs", 4, "`processes`, at least 2")
	flags.IntVar(&c.callers, "callers", 250, "`callers` in each process")
	flags.DurationVar(&c.fetch, "fetch", 200*time.Millisecond, "how long the origin takes to answer")
	flags.StringVar(&c.redisURL, "redis", "", "`URL` of the Redis to use (default: an embedded server)")
	flags.StringVar(&c.origin, "origin", "127.0.0.1:0", "`address` the origin listens on")
	flags.StringVar(&c.html, "html", "", "write a page with charts to this `file`")
	flags.StringVar(&c.svg, "svg", "", "draw the calls of the origin into this `file`")
	flags.BoolVar(&c.json, "json", false, "print one JSON object instead of a table")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	err := c.validate()
	if flags.NArg() > 0 {
		err = errors.Join(err, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
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
	outcomes, err := run(ctx, c, newProgress(os.Stderr))
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "stampede: interrupted")
		os.Exit(130)
	case err == nil:
		err = errors.Join(report(c, outcomes), promise(outcomes))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stampede:", err)
		os.Exit(1)
	}
}

// run plays all scenes. When it returns, no child is left.
func run(ctx context.Context, c config, p *progress) ([]*outcome, error) {
	server, err := openRedis(ctx, c.redisURL)
	if err != nil {
		return nil, err
	}
	defer server.close()
	var outcomes []*outcome
	for _, sc := range scenes {
		p.begin(sc, c)
		o, err := play(ctx, sc, c, server.url, p)
		if err != nil {
			p.end()
			return nil, fmt.Errorf("scene %s, mode %s: %w", sc.name, sc.mode, err)
		}
		outcomes = append(outcomes, o)
	}
	p.end()
	return outcomes, nil
}

// report writes the table, the page or JSON, by the flags.
func report(c config, outcomes []*outcome) error {
	rows := rowsOf(outcomes)
	if c.html != "" {
		if err := writeHTML(c, outcomes, rows); err != nil {
			return err
		}
	}
	if c.svg != "" {
		if err := writeSVG(c.svg, rows); err != nil {
			return err
		}
	}
	if c.json {
		return writeJSON(os.Stdout, rows)
	}
	return writeText(os.Stdout, c, outcomes, rows, colourful(os.Stdout))
}

// promise returns the promises that the guard did not keep.
func promise(outcomes []*outcome) error {
	var errs []error
	for _, o := range outcomes {
		if o.mode != modeGuard || o.name != sceneCold {
			continue
		}
		if n := len(o.fetches); n != 1 {
			errs = append(errs, fmt.Errorf("the guard let %d fetches of one cold key through, must be 1", n))
		}
		if n := o.errors(); n > 0 {
			errs = append(errs, fmt.Errorf("%d callers of the guard got an error: %s", n, o.firstError))
		}
		for _, note := range o.notes {
			if len(errs) > 0 {
				errs = append(errs, errors.New(note)) // as a likely reason
			}
		}
	}
	return errors.Join(errs...)
}
