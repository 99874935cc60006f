package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// writeText writes the table, and a sentence on each scene that needs one.
func writeText(w io.Writer, c config, outcomes []*outcome, rows []row, colour bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", premise(c))
	fmt.Fprintf(&b, "%-6s %-13s %8s %10s %10s %10s %10s %15s\n",
		"scene", "mode", "fetches", "p50", "p99", "last", "overhead", "redis commands")
	for _, r := range rows {
		line := fmt.Sprintf("%-6s %-13s %8d %7.1f ms %7.1f ms %7.1f ms %7.1f ms %15d",
			r.Name, r.Mode, r.Fetches, r.P50, r.P99, r.Last, r.Overhead, r.RedisCommands)
		b.WriteString(paint(line, r.Mode, colour) + "\n")
	}
	b.WriteString("\n")
	for _, o := range outcomes {
		for _, line := range story(o) {
			fmt.Fprintf(&b, "%s\n", line)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", legend)
	_, err := io.WriteString(w, b.String())
	return err
}

func premise(c config) string {
	where := "an embedded Redis"
	if c.redisURL != "" {
		where = "the given Redis"
	}
	return fmt.Sprintf("%d processes with %d callers each ask for one cold key at the same instant,\n"+
		"on %s. A fetch takes %v.", c.procs, c.callers, where, c.fetch)
}

const legend = `fetches         requests that reached the origin
p50, p99, last  from the common start until a caller had its answer
overhead        from the end of the fetch that served the last caller until it had its answer
redis commands  written to Redis connections from the start until each process had closed its
                cache; pipelined ones, subscriptions and pings included, a script is one`

// paint makes the guard's lines stand out.
func paint(line, mode string, colour bool) string {
	switch {
	case !colour:
		return line
	case mode == modeGuard:
		return "\x1b[1;36m" + line + "\x1b[0m"
	case mode == modeNone:
		return "\x1b[33m" + line + "\x1b[0m"
	}
	return line
}

// story tells the facts that the table can't.
func story(o *outcome) []string {
	last := percentile(o.latencies(), 100)
	var lines []string
	switch o.name {
	case sceneCrash:
		first := o.fetches[0]
		takeover, _ := o.takeover()
		lines = append(lines,
			fmt.Sprintf("crash: the process that was fetching was killed (SIGKILL) %s into its fetch; another", tidy(o.killed.Sub(first.arrived))),
			fmt.Sprintf("       took over %s later. All %d callers left had the value after %s.", tidy(takeover), len(o.answers)-o.errors(), tidy(last)))
	case sceneError:
		lines = append(lines,
			fmt.Sprintf("error: the origin failed. It was asked %s; the last of %d callers knew after %s,", times(len(o.fetches)), len(o.answers), tidy(last)),
			fmt.Sprintf("       %s after the origin had said so.", tidy(o.overhead())))
	default:
		if n := o.errors(); n > 0 {
			lines = append(lines, fmt.Sprintf("%s, %s: %d callers got an error: %s", o.name, o.mode, n, o.firstError))
		}
	}
	for _, note := range o.notes {
		lines = append(lines, "note:  "+note)
	}
	return lines
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func tidy(d time.Duration) string { return fmt.Sprintf("%.1f ms", ms(d)) }
