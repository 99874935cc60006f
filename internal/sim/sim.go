package sim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// A Config says what to run. The fields that are not the seed are for mutants,
// which show that the checks can fail.
type Config struct {
	Seed uint64
	// Scripts is the directory of package cache's scripts.
	Scripts string

	// Lua rewrites scripts, by their name.
	Lua map[string]func(source string) string
	// Wrap puts something between each guard and its store.
	Wrap func(cache.Store) cache.Store
	// Share lets all callers of a key in a process share whatever call is under
	// way: the guard without its sharing rule.
	Share bool
	// Replay makes the same seed the same history, which a test that runs beside
	// others can't: it sets the process's source of random names.
	Replay bool
	// Outside leaves only the rules that look at what callers get, so that a
	// mutant isn't found by a look into the server.
	Outside bool
}

// A Result is what came of one seed.
type Result struct {
	Trace      []string
	Violations []Violation
	Faults     map[string]int // that were injected, by their name
	Steps      int
	Fetches    int
	Elapsed    time.Duration // in the bubble
}

// Run plays one seed.
//
// The same seed gives the same trace: each thing the scheduler lets happen comes
// at an instant of its own, and it waits until everything is quiet before the
// next. The names of processes are drawn from the seed ([Config.Replay]). Two
// other sources of randomness can't be seeded, and are kept out: the jitter of a
// waiter's next look (the look comes sooner than the jitter can reach) and that
// of a breaker's probes (the breakers don't open here; the tests of package cache
// have them). What remains are goroutines that one event wakes at once in one
// process, and Go's select where two of its cases are ready: what they do is
// sorted by its content before the scheduler looks.
func Run(t *testing.T, cfg Config) (r *Result) {
	w := &world{
		t: t, cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x57a3bede)),
		byName: map[string]*process{}, fetches: map[string]*fetch{}, tokens: map[string]string{}, named: map[string]int{}, held: map[any]time.Time{}, faults: map[string]int{},
	}
	// A goroutine that is left and can't go on makes the bubble panic.
	defer func() {
		if p := recover(); p != nil {
			w.violate("leak", "the bubble did not end: %v", p)
		}
		r = &Result{
			Trace: w.history.lines, Violations: w.violations, Faults: w.faults,
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

// A world is one seed's.
type world struct {
	t       *testing.T
	cfg     Config
	rng     *rand.Rand
	plan    plan
	scripts *scripts
	server  *redistest.Embedded
	admin   *redis.Client
	history history
	clock   atomic.Int64 // steps
	healed  bool
	elapsed time.Duration
	wg      sync.WaitGroup // callers

	processes  []*process
	ops        []*op
	held       map[any]time.Time // what is delayed on purpose, until then
	thaws      []thaw
	violations []Violation
	faults     map[string]int
	book       book

	mu      sync.Mutex // guards what goroutines touch
	byName  map[string]*process
	tokens  map[string]string // names in the trace
	named   map[string]int
	fetches map[string]*fetch
	running []*fetch
	news    []*fetch // started in this step
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

func (w *world) leaseOf(idempotencyKey string) string {
	b, _ := hex.DecodeString(idempotencyKey)
	if len(b) != cache.TokenSize {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byName[string(b[:8])] == nil {
		return "" // without a lease
	}
	return string(b)
}

func without[T comparable](s []T, v T) []T {
	return slices.DeleteFunc(s, func(x T) bool { return x == v })
}

func (w *world) run() {
	w.plan = newPlan(w.rng)
	w.history.start = time.Now()
	w.say("seed %d: %s", w.cfg.Seed, w.plan.description)
	var err error
	if w.scripts, err = readScripts(w.cfg.Scripts, w.cfg.Lua); err != nil {
		w.t.Fatal(err)
	}
	if w.server, err = redistest.StartEmbeddedInMemory(); err != nil {
		w.t.Fatal(err)
	}
	w.admin = w.server.Client()
	w.book.init()
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

// turn is one iteration of the scheduler.
func (w *world) turn() {
	w.pass(w.upTo(200 * time.Microsecond))
	w.thaw()
	switch {
	case w.chance(w.plan.trouble):
		w.makeTrouble()
	case w.chance(w.plan.impatience * 10):
		w.pass(w.upTo(pick(w.rng, 3*ms, 30*ms, w.spell())))
	case len(w.ops) < w.plan.ops && w.active() < 12 && w.rng.IntN(4) == 0:
		w.newOp()
	default:
		w.next()
	}
}

// spell is the longest time that may pass while something could go on.
func (w *world) spell() time.Duration {
	if w.plan.calm || w.healed {
		return 30 * ms
	}
	return 300 * ms
}

func (w *world) active() int {
	n := 0
	for _, o := range w.ops {
		if !o.forgotten && !w.done(o) {
			n++
		}
	}
	return n
}

func (w *world) newOp() {
	var up []*process
	for _, p := range w.processes {
		if p.up() {
			up = append(up, p)
		}
	}
	if len(up) == 0 {
		w.revive()
		return
	}
	k := get
	if n := w.rng.IntN(100); n < w.plan.changing {
		k = pick(w.rng, set, del, del, expire, reset)
	} else if n > 95 {
		k = peek
	}
	w.clock.Add(1)
	w.startOp(up[w.rng.IntN(len(up))], k, "k"+strconv.Itoa(w.rng.IntN(w.plan.keys)))
	w.quiet()
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	w.clock.Add(1)
	time.Sleep(d)
	w.quiet()
}

// quiet waits until nothing can go on by itself, and takes note of what has.
func (w *world) quiet() {
	synctest.Wait()
	for w.beat() {
		synctest.Wait()
	}
	w.history.settle()
	w.noticeProcesses()
	w.noticeFetches()
	w.noticeReturns()
}

// beat lets signs of life through.
func (w *world) beat() bool {
	some := false
	for _, p := range w.processes {
		if l := p.n.live(); l != nil && w.reachable(p) {
			some = l.beat() || some
		}
	}
	return some
}

func (w *world) reachable(p *process) bool {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	return !p.frozen && !p.crashed && p.n.weather != swallow
}

// An event is something that the scheduler can let happen.
type event struct {
	id      any // stays the same while it is possible
	do      func()
	message bool // a wake-up
}

type phase struct {
	of any
	n  int
}

// eligible lists what can happen now, in an order that depends on nothing but
// what has happened.
func (w *world) eligible() []event {
	var all []event
	for _, p := range w.processes {
		for _, c := range p.n.pending() {
			switch state := p.n.stateOf(c); {
			case state == ghost:
				all = append(all, event{phase{c, int(ghost)}, func() { w.late(c) }, false})
			case !w.reachable(p):
			case state == waiting:
				all = append(all, event{phase{c, int(waiting)}, func() { w.request(c) }, false})
			case state == executed:
				all = append(all, event{phase{c, int(executed)}, func() { w.answer(c) }, false})
			}
		}
		if l := p.n.live(); l != nil && w.reachable(p) {
			out, in, sent, received := l.heads()
			if out != nil {
				all = append(all, event{phase{l, sent << 1}, func() { w.subscribe(p, l, *out) }, false})
			}
			if in != nil {
				all = append(all, event{phase{l, received<<1 | 1}, func() { w.message(p, l, *in) }, in.what == "message"})
			}
		}
	}
	for _, f := range w.runs() {
		if !f.op.p.frozen && !time.Now().Before(f.ready) {
			all = append(all, event{f, func() { w.endFetch(f) }, false})
		}
	}
	return slices.DeleteFunc(all, func(e event) bool {
		until, delayed := w.held[e.id]
		return delayed && time.Now().Before(until)
	})
}

// runs lists the fetches that run, by name.
func (w *world) runs() []*fetch {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.running)
	slices.SortFunc(all, func(a, b *fetch) int {
		if a.op.id != b.op.id {
			return a.op.id - b.op.id
		}
		return len(a.name)*1000 - len(b.name)*1000 + compare(a.name, b.name)
	})
	return all
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// next lets one of the possible events happen. Where there is none, time passes
// until there is.
func (w *world) next() {
	for d := ms; ; d = min(2*d, 16*ms) {
		all := w.eligible()
		if len(all) == 0 {
			w.pass(w.upTo(d))
			w.thaw()
			if d == 16*ms {
				return
			}
			continue
		}
		e := all[w.rng.IntN(len(all))]
		chance := w.plan.delay
		if e.message {
			chance = w.plan.delayMessage
		}
		if _, delayed := w.held[e.id]; !delayed && !w.healed && w.chance(chance) {
			w.held[e.id] = time.Now().Add(w.upTo(pick(w.rng, 20*ms, 100*ms, 400*ms)))
			return
		}
		w.clock.Add(1)
		e.do()
		w.quiet()
		return
	}
}

// request carries a command out, or loses it.
func (w *world) request(c *call) {
	if !w.healed && w.chance(w.plan.loseRequest) {
		w.fault("request lost")
		w.say("p%d: %s is lost on its way", c.n.proc, c.label)
		c.request <- errCut
		return
	}
	w.carryOut(c, func() { c.request <- nil })
}

// late carries out a command that its client has given up.
func (w *world) late(c *call) {
	c.n.mu.Lock()
	c.n.calls = without(c.n.calls, c)
	c.n.mu.Unlock()
	if !w.healed && w.rng.IntN(2) == 0 {
		return // it never arrives
	}
	w.fault("request late")
	w.carryOut(c, func() {
		for _, cmd := range c.cmds {
			_ = w.admin.Process(context.Background(), cmd)
		}
	})
}

func (w *world) carryOut(c *call, do func()) {
	before := w.book.look(w)
	do()
	synctest.Wait()
	w.say("p%d: %s is carried out: %s", c.n.proc, c.label, w.replyOf(c))
	w.book.carriedOut(w, c, before, w.book.look(w))
}

// answer delivers an answer, or loses it.
func (w *world) answer(c *call) {
	if !w.healed && w.chance(w.plan.loseAnswer) {
		w.fault("answer lost")
		w.say("p%d: the answer of %s is lost", c.n.proc, c.label)
		c.answer <- errCut
		return
	}
	w.say("p%d: the answer of %s arrives", c.n.proc, c.label)
	c.answer <- nil
}

func (w *world) replyOf(c *call) string {
	if c.is("get") {
		var all []string
		c.n.mu.Lock()
		defer c.n.mu.Unlock()
		for _, cmd := range c.cmds {
			if get, ok := cmd.(*redis.StringCmd); ok && get.Err() == nil {
				e, _ := cache.ParseEntry([]byte(get.Val()))
				all = append(all, fmt.Sprintf("%v %q by %s", e.Kind, e.Payload, w.tokenName(string(e.Version[:]))))
			}
		}
		slices.Sort(all)
		return fmt.Sprintf("%d found %s", len(all), strings.Join(all, ", "))
	}
	if len(c.cmds) > 1 {
		return "" // in the order of a map
	}
	switch v := c.reply().(type) {
	case nil:
		return "no reply"
	case []any:
		text := fmt.Sprint(v[0])
		switch text {
		case "held":
			text += " by " + w.tokenName(v[1].(string)) + fmt.Sprintf(", unwatched %v", v[3])
		case "granted":
			text += fmt.Sprintf(", taken over %v, tries %v", v[1], v[2])
		}
		return text
	default:
		return fmt.Sprint(v)
	}
}

func (w *world) subscribe(p *process, l *wire, what parcel) {
	w.say("p%d: its %s is carried out", p.id, what.what)
	l.send()
}

func (w *world) message(p *process, l *wire, what parcel) {
	lose := what.what == "message" && !w.healed && w.chance(w.plan.loseMessage)
	text := what.what
	if what.what == "message" && len(what.parts) == 3 {
		if m, err := cache.ParseMessage([]byte(what.parts[2])); err == nil {
			text = fmt.Sprintf("message %v on %s", m.Signal, what.parts[1])
		}
	}
	if lose {
		w.fault("message lost")
		w.say("p%d: %s is lost", p.id, text)
	} else {
		w.say("p%d: %s arrives", p.id, text)
	}
	l.receive(lose)
}

func (w *world) endFetch(f *fetch) {
	w.say("fetch %s may end, %v", f.name, f.ending)
	f.ready = f.began.Add(1000 * time.Hour)
	close(f.finish)
}

// heal ends all trouble: from now on everything that is sent arrives.
func (w *world) heal() {
	w.clock.Add(1)
	w.say("everything heals")
	w.healed = true
	for _, th := range w.thaws {
		th.do()
	}
	w.thaws = nil
	clear(w.held)
	w.quiet()
}

// patience is for what must happen once everything is well.
const patience = 2 * time.Minute

// until runs the scheduler until the condition holds, or for too long.
func (w *world) until(met func() bool) bool {
	for end := time.Now().Add(patience); !met(); {
		if time.Now().After(end) {
			return false
		}
		w.pass(w.upTo(50 * time.Microsecond))
		w.next()
	}
	return true
}

// settle waits for all callers, and until the guards are at rest.
func (w *world) settle() {
	if !w.until(func() bool { return w.active() == 0 }) {
		for _, o := range w.ops {
			if !o.forgotten && !w.done(o) {
				w.violate("P4 returns", "%v (%v of %s in p%d) has not returned after %v without trouble", o, o.kind, o.key, o.p.id, patience)
			}
		}
	}
	atRest := func(p *process) bool {
		t := p.tokens()
		return p.flying() == 0 && t[0]+t[1]+t[2]+t[3] == 0
	}
	if !w.until(func() bool {
		for _, p := range w.processes {
			if p.up() && !atRest(p) {
				return false
			}
		}
		return true
	}) {
		for _, p := range w.processes {
			if p.up() && !atRest(p) {
				w.violate("leak", "p%d at rest has %d flights, and tokens %v by state", p.id, p.flying(), p.tokens())
			}
		}
	}
}

// shutDown closes everything in order and looks what is left.
func (w *world) shutDown() {
	for _, p := range w.processes {
		if p.up() {
			w.clock.Add(1)
			w.say("p%d leaves in order", p.id)
			p.close()
			w.quiet()
		}
	}
	if !w.until(func() bool {
		return !slices.ContainsFunc(w.processes, func(p *process) bool { return !p.isClosed() })
	}) {
		w.violate("leak", "a process can't be closed")
	}
	w.mu.Lock()
	for _, f := range w.running {
		f.ready = f.began
	}
	w.mu.Unlock()
	w.until(func() bool { return len(w.eligible()) == 0 })
	w.book.closed(w)
	for _, o := range w.ops {
		o.cancel()
	}
	for _, p := range w.processes {
		if !p.crashed {
			_ = p.n.mortal()
		}
		_ = p.c.Close()
	}
	w.wg.Wait()
	time.Sleep(time.Minute) // what the clients have under way ends
	if err := errors.Join(w.admin.Close(), w.server.Stop()); err != nil {
		w.violate("leak", "%v", err)
	}
}
