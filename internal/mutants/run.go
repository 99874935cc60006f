package mutants

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// timeout bounds a check by tests. A mutant may make it hang, which counts as found.
const timeout = 10 * time.Minute

// timeout bounds a check. Seeds take as long as they are many, and never hang: one that does
// not end is a violation.
func (c Check) timeout() time.Duration { return timeout + time.Duration(c.Seeds)*time.Second }

// A Verdict is the outcome of a mutant's check.
type Verdict string

const (
	Killed     Verdict = "killed"     // the check failed
	Survived   Verdict = "survived"   // it did not
	Equivalent Verdict = "equivalent" // it did not, and cannot
	Broken     Verdict = "broken"     // the mutant says nothing, see Result.Detail
)

// A Result is a mutant and its verdict.
type Result struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Check   string  `json:"check"`
	Detail  string  `json:"detail,omitempty"` // how the check failed, or the mistake in the mutant
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_seconds"` // of building the check and of running it
}

// OK reports whether the mutant was found, or cannot be.
func (r *Result) OK() bool { return r.Verdict == Killed || r.Verdict == Equivalent }

// Options configure [Run].
type Options struct {
	Root     string // of the module
	Parallel int    // mutants at once; 0: 2
	// Each is told of each result, in the order in which they come. Default none.
	Each func(Result)
}

// Run tries the mutants, and returns their results in the order of the list. It
// stops when ctx ends: mutants that are not tried by then are broken.
func Run(ctx context.Context, all []Mutant, opts Options) []Result {
	results := make([]Result, len(all))
	slots := make(chan struct{}, cmp.Or(opts.Parallel, 2))
	var told sync.Mutex
	var group sync.WaitGroup
	for i, m := range all {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			var cpu time.Duration
			r := m.try(ctx, opts.Root, &cpu)
			r.Name, r.Check, r.Seconds, r.CPU = m.Name, m.Check.String(), time.Since(began).Seconds(), cpu.Seconds()
			results[i] = r
			if opts.Each != nil {
				told.Lock()
				defer told.Unlock()
				opts.Each(r)
			}
		})
	}
	group.Wait()
	return results
}

// Baseline runs the checks of the mutants without any patch, and returns those that
// fail: no mutant causes such a failure.
func Baseline(ctx context.Context, all []Mutant, opts Options) []Result {
	checks := map[string]Check{}
	var order []string
	for _, m := range all {
		key := m.Check.Package
		c, ok := checks[key]
		if !ok {
			order = append(order, key)
			c = m.Check
		}
		if c.Seeds > 0 {
			c.Seeds, c.Rules, c.With = max(c.Seeds, m.Check.Seeds), nil, ""
		} else {
			c.Run = c.Run + "|" + m.Check.Run
		}
		checks[key] = c
	}
	var unpatched []Mutant
	for _, key := range order {
		unpatched = append(unpatched, Mutant{Name: "no mutant: " + key, Check: checks[key], Equivalent: "nothing is changed"})
	}
	var failed []Result
	for _, r := range Run(ctx, unpatched, opts) {
		if !r.OK() {
			failed = append(failed, r)
		}
	}
	return failed
}

// try builds the mutant's check and runs it, and adds the processor time of both to
// cpu.
func (m *Mutant) try(ctx context.Context, root string, cpu *time.Duration) Result {
	broken := func(err error) Result { return Result{Verdict: Broken, Detail: err.Error()} }
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return broken(err)
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return broken(err)
	}
	binary := filepath.Join(dir, "check.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay="+overlay, "-o="+binary,
		// It is built often and runs for seconds.
		"-gcflags=./...=-N -l", "-ldflags=-s -w", "./"+m.Check.Package)
	build.Dir = root
	out, err := timed(build, cpu)
	if err != nil {
		return broken(fmt.Errorf("mutants: %q can't be built: %w\n%s", m.Name, err, out))
	}
	if _, err := os.Stat(binary); err != nil {
		return broken(fmt.Errorf("mutants: %q: %s has no tests: %w", m.Name, m.Check.Package, err))
	}
	run := exec.CommandContext(ctx, binary, m.Check.args()...)
	run.Dir = filepath.Join(root, filepath.FromSlash(m.Check.Package))
	run.Env = append(os.Environ(), "MUTANT_OVERLAY="+overlay)
	if m.Check.Seeds > 0 {
		run.Env = append(run.Env, "GOMAXPROCS=1") // a seed replays best so, and another mutant has the other
	}
	run.WaitDelay = 10 * time.Second // a check's own processes may outlive it
	out, err = timed(run, cpu)
	if ctx.Err() != nil {
		return broken(context.Cause(ctx))
	}
	return m.judge(out, err)
}

// timed runs a command and returns its output, and adds its processor time to cpu.
func timed(cmd *exec.Cmd, cpu *time.Duration) (string, error) {
	out, err := cmd.CombinedOutput()
	if p := cmd.ProcessState; p != nil {
		*cpu += p.UserTime() + p.SystemTime()
	}
	return string(out), err
}

// overlay writes the patched files and the overlay file that names them.
func (m *Mutant) overlay(root, dir string) (string, error) {
	files, err := m.patched(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, text := range files {
		replace[path] = filepath.Join(dir, strconv.Itoa(len(replace))+filepath.Ext(path))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b, 0o600)
}

// judge derives the result from the output of the check.
func (m *Mutant) judge(out string, err error) Result {
	var exit *exec.ExitError
	failed := strings.Contains(out, "--- FAIL: ") || strings.Contains(out, "panic: ") || strings.Contains(out, "fatal error: ")
	switch {
	case m.Check.Seeds > 0 && strings.Contains(out, "panic: test timed out"):
		return Result{Verdict: Broken, Detail: fmt.Sprintf("mutants: %q: its check ran out of time", m.Name)}
	case strings.Contains(out, "no tests to run"):
		return Result{Verdict: Broken, Detail: fmt.Sprintf("mutants: %q: no test matches %s", m.Name, m.Check.Run)}
	case err == nil && m.Equivalent != "":
		return Result{Verdict: Equivalent, Detail: m.Equivalent}
	case err == nil:
		return Result{Verdict: Survived}
	case !failed || !errors.As(err, &exit):
		return Result{Verdict: Broken, Detail: fmt.Sprintf("mutants: %q: its check could not be run: %v\n%s", m.Name, err, out)}
	case m.Equivalent != "":
		return Result{Verdict: Broken, Detail: fmt.Sprintf("mutants: %q is said to be equivalent, and is found: %s", m.Name, reason(out))}
	}
	return Result{Verdict: Killed, Detail: reason(out)}
}

// reason is the line of a test's output that says best why it failed.
func reason(out string) string {
	best := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
			return line
		case best == "" && isFailure(line):
			best = line
		}
	}
	return best
}

// isFailure reports whether a line is the message of a failing test: "file_test.go:12: …".
func isFailure(line string) bool {
	file, rest, ok := strings.Cut(line, ".go:")
	if !ok || strings.ContainsAny(file, " \t/") {
		return false
	}
	number, _, ok := strings.Cut(rest, ":")
	_, err := strconv.Atoi(number)
	return ok && err == nil
}
