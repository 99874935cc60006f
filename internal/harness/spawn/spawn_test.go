package spawn_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

func TestMain(m *testing.M) {
	spawn.Main("echo", echo)
	os.Exit(m.Run())
}

// echo is a child that repeats its messages, but for some words.
func echo(parent *spawn.Parent) error {
	for {
		var word string
		if err := parent.Hear(&word); err != nil {
			return err
		}
		switch word {
		case "end":
			return nil
		case "fail":
			return errors.New("failed")
		case "gibberish":
			parent.TellRaw([]byte("{\n"))
		default:
			parent.Tell(word)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, hear func(*string)) *spawn.Process {
	t.Helper()
	p, err := spawn.Start("echo", spawn.Lines(hear))
	must(t, err)
	t.Cleanup(func() { must(t, p.Kill()) })
	return p
}

func TestAnswerOfAnEndedChildIsKept(t *testing.T) {
	t.Parallel()
	answers := make(chan string, 1)
	p := start(t, func(word *string) { answers <- *word })
	p.Tell("last word")
	p.Tell("end")
	must(t, p.Wait(t.Context()))
	for range 20 { // a choice between the answer and the end would lose it
		word, err := spawn.Await(t.Context(), p, answers)
		must(t, err)
		answers <- word
	}
	if last := <-answers; last != "last word" {
		t.Errorf("got %q", last)
	}
	if _, err := spawn.Await(t.Context(), p, answers); !errors.Is(err, spawn.ErrDied) {
		t.Errorf("without an answer: %v, want ErrDied", err)
	}
}

func TestHowAChildEndedIsTold(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"end": "", "fail": "echo: failed"} {
		p := start(t, func(*string) {})
		if err := p.Died(); err != nil {
			t.Errorf("%s: a child that runs: %v", word, err)
		}
		p.Tell(word)
		err := p.Wait(t.Context())
		switch {
		case want == "" && (err != nil || p.Complaint() != nil):
			t.Errorf("%s: %v, %v", word, err, p.Complaint())
		case want != "" && (!errors.Is(err, spawn.ErrDied) || !strings.Contains(p.Complaint().Error(), want)):
			t.Errorf("%s: %v, %v", word, err, p.Complaint())
		}
	}
	killed := start(t, func(*string) {})
	must(t, killed.Kill())
	must(t, killed.Kill())
	killed.Tell("in vain")
	if err := killed.Wait(t.Context()); !errors.Is(err, spawn.ErrDied) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("killed: %v", err)
	}
}

func TestLinesAreHeardBesideGibberish(t *testing.T) {
	t.Parallel()
	var heard []string
	p := start(t, func(word *string) { heard = append(heard, *word) })
	for _, word := range []string{"one", "gibberish", "two"} {
		p.Tell(word)
	}
	must(t, p.CloseInput())
	if err := p.Wait(t.Context()); !strings.Contains(fmt.Sprint(err), "exit status 1") {
		t.Errorf("the parent hung up: %v", err)
	}
	if len(heard) != 2 || heard[1] != "two" || !strings.Contains(fmt.Sprint(p.Complaint()), "the child wrote") {
		t.Errorf("heard %q, complaint: %v", heard, p.Complaint())
	}
}

const orphanEnv = "SPAWN_ORPHAN_PID_FILE"

// TestChildrenDieWithAKilledParent starts this test binary again as a parent
// that is killed: of its two children one is frozen.
func TestChildrenDieWithAKilledParent(t *testing.T) {
	if file := os.Getenv(orphanEnv); file != "" {
		frozen, other := start(t, func(*string) {}), start(t, func(*string) {})
		must(t, frozen.Stop())
		pids := fmt.Sprint(frozen.PID(), " ", other.PID())
		must(t, os.WriteFile(file+".tmp", []byte(pids), 0o600))
		must(t, os.Rename(file+".tmp", file))
		select {}
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a frozen child with its parent")
	}
	file := filepath.Join(t.TempDir(), "pids")
	parent := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	parent.Env = append(os.Environ(), orphanEnv+"="+file)
	must(t, parent.Start())
	defer parent.Wait() //nolint:errcheck // it was killed
	defer func() { _ = parent.Process.Kill() }()
	var pids []string
	eventually(t, "the parent starts children", func() bool {
		text, err := os.ReadFile(file)
		pids = strings.Fields(string(text))
		return err == nil
	})
	must(t, parent.Process.Kill())
	for _, pid := range pids {
		eventually(t, "child "+pid+" is gone", func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ") // process 1 may reap nothing
		})
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
