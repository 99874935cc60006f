package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// binary is the program, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stampede")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// A child in which the race detector finds something ends at once, which its
	// parent reports.
	os.Setenv("GORACE", "halt_on_error=1 atexit_sleep_ms=10")
	binary = filepath.Join(dir, "stampede")
	if out, err := exec.Command("go", "build", raceFlag, "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// small are the flags of a quick run.
func small(more ...string) []string {
	return append([]string{"-procs", "2", "-callers", "20", "-fetch", "50ms"}, more...)
}

// play runs the program to its end and returns its output and its exit code.
func play(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	timer := time.AfterFunc(90*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	noChildIsLeft(t)
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestRunReportsEveryFieldOfEveryScene(t *testing.T) {
	stdout, stderr, code := play(t, small("-json")...)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	dec := json.NewDecoder(strings.NewReader(stdout))
	var report struct {
		Scenes []map[string]any `json:"scenes"`
	}
	dec.DisallowUnknownFields()
	if err := dec.Decode(&report); err != nil {
		t.Fatal(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		t.Fatalf("there is more than one object on standard output:\n%s", stdout)
	}
	fields := []string{
		"callers", "errors", "fetches", "last_ms", "mode", "name", "overhead_ms",
		"p50_ms", "p99_ms", "procs", "redis_commands", "takeover_ms",
	}
	var played []string
	for _, sc := range report.Scenes {
		var names []string
		for name, v := range sc {
			names = append(names, name)
			_, isNumber := v.(float64)
			if isNumber == (name == "name" || name == "mode") {
				t.Errorf("%s is %v (%T)", name, v, v)
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, fields) {
			t.Errorf("the fields are %q, want %q", names, fields)
		}
		played = append(played, fmt.Sprintf("%v/%v", sc["name"], sc["mode"]))
	}
	want := []string{"cold/none", "cold/singleflight", "cold/guard", "crash/guard", "error/guard"}
	if !slices.Equal(played, want) {
		t.Errorf("the scenes are %q, want %q", played, want)
	}
}

func TestGuardKeepsItsPromises(t *testing.T) {
	stdout, stderr, code := play(t, small("-json")...)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	var report struct {
		Scenes []struct {
			Name, Mode                      string
			Procs, Callers, Fetches, Errors int
			P50                             float64 `json:"p50_ms"`
			Last                            float64 `json:"last_ms"`
			Commands                        int     `json:"redis_commands"`
			Takeover                        float64 `json:"takeover_ms"`
		} `json:"scenes"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	for _, s := range report.Scenes {
		id := s.Name + "/" + s.Mode
		if s.Procs != 2 || s.Callers != 20 || s.Commands == 0 || s.P50 < 50 || s.Last < s.P50 {
			t.Errorf("%s: implausible: %+v", id, s)
		}
		switch id {
		case "cold/none":
			if s.Fetches < 2 || s.Fetches > 40 {
				t.Errorf("%s: %d fetches", id, s.Fetches)
			}
		case "cold/singleflight":
			if s.Fetches < 1 || s.Fetches > 2 {
				t.Errorf("%s: %d fetches", id, s.Fetches)
			}
		case "cold/guard":
			if s.Fetches != 1 || s.Errors != 0 {
				t.Errorf("%s: %d fetches, %d errors", id, s.Fetches, s.Errors)
			}
		case "crash/guard":
			if s.Fetches != 2 || s.Errors != 0 || s.Takeover <= 0 || s.Takeover >= 2000 {
				t.Errorf("%s: %d fetches, %d errors, taken over after %v ms", id, s.Fetches, s.Errors, s.Takeover)
			}
		case "error/guard":
			if s.Fetches < 1 || s.Errors != 40 {
				t.Errorf("%s: %d fetches, %d errors", id, s.Fetches, s.Errors)
			}
		}
	}
}

func TestTableGoesToStandardOutputAlone(t *testing.T) {
	stdout, stderr, code := play(t, small()...)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	if strings.Contains(stdout+stderr, "\x1b") {
		t.Error("escape sequences without a terminal")
	}
	// How often the failing origin is asked is for TestGuardKeepsItsPromises: a
	// caller that comes after the failure was told asks again.
	for _, want := range []string{"singleflight", "took over", "It was asked "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing from\n%s", want, stdout)
		}
	}
}

func TestFailuresAreToldAndEnd(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	absent := free.Addr().String()
	free.Close()
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no Redis":            {small("-redis", "redis://"+absent+"/0"), 1, "can't reach Redis at " + absent},
		"not a Redis URL":     {small("-redis", "localhost"), 1, "-redis: "},
		"origin's port taken": {small("-origin", taken.Addr().String()), 1, "the origin can't listen on " + taken.Addr().String()},
		"no such folder":      {small("-html", filepath.Join(t.TempDir(), "none", "r.html")), 1, "writing the page"},
		"one process":         {[]string{"-procs", "1"}, 2, "-procs is 1"},
		"all that is wrong":   {[]string{"-callers", "0", "-fetch", "0s"}, 2, "-fetch is 0s"},
		"unknown flag":        {[]string{"-what"}, 2, "-what"},
		"argument":            {[]string{"what"}, 2, `unexpected argument "what"`},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := play(t, c.args...)
			if code != c.code || !strings.Contains(stderr, c.want) || stdout != "" {
				t.Errorf("exit code %d, want %d; want %q in:\n%s%s", code, c.code, c.want, stderr, stdout)
			}
		})
	}
}

func TestDeathOfAChildIsTold(t *testing.T) {
	disturb(t, func(t *testing.T, _ *os.Process) { kill(t, children(t)[0], syscall.SIGKILL) },
		func(t *testing.T, stderr string, code int) {
			if code != 1 || !strings.Contains(stderr, "ended unexpectedly: signal: killed") {
				t.Errorf("exit code %d\n%s", code, stderr)
			}
		})
}

func TestInterruptEndsTheChildren(t *testing.T) {
	disturb(t, func(t *testing.T, p *os.Process) { kill(t, p.Pid, os.Interrupt) },
		func(t *testing.T, stderr string, code int) {
			if code != 130 || !strings.Contains(stderr, "interrupted") {
				t.Errorf("exit code %d\n%s", code, stderr)
			}
		})
}

func TestChildrenDoNotSurviveTheParent(t *testing.T) {
	disturb(t, func(t *testing.T, p *os.Process) { kill(t, p.Pid, syscall.SIGKILL) },
		func(*testing.T, string, int) {})
}

// disturb starts a long run, does something to it while its children start, or
// when they have been fetching for a while, and checks how it ends.
func disturb(t *testing.T, do func(*testing.T, *os.Process), check func(t *testing.T, stderr string, code int)) {
	if runtime.GOOS != "linux" {
		t.Skip("children are found in /proc")
	}
	for name, after := range map[string]time.Duration{"starting": 0, "fetching": time.Second} {
		t.Run(name, func(t *testing.T) {
			var errs bytes.Buffer
			cmd := exec.Command(binary, "-procs", "2", "-callers", "5", "-fetch", "20s")
			cmd.Stderr = &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			timer := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
			defer timer.Stop()
			eventually(t, "two children", func() bool { return len(children(t)) == 2 })
			time.Sleep(after)
			do(t, cmd.Process)
			start := time.Now()
			_ = cmd.Wait()
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("it took %v to end", d)
			}
			noChildIsLeft(t)
			check(t, errs.String(), cmd.ProcessState.ExitCode())
		})
	}
}

func kill(t *testing.T, pid int, sig os.Signal) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Signal(sig)
	}
	if err != nil {
		t.Error(err)
	}
}

// children are the processes that run the binary as a child. It is built for
// this test, so no other processes are among them.
func children(t *testing.T) []int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // empty for a zombie
		if err == nil && bytes.HasPrefix(line, []byte(binary+"\x00stampede-child")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func noChildIsLeft(t *testing.T) {
	t.Helper()
	eventually(t, "no child left", func() bool { return len(children(t)) == 0 })
}

func eventually(t *testing.T, event string, true func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !true() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", event)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
