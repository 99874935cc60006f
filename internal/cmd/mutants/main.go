// Command mutants breaks the library on purpose, one rule at a time, and reports
// whether the check that is there for the rule finds it:
//
//	go run ./internal/cmd/mutants -quick
//	go run ./internal/cmd/mutants -run 'GetMany|tag' -json
//	go run ./internal/cmd/mutants -run 'near' -check ./guard
//	go run ./internal/cmd/mutants -page > bench/mutants.md
//
// Package internal/mutants has the list. The exit status is 0 if all are found, 1
// if not, and 2 if it was called wrongly.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/stampedeguard/stampede/internal/mutants"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type settings struct {
	mutants.Options
	quick, baseline, list, page, asJSON bool
	check                               *mutants.Check // in place of the mutants' own; nil: theirs
	run                                 *regexp.Regexp
}

func run(ctx context.Context, args []string, out, progress io.Writer) int {
	s, err := parse(args, progress)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(progress, err)
		return 2
	}
	all := slices.DeleteFunc(mutants.All(), func(m mutants.Mutant) bool {
		return s.quick && !m.Quick || !s.run.MatchString(m.Name)
	})
	if s.check != nil {
		for i := range all {
			all[i].Check = *s.check
		}
	}
	if s.page {
		if err := mutants.WritePage(out, all); err != nil {
			fmt.Fprintln(progress, err)
			return 1
		}
		return 0
	}
	if s.list {
		for _, m := range all {
			fmt.Fprintf(out, "%s\t%v\n", m.Name, m.Check)
		}
		return 0
	}
	if s.Root, err = moduleRoot(ctx); err != nil {
		fmt.Fprintln(progress, err)
		return 2
	}
	if err := mutants.Validate(all, s.Root); err != nil {
		fmt.Fprintln(progress, err)
		return 1
	}
	s.Each = func(r mutants.Result) {
		fmt.Fprintf(progress, "%-10s %5.1f s  %s: %s\n", r.Verdict, r.Seconds, r.Name, r.Detail)
	}
	var failed []mutants.Result
	if s.baseline {
		failed = mutants.Baseline(ctx, all, s.Options)
	}
	results := failed
	if len(failed) == 0 {
		results = mutants.Run(ctx, all, s.Options)
	}
	write := mutants.WriteTable
	if s.asJSON {
		write = mutants.WriteJSON
	}
	if err := write(out, results); err != nil {
		fmt.Fprintln(progress, err)
		return 1
	}
	if slices.ContainsFunc(results, func(r mutants.Result) bool { return !r.OK() }) {
		fmt.Fprintln(progress, "FAIL\tmutants") // as go test says it
		return 1
	}
	return 0
}

func parse(args []string, out io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.BoolVar(&s.quick, "quick", false, "only those of make test")
	flags.BoolVar(&s.baseline, "baseline", false, "run the checks without a mutant first: they must pass")
	flags.BoolVar(&s.list, "list", false, "list the mutants and their checks, and try none")
	flags.BoolVar(&s.page, "page", false, "print the page bench/mutants.md, and try none")
	flags.BoolVar(&s.asJSON, "json", false, "print a JSON array instead of the table")
	flags.IntVar(&s.Parallel, "p", 2, "mutants at once")
	name := flags.String("run", "", "only mutants whose name matches the `pattern`")
	check := flags.String("check", "", "in place of the mutants' own `check`: a package, a package and a pattern of tests with a colon between, or sim:SEEDS[:FEATURE]")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if s.run, err = regexp.Compile(*name); err != nil {
		return s, err
	}
	s.check, err = parseCheck(*check)
	return s, err
}

func parseCheck(text string) (*mutants.Check, error) {
	what, rest, _ := strings.Cut(text, ":")
	switch {
	case text == "":
		return nil, nil
	case what != "sim":
		return &mutants.Check{Package: strings.TrimPrefix(what, "./"), Run: rest}, nil
	}
	seeds, feature, _ := strings.Cut(rest, ":")
	n, err := strconv.Atoi(seeds)
	if err != nil {
		return nil, fmt.Errorf("-check %s: how many seeds? %w", text, err)
	}
	c := mutants.Sim(n).Of(feature)
	return &c, nil
}

// moduleRoot is the folder of the module that the command is run in.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	file := strings.TrimSpace(string(out))
	if file == "" || file == os.DevNull {
		return "", errors.New("not in a module")
	}
	return filepath.Dir(file), nil
}
