package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard/budget"
)

// budgetName is that of the one upstream.
const budgetName = "upstream"

// pay has fetches paid from a budget that is often exhausted.
func (p *plan) pay(rng *rand.Rand) {
	p.budget = true
	p.limit = budget.Limit{Rate: pick(rng, 4, 15, 50), Per: time.Second, Burst: pick(rng, 1, 3, 6), MaxInFlight: pick(rng, 0, 0, 2)}
	p.policy.MaxBudgetWait = pick(rng, 0, 0, 0, 150*ms)
}

// newBudget makes a process's budget, which has a network of its own.
func (w *world) newBudget(p *process) *budget.Budget {
	n := w.newNetwork(p)
	b, err := budget.New(n.client, budgetName, w.plan.limit, budget.Options{Namespace: "ns", RedisTimeout: w.plan.redisTimeout, Observer: &p.allowance})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// An allowance is the units that a process was granted by Redis, and their use.
type allowance struct {
	granted, used int // calls of the fetch; guarded by the scheduler

	mu   sync.Mutex
	away bool // Redis was away once: the process has spent from its own share
}

// Observe implements [cache.Observer].
func (a *allowance) Observe(e cache.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = a.away || e.Kind == cache.BudgetAway
}

func (a *allowance) wasAway() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.away
}

// A bucket is the upstream's limit as it is meant to be: it leaks at the rate, and
// no grant fills it above the burst, but for the units that leak in the time that a
// grant may lie ahead.
type bucket struct {
	level float64
	at    time.Time
}

// ahead is how far ahead of its time a call may be granted.
const ahead = 20 * ms

func (b *bucket) leak(rate float64) {
	now := time.Now()
	if !b.at.IsZero() {
		b.level = math.Max(0, b.level-now.Sub(b.at).Seconds()*rate)
	}
	b.at = now
}

// paid takes in the effect of a script of the budget.
func (b *book) paid(w *world, m *command) {
	p, limit := m.c.n.owner, w.plan.limit
	rate := float64(limit.Rate) / limit.Per.Seconds()
	number := func(i int) float64 {
		x, err := strconv.ParseFloat(m.arg(i), 64)
		if err != nil {
			w.t.Errorf("sim: argument %d of %s: %v", i, m.name, err)
		}
		return x
	}
	switch {
	case m.is("spend") && m.reply().([]any)[0] == int64(0):
		p.allowance.granted++
		b.bucket.leak(rate)
		cost := number(1)
		over := b.bucket.level + math.Min(cost, float64(limit.Burst)) - float64(limit.Burst)
		if over > rate*ahead.Seconds()+1e-6 {
			w.violate("budget", "p%d was granted %v with %v spent of %d", p.id, cost, b.bucket.level, limit.Burst)
		}
		b.bucket.level += cost
		w.seen("paid fetch")
	case m.is("spend"):
		w.seen("exhausted budget")
	case m.is("settle"):
		b.bucket.leak(rate)
		b.bucket.level = math.Max(0, b.bucket.level-number(3)) + number(1)
	}
	if slots, err := w.server.ZMembers("budget:{" + budgetName + "}:inflight"); limit.MaxInFlight > 0 && err == nil && len(slots) > limit.MaxInFlight {
		w.violate("budget", "%d calls are under way, and %d are allowed", len(slots), limit.MaxInFlight)
	}
}

// spent checks that a call of the fetch, which starts now, was paid for.
func (b *book) spent(w *world, f *fetch) {
	a := &f.op.p.allowance
	if !w.plan.budget || f.first != nil || a.wasAway() {
		return
	}
	if a.used++; a.used > a.granted {
		w.violate("budget", "fetch %s is the call number %d of p%d, which was granted %d", f.name, a.used, f.op.p.id, a.granted)
	}
	if most := w.plan.limit.MaxInFlight; most > 0 && w.plan.calm {
		w.mu.Lock()
		running := 0
		for _, other := range w.running {
			if other.first == nil {
				running++
			}
		}
		w.mu.Unlock()
		if running > most {
			w.violate("budget", "%d calls run, and %d are allowed", running, most)
		}
	}
}

// exhausted checks that a lease that was given back for want of a budget takes
// nothing of the key's record with it but its own attempt.
func (b *book) exhausted(w *world, m *command, before, after content) {
	if !w.plan.budget || !m.is("fail") || m.reply() != int64(1) || !strings.Contains(m.arg(1), "guard:exhausted") {
		return
	}
	w.seen("exhausted grant")
	for _, try := range before.tries {
		if try != m.token && !slices.Contains(after.tries, try) {
			w.violate("exhausted", "%s made no fetch, and the attempt %s is forgotten", m.c.label, w.tokenName(try))
		}
	}
}
