//go:build unix

package redistest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// gone reports whether the process has ended. A child of a killed parent
// stays a zombie where process 1 (of a container, often) reaps nothing.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestStandaloneAnswersAndStops(t *testing.T) {
	t.Parallel()
	s, err := redistest.StartStandalone(t.Context(), redistest.StandaloneConfig{})
	must(t, err)
	c := s.Client()
	must(t, c.Set(t.Context(), "k", "v", 0).Err())
	pid := s.Pid()

	must(t, s.Stop())
	if !gone(pid) {
		t.Errorf("process %d lives after Stop", pid)
	}
	if err := c.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("client after Stop: got %v, want redis.ErrClosed", err)
	}
	must(t, s.Stop())
}

func TestStandaloneTakesExtraArguments(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{Args: []string{"--maxmemory", "12345678"}})
	got := s.Client().ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]
	if got != "12345678" {
		t.Errorf("maxmemory = %q", got)
	}
}

func TestStandaloneWithPasswordStarts(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{Args: []string{"--requirepass", "secret"}})
	opt := s.Options()
	opt.Password = "secret"
	c := redis.NewClient(opt)
	defer c.Close()
	must(t, c.Ping(t.Context()).Err())
}

func TestStartReportsTheServersOutput(t *testing.T) {
	t.Parallel()
	_, err := redistest.StartStandalone(t.Context(), redistest.StandaloneConfig{Args: []string{"--no-such-directive", "1"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-directive") {
		t.Errorf("got %v, want the server's complaint", err)
	}
}

func TestServersStartedTogetherGetDifferentPorts(t *testing.T) {
	t.Parallel()
	const n = 5
	addrs := make(chan string, n)
	for range n {
		go func() {
			s, err := redistest.StartStandalone(t.Context(), redistest.StandaloneConfig{})
			if err != nil {
				addrs <- err.Error()
				return
			}
			t.Cleanup(func() { _ = s.Stop() })
			addrs <- s.Addr()
		}()
	}
	seen := map[string]bool{}
	for range n {
		seen[<-addrs] = true
	}
	if len(seen) != n {
		t.Errorf("addresses: %v", seen)
	}
}

func TestKilledServerRefusesUntilRestarted(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	c := s.Client()
	must(t, c.Set(t.Context(), "k", "v", 0).Err())
	addr := s.Addr()

	must(t, s.Kill())
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("a killed server answered")
	}
	must(t, s.Restart(t.Context()))
	if s.Addr() != addr {
		t.Errorf("address changed from %s to %s", addr, s.Addr())
	}
	if n := c.Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("a server without persistence kept its data through SIGKILL")
	}
}

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	c := s.Client()
	must(t, c.Set(t.Context(), "k", "v", 0).Err())
	pid := s.Pid()
	must(t, s.Restart(t.Context()))
	if s.Pid() == pid {
		t.Error("the process is the same after Restart")
	}
	if got := c.Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("after Restart: %q", got)
	}

	must(t, s.RestartEmpty(t.Context()))
	if n := c.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("after RestartEmpty: %d keys", n)
	}
}

func TestRestartAfterKillKeepsAppendedData(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{
		Args: []string{"--appendonly", "yes", "--appendfsync", "always"},
	})
	c := s.Client()
	must(t, c.Set(t.Context(), "k", "v", 0).Err())
	must(t, s.Kill())
	must(t, s.Restart(t.Context()))
	if got := c.Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("after Kill and Restart: %q", got)
	}
	must(t, s.RestartEmpty(t.Context()))
	if n := c.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("after RestartEmpty: %d keys", n)
	}
}

func TestPausedServerIsSilentUntilResumed(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	opt := s.Options()
	opt.ReadTimeout = 100 * time.Millisecond
	opt.MaxRetries = -1
	c := redis.NewClient(opt)
	defer c.Close()
	must(t, c.Ping(t.Context()).Err())

	must(t, s.Pause())
	err := c.Ping(t.Context()).Err()
	var timeout interface{ Timeout() bool }
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("paused server: got %v, want a timeout", err)
	}
	must(t, s.Resume())
	must(t, c.Ping(t.Context()).Err())
}

func TestPausedServerCanBeStopped(t *testing.T) {
	t.Parallel()
	s, err := redistest.StartStandalone(t.Context(), redistest.StandaloneConfig{})
	must(t, err)
	must(t, s.Pause())
	must(t, s.Stop())
	if !gone(s.Pid()) {
		t.Errorf("process %d lives after Stop", s.Pid())
	}
}

