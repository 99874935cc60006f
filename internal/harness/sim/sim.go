package sim

import (
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/store"
)

// A Config selects the seeds and their features.
type Config struct {
	Seed uint64
	// Scripts are the directories of the scripts of packages redisstore and budget.
	Scripts [2]string
	// Overlay is the file that the test was built with through the -overlay flag
	// of the go command: it may replace scripts. Default none.
	Overlay string
	// Rules are those that are checked. Default all. A mutant's check names one, so
	// that a rule that looks into the server does not find the mutant before a rule
	// that looks at callers' results.
	Rules []string
	// Replay makes the same seed the same history. It sets the process's source of
	// random names, so a test that runs beside others cannot use it.
	Replay bool
}

// A Result is the outcome of one seed.
type Result struct {
	Trace      []string
	Violations []Violation
	Faults     map[string]int // that were injected, by their name
	Seen       map[string]int // rare things that were checked, by their name
	Steps      int
	Fetches    int
	Elapsed    time.Duration // in the bubble
}

// Run plays one seed.
//
// The same seed gives the same trace: each thing the scheduler lets happen comes
// at an instant of its own, and it waits until everything is quiet before the
// next. The names of processes are drawn from the seed ([Config.Replay]). Two
// other sources of randomness can't be seeded. The jitter of a waiter's next look is
// kept out: the look comes sooner than the jitter can reach. The jitter of a
// breaker's probes is not, so breakers open only in the seeds that are about them,
// and those seeds do not replay ([Replays]).
//
// The exceptions are goroutines that one event wakes at once in one process: which of them is
// the first caller of a shared read or flight, and which of their scripts go together. Go
// decides that, and select where two of its cases are ready. Most of their calls are sorted
// by content before the scheduler looks, and calls of a batch's flights at one
// instant are set apart (see steady). About one seed in seven gives another trace the second
// time, more on a busy machine.
func Run(t *testing.T, cfg Config) (r *Result) {
	w := &world{
		t: t, cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x57a3bede)),
		byName: map[string]*process{}, fetches: map[string]*fetch{}, renewals: map[string][]*fetch{}, tokens: map[string]string{}, named: map[string]int{}, held: map[any]time.Time{}, faults: map[string]int{}, sights: map[string]int{},
	}
	// A goroutine that is left and can't go on makes the bubble panic.
	defer func() {
		if p := recover(); p != nil {
			w.violate("leak", "the bubble did not end: %v", p)
		}
		r = &Result{
			Trace: w.history.lines, Violations: w.violations, Faults: w.faults, Seen: w.sights,
			Steps: w.step(), Fetches: len(w.fetches), Elapsed: w.elapsed,
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		if cfg.Replay {
			cryptotest.SetGlobalRandom(t, cfg.Seed)
		}
		w.run()
	})
	return r
}

// Replays reports whether a seed gives the same trace again.
func Replays(seed uint64) bool { return !slices.Contains(Features(seed), featureBreaker) }

// A world is one seed's.
type world struct {
	t        *testing.T
	cfg      Config
	rng      *rand.Rand
	plan     plan
	scripts  *scripts
	server   *redistest.Embedded // nil: there is a memory store
	memory   *cache.Memory
	admin    *redis.Client
	history  history
	clock    atomic.Int64 // steps
	healed   bool
	healedAt time.Time
	elapsed  time.Duration
	wg       sync.WaitGroup // callers

	processes  []*process
	ops        []*op
	held       map[any]time.Time // events that are delayed on purpose, until then
	thaws      []thaw
	violations []Violation
	faults     map[string]int
	sights     map[string]int
	book       book

	mu       sync.Mutex // guards the fields below
	byName   map[string]*process
	tokens   map[string]string // names in the trace
	named    map[string]int
	fetches  map[string]*fetch
	renewals map[string][]*fetch // by the value that they found to be good still
	running  []*fetch
	givenUp  []string // leases in a memory store, in this step
	news     []*fetch // started in this step
}

// A thaw is the end of a trouble that lasts.
type thaw struct {
	at time.Time
	do func()
}

func (w *world) say(format string, args ...any) { w.history.say(w.step(), format, args...) }

func (w *world) chance(permille int) bool { return permille > 0 && w.rng.IntN(1000) < permille }

// upTo is a time below d, in odd nanoseconds: timers that start at different
// steps never end at the same instant.
func (w *world) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(d)))/2*2 + 1
}

func (w *world) step() int { return int(w.clock.Load()) }

func (w *world) fault(name string) { w.faults[name]++ }

// seen counts the cases of a check, to show that there were some.
func (w *world) seen(name string) { w.sights[name]++ }

func (w *world) leaseOf(idempotencyKey string) string {
	b, _ := hex.DecodeString(idempotencyKey)
	if len(b) != store.TokenSize {
		return ""
	}
	return w.leaseToken(store.Token(b))
}

// leaseToken is a token as a string, empty if none of the fleet has drawn it:
// that of a fetch without a lease.
func (w *world) leaseToken(t store.Token) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byName[string(t[:8])] == nil {
		return ""
	}
	return string(t[:])
}

func without[T comparable](s []T, v T) []T {
	return slices.DeleteFunc(s, func(x T) bool { return x == v })
}

func (w *world) run() {
	w.plan = newPlan(w.rng)
	w.plan.add(w.cfg.Seed, w.rng)
	w.history.start = time.Now()
	w.say("seed %d: %s", w.cfg.Seed, w.plan.description)
	var err error
	if w.scripts, err = readScripts(w.cfg.Scripts, w.cfg.Overlay); err != nil {
		w.t.Fatal(err)
	}
	if w.plan.memory {
		w.memory, err = cache.NewMemory(cache.MemoryOptions{})
	} else if w.server, err = redistest.StartEmbeddedInMemory(); err == nil {
		w.admin = w.server.Client()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.book.init(w)
	w.loadExtend()
	for range w.plan.processes {
		w.newProcess()
	}
	w.quiet()
	for len(w.ops) < w.plan.ops && len(w.violations) == 0 {
		w.turn()
	}
	w.heal()
	w.settle()
	w.shutDown()
	w.elapsed = time.Since(w.history.start)
}
