package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
)

// A plan is what a seed says before anything happens.
type plan struct {
	processes, keys, ops int
	calm                 bool // nothing goes wrong, and nothing takes long
	tagged               bool // values carry tags: see tagsOf
	many                 bool // some callers ask for several keys at once
	unread, refresh      bool // see Features
	turns                bool // see Features
	breakers             bool // see Features
	budget, memory       bool // see Features
	limit                budget.Limit

	policy       guard.Policy
	redisTimeout time.Duration
	readTimeout  time.Duration // the client's
	poll         time.Duration // at most this between two looks, see [Run]

	// Chances for a thousand.
	loseRequest, loseAnswer, loseMessage int // when it is its turn
	delay, delayMessage                  int // be it a request, an answer or the end of a fetch; a wake-up
	trouble                              int // at any step, one of those below
	troubles                             []trouble

	longest     time.Duration // a fetch takes up to this
	failing     int           // percent of fetches that fail in some way
	private     int           // percent whose value is private
	bounded     int           // percent of calls with a deadline
	changing    int           // percent of calls that change the key
	impatience  int           // percent of steps that let time pass while something could go on
	stubborn    int           // percent of fetches that don't heed their context
	hanging     int           // percent that never end by themselves
	description string
}

type trouble byte

const (
	crash trouble = iota
	freeze
	cutSubscription
	evictLease
	flushScripts
	badWeather
	leaveInOrder
	troubleKinds
)

func (t trouble) String() string {
	return [...]string{"crash", "freeze", "cut subscription", "evict lease", "flush scripts", "bad weather", "leave in order"}[t]
}

// tagsOf are what the values of a key carry: a tag of its own, and one of all.
func tagsOf(key string) []string { return []string{"of " + key, "of all"} }

// tag makes the values carry tags. It draws nothing, so that a seed is what it
// would be without.
func (p *plan) tag() {
	p.tagged = true
	p.description += "; tags"
}

// Features names what some seeds have and others do not, for checks that need it.
func Features(seed uint64) []string {
	var all []string
	switch seed % 4 {
	case 0:
		all = append(all, featureUnread)
	case 1:
		all = append(all, featureMany)
	}
	if seed%4 == 3 || seed%8 == 5 {
		all = append(all, featureTags)
	}
	rng := rand.New(rand.NewPCG(seed, 0xfea7)) // of its own, so that the plan is as without
	for _, f := range []struct {
		name     string
		permille int
	}{{featureNear, 300}, {featureRefresh, 300}, {featureSoft, 200}, {featureBreaker, 120}, {featureBudget, 120}, {featureMemory, 120}, {featureTurns, 250}} {
		if rng.IntN(1000) < f.permille {
			all = append(all, f.name)
		}
	}
	if slices.Contains(all, featureMemory) { // a store without Redis, and so without what needs one
		all = slices.DeleteFunc(all, func(name string) bool { return name == featureBreaker || name == featureBudget })
	}
	return all
}

const (
	featureUnread  = "unread"  // each Get foresees a miss, and asks for its lease unread
	featureMany    = "many"    // some callers ask for several keys at once
	featureTags    = "tags"    // values carry tags: see tagsOf
	featureNear    = "near"    // guards have a near cache
	featureRefresh = "refresh" // some callers call Reload
	featureSoft    = "soft"    // a call gets a stale value when its fetch takes long
	featureBudget  = "budget"  // fetches are paid from a guard/budget
	featureMemory  = "memory"  // the store is a cache.Memory
	featureTurns   = "turns"   // some callers fetch in steps of their own, with a guard.Turn
	featureBreaker = "breaker" // breakers open after two timeouts in a row, and Redis goes away often
)

// add gives the plan what the seed has.
func (p *plan) add(seed uint64, rng *rand.Rand) {
	features := Features(seed)
	has := func(feature string) bool { return slices.Contains(features, feature) }
	p.unread, p.refresh, p.turns = has(featureUnread), has(featureRefresh), has(featureTurns)
	if has(featureTags) {
		p.tag()
	}
	if has(featureMany) {
		p.batch(rng)
	}
	if has(featureNear) {
		p.near(rng)
	}
	if has(featureSoft) {
		p.soft(rng)
	}
	if has(featureBreaker) {
		p.outages(rng)
	}
	if has(featureBudget) {
		p.pay(rng)
	}
	if has(featureMemory) {
		p.inMemory()
	}
	p.description += fmt.Sprintf("; %v", features)
}

// outages has Redis go away often, and breakers notice it.
func (p *plan) outages(rng *rand.Rand) {
	p.breakers = true
	if !p.calm {
		p.trouble = max(p.trouble, 15)
		p.troubles = append(p.troubles, badWeather, badWeather)
		p.redisTimeout = pick(rng, 100*ms, 250*ms)
	}
}

// near gives each guard a near cache.
func (p *plan) near(rng *rand.Rand) {
	p.policy.Near = guard.Near{MaxEntries: 100, TTL: pick(rng, 50*ms, 500*ms, 10*time.Second)}
	p.policy.TTL = max(p.policy.TTL, 300*ms)
	p.failing, p.private = min(p.failing, 20), 0
	p.ops += 15
	p.changing = max(p.changing, 20)
}

// soft bounds the wait of callers who have a stale value to live on.
func (p *plan) soft(rng *rand.Rand) {
	p.policy.SoftTimeout = pick(rng, 10*ms, 60*ms)
	p.policy.StaleIfError = p.policy.Stale + 3*time.Second
	p.policy.TTL = min(p.policy.TTL, 300*ms)
	if p.calm && !p.many { // see book.tooPatient
		p.policy.TTL, p.longest, p.changing = 40*ms, 3*time.Second, min(p.changing, 10)
		p.poll = 5 * ms
	}
}

