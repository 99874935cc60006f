// Command outage shows an outage of Redis to four kinds of caches, side by side: how long
// callers wait, and how many fetches reach the origin, before, during and after.
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
		fmt.Fprintln(os.Stderr, "outage:", err)
		os.Exit(1)
	}
}

// A config is the flags.
type config struct {
	fault    string
	modes    string
	embedded bool
	json     bool

	stores, callers, keys int
	before, during, after time.Duration
	ttl, fetch, think     time.Duration
	near                  int
}

// muteLogs turns the client's own log off: errors come back from its calls.
var muteLogs = sync.OnceFunc(func() {
	logging.Disable()
	log.SetOutput(io.Discard)
})

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var cfg config
	flags := flag.NewFlagSet("outage", flag.ContinueOnError)
	flags.StringVar(&cfg.fault, "fault", "kill", "what happens to Redis: kill, then it returns empty; or freeze")
	flags.StringVar(&cfg.modes, "modes", strings.Join(allModes, ","), "the caches to show")
	flags.BoolVar(&cfg.embedded, "embedded", false, "use an embedded Redis even if redis-server is installed")
	flags.BoolVar(&cfg.json, "json", false, "print one JSON object")
	flags.IntVar(&cfg.stores, "stores", 4, "stores, each standing for a process")
	flags.IntVar(&cfg.callers, "callers", 32, "callers of each store")
	flags.IntVar(&cfg.keys, "keys", 1000, "keys, asked for by Zipf's law")
	flags.IntVar(&cfg.near, "near", 0, "entries of the near cache of the guards")
	flags.DurationVar(&cfg.before, "before", 5*time.Second, "time before the outage")
	flags.DurationVar(&cfg.during, "for", 10*time.Second, "length of the outage")
	flags.DurationVar(&cfg.after, "after", 5*time.Second, "time after it")
	flags.DurationVar(&cfg.ttl, "ttl", time.Minute, "how long a value is fresh")
	flags.DurationVar(&cfg.fetch, "fetch", 20*time.Millisecond, "how long a fetch takes")
	flags.DurationVar(&cfg.think, "think", 10*time.Millisecond, "pause of a caller between two calls")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if cfg.fault != "kill" && cfg.fault != "freeze" {
		return fmt.Errorf("-fault is %q, must be kill or freeze", cfg.fault)
	}
	muteLogs()
	var report report
	for _, name := range strings.Split(cfg.modes, ",") {
		m, err := cfg.show(ctx, name, progress)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		report.Modes = append(report.Modes, m)
	}
	if cfg.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	}
	report.print(out)
	return nil
}
