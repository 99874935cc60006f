package sim_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/sim"
)

var (
	seed  = flag.Uint64("seed", 0, "play this seed alone and print its trace")
	first = flag.Uint64("first", 1, "the first of the seeds to play")
	seeds = flag.Uint64("seeds", manySeeds, "how many seeds to play")
	twice = flag.Bool("twice", false, "for worker processes: play each seed twice and compare the traces")

	with  = flag.String("with", "", "play only the seeds that have this `feature`")
	rules = flag.String("rules", "", "check only these `rules`, with commas between, in this process, until the first is broken")
)

var scriptsDirs = [2]string{"../../redisstore/lua", "../../../guard/budget/lua"}

// quiet keeps the client's own log out of the tests, which cut its connections
// on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// worker is set in the environment of the processes that play the seeds. Their
// runtime leaves as little as possible to chance: one processor, no preemption,
// no garbage collection while a seed is played.
const worker = "STAMPEDE_SIM_WORKER"

var calmRuntime = []string{worker + "=1", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1", "GOGC=off"}

func TestMain(m *testing.M) {
	flag.Parse()
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

// A tally is the counts of a worker.
type tally struct {
	Seeds, Steps, Fetches int
	Twice                 int // seeds that were played twice
	Elapsed               time.Duration
	Faults, Seen          map[string]int
	Different             []uint64 // seeds with another trace the second time
}

func (a *tally) add(b tally) {
	a.Seeds, a.Steps, a.Fetches, a.Elapsed = a.Seeds+b.Seeds, a.Steps+b.Steps, a.Fetches+b.Fetches, a.Elapsed+b.Elapsed
	a.Twice += b.Twice
	a.Different = append(a.Different, b.Different...)
	for k, n := range b.Faults {
		a.Faults[k] += n
	}
	for k, n := range b.Seen {
		a.Seen[k] += n
	}
}

// tallyMark starts the line of a worker's output that its tally follows.
const tallyMark = "tally: "

// config is that of a seed.
func config(s uint64) sim.Config {
	return sim.Config{Seed: s, Scripts: scriptsDirs, Overlay: os.Getenv("MUTANT_OVERLAY"), Rules: ruleNames(), Replay: true}
}

func ruleNames() []string {
	if *rules == "" {
		return nil
	}
	return strings.Split(*rules, ",")
}

// work is TestSim in a worker.
func work(t *testing.T) {
	sum := tally{Faults: map[string]int{}, Seen: map[string]int{}}
	for s, left := *first, *seeds; left > 0; s++ {
		if *seed != 0 {
			s = *seed
		}
		featured := *with == "" || slices.Contains(sim.Features(s), *with)
		if featured || *rules == "" { // the seeds of a mutant are counted, others are a range
			left--
		}
		if !featured {
			continue
		}
		r := sim.Run(t, config(s))
		for _, v := range r.Violations {
			t.Errorf("seed %d: %v", s, v)
		}
		if *rules != "" && len(r.Violations) > 0 {
			return
		}
		sum.add(tally{Seeds: 1, Steps: r.Steps, Fetches: r.Fetches, Elapsed: r.Elapsed, Faults: r.Faults, Seen: r.Seen})
		if *seed != 0 {
			t.Log(strings.Join(r.Trace, "\n"))
			return
		}
		if *twice && sim.Replays(s) {
			sum.Twice++
			runtime.GC()
			if again := sim.Run(t, config(s)); !slices.Equal(r.Trace, again.Trace) {
				sum.Different = append(sum.Different, s)
			}
		}
		if s%8 == 0 {
			debug.FreeOSMemory()
		}
	}
	b, err := json.Marshal(sum)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(tallyMark + string(b))
}

// play plays seeds in worker processes, one for each processor.
func play(t *testing.T, from, n uint64, flags ...string) tally {
	workers := uint64(max(1, runtime.NumCPU()))
	sum := tally{Faults: map[string]int{}, Seen: map[string]int{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range workers {
		begin, end := from+n*w/workers, from+n*(w+1)/workers
		if begin == end {
			continue
		}
		wg.Go(func() {
			out, err := workerProcess(t, append(flags, "-with="+*with, fmt.Sprintf("-first=%d", begin), fmt.Sprintf("-seeds=%d", end-begin))...)
			mu.Lock()
			defer mu.Unlock()
			told := false
			for line := range strings.Lines(out) {
				if rest, ok := strings.CutPrefix(line, tallyMark); ok {
					var one tally
					if jsonErr := json.Unmarshal([]byte(rest), &one); jsonErr != nil {
						t.Errorf("%v: %q", jsonErr, line)
					}
					sum.add(one)
					told = true
				}
			}
			if err != nil || !told {
				t.Errorf("seeds %d to %d: %v\n%s", begin, end-1, err, out)
			}
		})
	}
	wg.Wait()
	return sum
}

// workerProcess runs TestSim in a process of its own.
func workerProcess(t *testing.T, flags ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{"-test.run=^TestSim$", "-test.v=true"}, flags...)...)
	cmd.Env = append(os.Environ(), calmRuntime...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestSim plays seeds. One that fails is named, and played again by
//
//	go test ./internal/harness/sim -run Sim -seed=N -v
func TestSim(t *testing.T) {
	if os.Getenv(worker) != "" || *rules != "" {
		work(t)
		return
	}
	if *seed != 0 {
		out, err := workerProcess(t, fmt.Sprintf("-seed=%d", *seed))
		t.Log(out)
		if err != nil {
			t.Fail()
		}
		return
	}
	start := time.Now()
	sum := play(t, *first, *seeds)
	took := time.Since(start)
	t.Logf("%d seeds in %v (%.0f a second): %d steps, %d fetches, %v of fake time", sum.Seeds, took.Round(time.Millisecond),
		float64(sum.Seeds)/took.Seconds(), sum.Steps, sum.Fetches, sum.Elapsed.Round(time.Second))
	sum.mustSaySomething(t)
}

// mustSaySomething fails the test if many seeds had nothing of a kind to check.
func (a *tally) mustSaySomething(t *testing.T) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(a.Faults)) {
		t.Logf("%6d %s", a.Faults[k], k)
	}
	for _, k := range sim.Sights {
		t.Logf("%6d %s", a.Seen[k], k)
		if a.Seeds >= 400 && a.Seen[k] == 0 && *with == "" {
			t.Errorf("%d seeds had no %s: there was nothing to check", a.Seeds, k)
		}
	}
}