// batch makes some callers ask for several keys at once.
func (p *plan) batch(rng *rand.Rand) {
	p.many = true
	p.keys += 2           // so that they overlap in many ways
	p.ops = p.ops * 2 / 3 // each is several
	p.policy.MaxBatch = pick(rng, 1, 2, 1000)
	// Two that end at the same instant leave it to Go who comes first.
	p.policy.MaxUnguarded = 32
	p.policy.FetchTimeout += 7 * ms
	if p.policy.WaitTimeout > 0 {
		p.policy.WaitTimeout += 13 * ms
	}
	if p.calm { // a fetch in parts outlasts what a lease for one fetch may
		p.keys, p.policy.MaxBatch = 4, 1
		p.longest, p.policy.FetchTimeout, p.policy.Lease = 600*ms, 807*ms, 250*ms
	} else { // pipelines are to be torn
		p.loseRequest, p.loseAnswer = max(p.loseRequest, 20), max(p.loseAnswer, 50)
	}
	p.description += fmt.Sprintf("; several of %d keys at once, fetched by %d", p.keys, p.policy.MaxBatch)
}

// window is for how long attempts are remembered, at least: the policy's default.
func (p *plan) window() time.Duration {
	return max(time.Minute, 2*(p.policy.FetchTimeout+p.policy.MaxBudgetWait+p.policy.Lease))
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

const ms = time.Millisecond

func newPlan(rng *rand.Rand) plan {
	p := plan{
		processes: 2 + rng.IntN(3), keys: 1 + rng.IntN(2), ops: 15 + rng.IntN(30),
		calm:         rng.IntN(5) == 0,
		redisTimeout: pick(rng, 100*ms, 250*ms),
		poll:         pick(rng, 5*ms, 20*ms, 36*ms),
		longest:      pick(rng, 20*ms, 150*ms, 600*ms),
		failing:      pick(rng, 0, 0, 20, 60),
		private:      pick(rng, 0, 0, 0, 15),
		bounded:      pick(rng, 0, 30),
		changing:     pick(rng, 0, 10, 30, 30),
		impatience:   pick(rng, 2, 10, 25),
		stubborn:     pick(rng, 0, 30),
		hanging:      pick(rng, 0, 0, 5),
	}
	p.readTimeout = p.redisTimeout * time.Duration(pick(rng, 6, 13, 22, 41)) / 10 // never the same
	p.policy = guard.Policy{
		TTL:          pick(rng, 40*ms, 300*ms, 3*time.Second),
		Stale:        pick(rng, 0, 0, 200*ms, 2*time.Second),
		Lease:        pick(rng, 150*ms, 400*ms, 1500*ms),
		FetchTimeout: pick(rng, 300*ms, 800*ms, 3*time.Second),
		WaitTimeout:  pick(rng, 0, 300*ms, 2*time.Second),
		Negative:     pick(rng, 0, 30*ms, guard.Off),
		ErrorPause:   pick(rng, 0, 50*ms, guard.Off),
		Bypass:       pick(rng, 50*ms, 500*ms),
		MaxAttempts:  pick(rng, 1, 2, 3, guard.Off),
		MaxUnguarded: pick(rng, 4, 32), // seldom reached: who comes first is Go's
		Beta:         pick(rng, 0, 0.5, guard.Off),
		FailClosed:   pick(rng, false, false, true),
	}
	if rng.IntN(2) == 0 { // else the strict model applies
		p.policy.Reserve.MaxBytes = guard.Off
	}
	if rng.IntN(3) == 0 {
		p.policy.StaleIfError = p.policy.Stale + pick(rng, 100*ms, time.Second)
	}
	if p.calm {
		// Leases outlast what little delay there is, and fetches their time.
		p.redisTimeout, p.readTimeout = time.Second, 3*time.Second
		p.policy.Lease, p.policy.FetchTimeout, p.policy.WaitTimeout = 1500*ms, 5*time.Second, 10*time.Second
		p.hanging, p.longest, p.impatience = 0, 150*ms, 5
	} else {
		p.loseRequest, p.loseAnswer, p.loseMessage = pick(rng, 0, 0, 10, 50), pick(rng, 0, 10, 50, 150), pick(rng, 0, 0, 50, 300)
		p.delay, p.delayMessage = pick(rng, 0, 30, 100), pick(rng, 0, 30, 300)
		p.trouble = pick(rng, 0, 5, 15, 40)
		for t := range troubleKinds {
			if rng.IntN(2) == 0 {
				p.troubles = append(p.troubles, t)
			}
		}
		if len(p.troubles) == 0 {
			p.troubles = []trouble{trouble(rng.IntN(int(troubleKinds)))}
		}
	}
	y := p.policy
	p.description = fmt.Sprintf("%d processes, %d keys, %d calls, calm %v, troubles %d‰ of %v; lost: requests %d‰, answers %d‰, messages %d‰; delayed: %d‰, messages %d‰; "+
		"reserve %d; TTL %v, stale %v/%v, lease %v, fetch timeout %v, wait timeout %v, negative %v, pause %v, bypass %v, attempts %d, early %v, fail closed %v; Redis timeout %v/%v, poll %v, fetches %v",
		p.processes, p.keys, p.ops, p.calm, p.trouble, p.troubles, p.loseRequest, p.loseAnswer, p.loseMessage, p.delay, p.delayMessage,
		y.Reserve.MaxBytes, y.TTL, y.Stale, y.StaleIfError, y.Lease, y.FetchTimeout, y.WaitTimeout, y.Negative, y.ErrorPause, y.Bypass, y.MaxAttempts, y.Beta, y.FailClosed,
		p.redisTimeout, p.readTimeout, p.poll, p.longest)
	return p
}
