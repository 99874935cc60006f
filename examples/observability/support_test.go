package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// A test's binary stands in for the program, and for its processes.
const programEnv = "OBSERVABILITY_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" || os.Getenv(programEnv) != "" {
		logging.Disable()
		if err := asProgram(); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}

func asProgram() error {
	if os.Getenv(childEnv) != "" {
		return child()
	}
	_ = os.Unsetenv(programEnv)
	return run(context.Background(), normal, 0, "", "0,0")
}

// A program is the example under way.
type program struct {
	t     *testing.T
	addrs []string
	in    io.Writer

	mu    sync.Mutex
	lines []string
}

// start runs the example until the test ends.
func start(t *testing.T) *program {
	t.Helper()
	p := &program{t: t}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.in = in
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, lines.Text())
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		<-read
		_ = cmd.Wait()
	})
	p.await("the scenario's start", 30*time.Second, func() bool { return p.printed("^scenario: normal") != "" })
	for n := 1; n <= 2; n++ {
		line := p.printed(fmt.Sprintf("^process %d:", n))
		p.addrs = append(p.addrs, regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line))
	}
	return p
}

func (p *program) printed(pattern string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if regexp.MustCompile(pattern).MatchString(line) {
			return line
		}
	}
	return ""
}

// play changes the scenario.
func (p *program) play(name string) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, "%q\n", name); err != nil {
		p.t.Fatal(err)
	}
	p.await("scenario "+name, 30*time.Second, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := len(p.lines) - 1; i >= 0; i-- {
			if line, ok := strings.CutPrefix(p.lines[i], "scenario: "); ok {
				return line == name
			}
		}
		return false
	})
}

// await asks again until ok, and fails the test after a time that only a broken program
// takes.
func (p *program) await(what string, atMost time.Duration, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(atMost); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.t.Fatalf("no %s within %v; printed:\n%s", what, atMost, strings.Join(p.lines, "\n"))
		}
	}
}

// tool finds a program that the test needs. Where the tests must all run it has to be
// there.
func tool(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed", names[0])
	}
	t.Skipf("%s is not installed", names[0])
	return ""
}
