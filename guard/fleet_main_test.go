package guard_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func TestMain(m *testing.M) {
	fleet.Main()
	redis.SetLogger(quiet{})
	_ = flag.Set("test.parallel", "4") // see beside; the command line has the last word
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(launcher))
}

// quiet keeps the client's own log out of the tests, many of which cut its
// connections on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// launcher is the goroutine that starts servers and outlives them: the thread
// that starts a process must live as long as it.
const launcher = "github.com/stampedeguard/stampede/internal/harness/redistest.init.func1.1"

// The fleet tests run guards in real processes against real servers. They always
// count fetches strictly. The times and commands they measure depend on the
// machine. They are logged, and held to bounds that only a fault would exceed.
// STAMPEDE_BOUNDS=1 asks for the bounds themselves and for all rounds. That needs
// a quiet machine of two cores:
//
//	STAMPEDE_BOUNDS=1 go test ./guard -run TestFleet -v -timeout 30m
var bounds = os.Getenv("STAMPEDE_BOUNDS") == "1"

// lenient is the limit of a time without bounds: far more than a busy machine adds to it.
func lenient(bound time.Duration) time.Duration {
	if bounds {
		return bound
	}
	return max(10*bound, 5*time.Second)
}

// beside runs a test beside others that call it. Such a test waits for servers and processes
// most of its time, and bounds no time closely. With bounds it runs alone.
func beside(t *testing.T) {
	if !bounds {
		t.Parallel()
	}
}

// rounds is how often to repeat a measurement that a bound is checked on.
func rounds(usual, all int) int {
	if bounds {
		return all
	}
	return usual
}

// hangs is when a test stops to wait and fails.
const hangs = 30 * time.Second

// A fleetTest is a fleet on a server of its own.
type fleetTest struct {
	*testing.T
	*fleet.Fleet
	server *redistest.Server // nil on a cluster
	ctx    context.Context
	round  int
}

func fleetConfig(p guard.Policy) fleet.Config {
	if p.TTL == 0 {
		p.TTL = time.Minute
	}
	return fleet.Config{
		// A loaded machine, with the race detector on, may take long for an answer.
		// These tests are not about a Redis that is too slow for the fleet.
		Store:  cache.Options{Namespace: "ns", RedisTimeout: 5 * time.Second},
		Policy: p,
		Errors: []string{"boom"},
	}
}

func runFleet(t *testing.T, n int, p guard.Policy) *fleetTest {
	t.Helper()
	beside(t)
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	cfg := fleetConfig(p)
	cfg.Redis.Addrs = []string{s.Addr()}
	f := &fleetTest{T: t, Fleet: fleet.Run(t, n, cfg), server: s}
	f.begin()
	return f
}

func runFleetOnCluster(t *testing.T, n int, p guard.Policy) *fleetTest {
	t.Helper()
	beside(t)
	c := redistest.RunCluster(t, redistest.ClusterConfig{})
	cfg := fleetConfig(p)
	cfg.Redis = fleet.Redis{Addrs: c.Addrs(), Cluster: true}
	f := &fleetTest{T: t, Fleet: fleet.Run(t, n, cfg)}
	f.begin()
	return f
}

func (f *fleetTest) begin() {
	f.ctx = f.Context()
	for i, p := range f.Processes() { // connections, scripts
		f.get(p, fleet.Get{Keys: []string{fmt.Sprint("warm-up-", i)}})
	}
}

// newKey is a key for the next round. The log holds only events from this point on.
func (f *fleetTest) newKey() string {
	f.Log.Forget()
	f.round++
	return fmt.Sprint("key-", f.round)
}

func (f *fleetTest) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fleetTest) get(p *fleet.Process, g fleet.Get) []fleet.Outcome {
	f.Helper()
	return f.wait(p.Go(g))
}

func (f *fleetTest) wait(calls ...*fleet.Call) []fleet.Outcome {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, hangs)
	defer cancel()
	var all []fleet.Outcome
	for _, c := range calls {
		out, err := c.Wait(ctx)
		if err != nil {
			f.Fatalf("%v; events: %+v", err, f.Log.All(func(fleet.Event) bool { return true }))
		}
		all = append(all, out...)
	}
	return all
}

// everybody has all processes do the same Get.
func (f *fleetTest) everybody(g fleet.Get) []*fleet.Call {
	var calls []*fleet.Call
	for _, p := range f.Processes() {
		calls = append(calls, p.Go(g))
	}
	return calls
}

func (f *fleetTest) await(match func(fleet.Event) bool) fleet.Event {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, hangs)
	defer cancel()
	e, err := f.Log.Await(ctx, match)
	if err != nil {
		f.Fatalf("%v; there are %+v", err, f.Log.All(func(fleet.Event) bool { return true }))
	}
	return e
}

// by narrows a match to one process.
func by(p *fleet.Process, match func(fleet.Event) bool) func(fleet.Event) bool {
	return func(e fleet.Event) bool { return e.PID == p.PID() && match(e) }
}

// fetches returns the events of the fetches of key that began.
func (f *fleetTest) fetches(key string) []fleet.Event {
	return f.Log.All(fleet.Of(key, fleet.FetchBegan))
}

// stats returns the commands that each process has sent to Redis so far.
func (f *fleetTest) stats() map[*fleet.Process]fleet.Stats {
	f.Helper()
	all := map[*fleet.Process]fleet.Stats{}
	for _, p := range f.Processes() {
		var err error
		all[p], err = p.Stats(f.ctx)
		f.must(err)
	}
	return all
}

// A series holds the measured time of each round.
type series []time.Duration

// within logs the series and checks its median against typical and all of it
// against worst, leniently; zero is no bound.
func (s series) within(t *testing.T, what string, typical, worst time.Duration) {
	t.Helper()
	if len(s) == 0 {
		t.Errorf("%s: nothing measured", what)
		return
	}
	slices.Sort(s)
	median, last := s[len(s)/2], s[len(s)-1]
	t.Logf("%s: median %v, p90 %v, worst %v of %d", what,
		median.Round(10*time.Microsecond), s[len(s)*9/10].Round(10*time.Microsecond), last.Round(10*time.Microsecond), len(s))
	if typical > 0 && median > lenient(typical) {
		t.Errorf("%s: median %v, want at most %v", what, median, lenient(typical))
	}
	if worst > 0 && last > lenient(worst) {
		t.Errorf("%s: worst %v, want at most %v", what, last, lenient(worst))
	}
}

// lastReturn is when the last of all callers returned.
func lastReturn(outcomes []fleet.Outcome) (last time.Time) {
	for _, o := range outcomes {
		if o.LastReturn.After(last) {
			last = o.LastReturn
		}
	}
	return last
}

func callersOf(outcomes []fleet.Outcome) (n int) {
	for _, o := range outcomes {
		n += o.N
	}
	return n
}