func TestPauseOfKilledServerFails(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	must(t, s.Kill())
	if err := s.Pause(); err == nil {
		t.Error("Pause of a killed server gave no error")
	}
}

func TestCommandsCountsExecutedCommands(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	c := s.Client()
	must(t, c.Ping(t.Context()).Err())
	must(t, s.ResetCommands(t.Context()))
	for range 3 {
		must(t, c.Set(t.Context(), "k", "v", 0).Err())
	}
	must(t, c.Eval(t.Context(), "return redis.call('GET', KEYS[1])", []string{"k"}).Err())

	got, err := s.Commands(t.Context())
	must(t, err)
	if got["set"] != 3 || got["eval"] != 1 || got["get"] != 1 || got["ping"] != 0 {
		t.Errorf("commands: %v", got)
	}
}

// Without redis-server nothing may be skipped: the error names the remedy and
// the helper fails the test.
func TestMissingServerFailsWithInstallAdvice(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	starts := map[string]func() error{
		"Standalone": func() error {
			_, err := redistest.StartStandalone(t.Context(), redistest.StandaloneConfig{})
			return err
		},
		"Cluster": func() error {
			_, err := redistest.StartCluster(t.Context(), redistest.ClusterConfig{})
			return err
		},
		"Sentinel": func() error {
			_, err := redistest.StartSentinel(t.Context(), redistest.SentinelConfig{})
			return err
		},
	}
	for name, start := range starts {
		err := start()
		if !errors.Is(err, redistest.ErrNoServer) {
			t.Errorf("%s: got %v, want ErrNoServer", name, err)
			continue
		}
		for _, remedy := range []string{"apt-get install redis-server", "brew install redis", "https://redis.io"} {
			if !strings.Contains(err.Error(), remedy) {
				t.Errorf("%s: %q does not name %q", name, err, remedy)
			}
		}
	}

	tb := &fakeTB{TB: t}
	ended := make(chan struct{})
	go func() { // Fatalf ends the goroutine, as in a test
		defer close(ended)
		redistest.RunStandalone(tb, redistest.StandaloneConfig{})
	}()
	<-ended
	if !tb.failed || tb.skipped {
		t.Errorf("RunStandalone without redis-server: failed %v, skipped %v", tb.failed, tb.skipped)
	}
}

type fakeTB struct {
	testing.TB
	failed, skipped bool
}

func (f *fakeTB) Fatalf(string, ...any) { f.failed = true; runtime.Goexit() }
func (f *fakeTB) Skipf(string, ...any)  { f.skipped = true; runtime.Goexit() }

const orphanEnv = "REDISTEST_ORPHAN_PID_FILE"

// TestServerDiesWithAKilledParent starts this test binary again as a parent
// that is killed without a chance to call Stop.
func TestServerDiesWithAKilledParent(t *testing.T) {
	if file := os.Getenv(orphanEnv); file != "" {
		s, err := redistest.StartStandalone(context.Background(), redistest.StandaloneConfig{})
		must(t, err)
		// Were the server tied to the thread that called StartStandalone, the
		// end of that thread would kill it: see startChild.
		must(t, os.WriteFile(file+".tmp", []byte(strconv.Itoa(s.Pid())), 0o600))
		must(t, os.Rename(file+".tmp", file))
		select {}
	}
	if runtime.GOOS != "linux" {
		t.Log("only Linux ends a child with its parent")
		return
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "pid")
	parent := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	parent.Env = append(os.Environ(), orphanEnv+"="+file, "TMPDIR="+dir)
	must(t, parent.Start())
	t.Cleanup(func() {
		_ = parent.Process.Kill()
		_ = parent.Wait()
	})

	var pid int
	eventually(t, "the parent starts a server", func() bool {
		text, err := os.ReadFile(file)
		if err == nil {
			pid, err = strconv.Atoi(string(text))
		}
		return err == nil
	})
	must(t, parent.Process.Kill())
	eventually(t, "the server is gone", func() bool { return gone(pid) })
}

func TestServerOutlivesTheThreadThatAskedForIt(t *testing.T) {
	t.Parallel()
	started := make(chan *redistest.Server)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		s, err := redistest.StartStandalone(context.WithoutCancel(t.Context()), redistest.StandaloneConfig{})
		if err != nil {
			t.Error(err)
			close(started)
			return
		}
		started <- s
	}()
	s := <-started
	if s == nil {
		return
	}
	t.Cleanup(func() { _ = s.Stop() })
	c := s.Client()
	for range 20 {
		must(t, c.Ping(t.Context()).Err())
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		}
	}
}
