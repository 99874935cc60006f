// Command collapse tests how an HTTP cache collapses requests. Clients ask for a page at the
// same time. They should cost its origin one request, and each should get a response that
// it may get. The command is the origin and the clients. Any cache stands between:
//
//	collapse -cache http://127.0.0.1:8080 -origin 127.0.0.1:9000
//
// The cache has to forward to the address of -origin. The command looks only at the
// requests that arrive at the origin, and at the bodies, statuses and times at the clients.
// README.md explains the cases.
//
// The exit status is 1 if a required case fails, and 2 if the cases could not be run.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A report is the output of -json.
type report struct {
	Cases []result `json:"cases"`
}

// A result is the outcome of one case.
type result struct {
	Name   string `json:"name"`
	Kind   kind   `json:"kind"`
	Pass   bool   `json:"pass"`
	Detail string `json:"detail"`
}

func command(args []string, stdout, stderr io.Writer) int {
	s := &suite{log: stderr}
	flags := flag.NewFlagSet("collapse", flag.ContinueOnError)
	flags.SetOutput(stderr)
	cache := flags.String("cache", "http://127.0.0.1:8080", "URL of the cache")
	cache2 := flags.String("cache2", "", "URL of a second cache on the same store; without it there are no fleet cases")
	listen := flags.String("origin", "127.0.0.1:9000", "address on which the origin listens")
	flags.IntVar(&s.clients, "n", 20, "clients that ask at once")
	flags.DurationVar(&s.fetch, "fetch", 500*time.Millisecond, "time that the origin takes for a page")
	flags.IntVar(&s.bound, "bound", 1<<20, "bytes of the largest body that the cache stores")
	flags.IntVar(&s.parallel, "parallel", 8, "cases that run at the same time")
	flags.StringVar(&s.crash, "crash", "", "command of a shell that kills the first cache without warning, for the case fleet-crash")
	flags.StringVar(&s.restart, "restart", "", "command of a shell that restarts the first cache and returns when it listens, for the case restart")
	pattern := flags.String("run", "", "run only cases whose name matches this regular expression")
	list := flags.Bool("list", false, "list the cases and exit")
	asJSON := flags.Bool("json", false, "print the results as JSON")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	match, err := regexp.Compile(*pattern)
	if err != nil {
		fmt.Fprintln(stderr, "collapse: -run:", err)
		return 2
	}
	if *list {
		for _, c := range cases {
			if match.MatchString(c.name) {
				fmt.Fprintf(stdout, "%-20s %-9s %s\n", c.name, c.kind, c.expects)
			}
		}
		return 0
	}
	for _, raw := range []string{*cache, *cache2} {
		u, err := url.Parse(raw)
		switch {
		case raw == "":
			continue
		case err != nil || u.Scheme != "http" || u.Port() == "" || strings.Trim(u.Path, "/") != "":
			fmt.Fprintf(stderr, "collapse: %q is not the URL of a cache, such as http://127.0.0.1:8080\n", raw)
			return 2
		}
		s.caches = append(s.caches, u.Host)
	}
	if s.origin, err = serve(*listen); err != nil {
		fmt.Fprintln(stderr, "collapse: the origin:", err)
		return 2
	}
	defer s.origin.close()
	results, err := s.run(match)
	if err != nil {
		fmt.Fprintln(stderr, "collapse:", err)
		return 2
	}
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		_ = e.Encode(report{results})
	} else {
		printTable(stdout, results)
	}
	for _, r := range results {
		if !r.Pass && r.Kind == required {
			return 1
		}
	}
	return 0
}

func printTable(w io.Writer, results []result) {
	passed, all := map[kind]int{}, map[kind]int{}
	for _, r := range results {
		verdict := "fail"
		if all[r.Kind]++; r.Pass {
			verdict = "pass"
			passed[r.Kind]++
		}
		fmt.Fprintf(w, "%s  %-20s %-9s %s\n", verdict, r.Name, r.Kind, r.Detail)
	}
	for _, k := range []kind{required, optional, fleet} {
		if all[k] > 0 {
			fmt.Fprintf(w, "%s: %d of %d\n", k, passed[k], all[k])
		}
	}
}
