package fleet_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func TestMain(m *testing.M) {
	fleet.Main()
	os.Exit(m.Run())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func config(addr string) fleet.Config {
	return fleet.Config{
		Redis:  fleet.Redis{Addrs: []string{addr}},
		Store:  cache.Options{Namespace: "ns", RedisTimeout: 5 * time.Second},
		Policy: guard.Policy{TTL: time.Minute},
		Errors: []string{"boom"},
	}
}

// run starts n children on a server of their own.
func run(t *testing.T, n int) (*fleet.Fleet, *redistest.Server) {
	t.Helper()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	return fleet.Run(t, n, config(s.Addr())), s
}

func TestCallersAreGroupedByTheirResult(t *testing.T) {
	t.Parallel()
	f, _ := run(t, 1)
	p := f.Processes()[0]
	out, err := p.Get(t.Context(), fleet.Get{
		Keys: []string{"a", "b"}, Callers: 10, Fetch: fleet.Fetch{Value: "v", Size: 1000},
	})
	must(t, err)
	n := 0
	for _, o := range out {
		n += o.N
		if !strings.HasPrefix(o.Value, "v.") || o.Size != 1000 || o.Err != nil || o.LastReturn.Before(o.FirstCall) {
			t.Errorf("got %+v", o)
		}
	}
	if n != 10 {
		t.Errorf("%d callers have an outcome, want 10", n)
	}
	peeked, err := p.Peek(t.Context(), "b")
	must(t, err)
	if peeked.Size != 1000 || peeked.Stale {
		t.Errorf("Peek: %+v", peeked)
	}
}

func TestEventsOfAFetchArriveWhileItRuns(t *testing.T) {
	t.Parallel()
	f, _ := run(t, 1)
	p := f.Processes()[0]
	before := time.Now()
	p.Go(fleet.Get{Keys: []string{"k"}, Fetch: fleet.Fetch{Hang: true}})
	e, err := f.Log.Await(t.Context(), fleet.Of("k", fleet.FetchBegan))
	must(t, err)
	if e.PID != p.PID() || e.Attempt != 1 || len(e.Token) != 32 || e.At.Before(before) || e.At.After(time.Now()) {
		t.Errorf("got %+v", e)
	}
}

func TestErrorsKeepTheirIdentityInTheParent(t *testing.T) {
	t.Parallel()
	f, _ := run(t, 1)
	p := f.Processes()[0]
	out, err := p.Get(t.Context(), fleet.Get{Keys: []string{"k"}, Fetch: fleet.Fetch{Fail: "boom"}})
	must(t, err)
	if !errors.Is(out[0].Err, fleet.Sentinel("boom")) || errors.Is(out[0].Err, fleet.Sentinel("other")) {
		t.Errorf("got %+v", out[0].Err)
	}
	if _, err := p.Peek(t.Context(), "nothing"); !errors.Is(err, guard.ErrMiss) {
		t.Errorf("Peek: %v, want ErrMiss", err)
	}
	out, err = p.Get(t.Context(), fleet.Get{
		Keys: []string{"slow"}, Timeout: time.Millisecond, Fetch: fleet.Fetch{Duration: time.Hour},
	})
	must(t, err)
	if !errors.Is(out[0].Err, context.DeadlineExceeded) || out[0].Overrun <= 0 {
		t.Errorf("got %+v, want the end of its context", out[0])
	}
}

// The child counts on the wire the same commands as the server executes: SUBSCRIBE
// and PING on the subscribed connection, and those of pipelines, included.
func TestCommandsAreCountedOnTheWire(t *testing.T) {
	t.Parallel()
	f, s := run(t, 1)
	p := f.Processes()[0]
	_, err := p.Get(t.Context(), fleet.Get{Keys: []string{"a", "b", "c"}, Callers: 30, Fetch: fleet.Fetch{Size: 100 << 10}})
	must(t, err)
	time.Sleep(600 * time.Millisecond) // a PING of the subscription
	stats, err := p.Stats(t.Context())
	must(t, err)
	server, err := s.Commands(t.Context())
	must(t, err)
	for _, name := range []string{"subscribe", "ping", "evalsha", "pttl"} {
		n := int64(stats.Commands[name])
		byScripts := name == "pttl" && n < server[name] // the server counts those, too
		if n == 0 || n != server[name] && !byScripts {
			t.Errorf("%s: counted %d, the server %d", name, n, server[name])
		}
	}
	if stats.Total() < 10 || stats.Commands["hello"] == 0 || stats.Goroutines == 0 {
		t.Errorf("got %+v", stats)
	}
}

func TestCallsToADeadChildFail(t *testing.T) {
	t.Parallel()
	f, _ := run(t, 2)
	p, other := f.Processes()[0], f.Processes()[1]
	_, err := p.Get(t.Context(), fleet.Get{Keys: []string{"k"}, Fetch: fleet.Fetch{Exit: 3}})
	if !errors.Is(err, fleet.ErrDied) || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a call under way: %v", err)
	}
	if _, err := p.Stats(t.Context()); !errors.Is(err, fleet.ErrDied) {
		t.Errorf("a later call: %v", err)
	}
	must(t, p.Kill())
	if all := f.Processes(); len(all) != 1 || all[0] != other {
		t.Errorf("%d processes are left, want one", len(all))
	}
}

func TestClosedChildEndsInOrder(t *testing.T) {
	t.Parallel()
	f, _ := run(t, 1)
	p := f.Processes()[0]
	call := p.Go(fleet.Get{Keys: []string{"k"}, Fetch: fleet.Fetch{Duration: time.Hour}})
	_, err := f.Log.Await(t.Context(), fleet.Of("k", fleet.FetchBegan))
	must(t, err)
	must(t, p.Close(t.Context()))
	out, err := call.Wait(t.Context())
	must(t, err)
	if !errors.Is(out[0].Err, guard.ErrClosed) {
		t.Errorf("got %+v, want ErrClosed", out[0])
	}
}

func TestFrozenChildAnswersWhenThawed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGSTOP")
	}
	f, _ := run(t, 1)
	p := f.Processes()[0]
	must(t, p.Stop())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Stats(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen child: %v", err)
	}
	must(t, p.Cont())
	_, err := p.Stats(t.Context())
	must(t, err)
}
