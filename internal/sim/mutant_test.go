//go:build !race

// Which is slow, and finds nothing here: it is the library without mutants that
// must be free of races.

package sim_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/sim"
)

// A mutant is the library with something taken out. Each must be found by one of
// its rules, within the seeds that a run without flags plays.
type mutant struct {
	name  string
	cfg   sim.Config
	rules []string
	many  bool // of GetMany: only the seeds that call it are played
}

const (
	notMine  = "if not lease or lease:sub(1, 16) ~= ARGV[1] then"
	endLease = "redis.call('DEL', KEYS[1], KEYS[2])"
)

// script is a mutant of one script: some of its text becomes other text.
func script(name, old, replacement string) sim.Config {
	return sim.Config{Lua: map[string]func(string) string{
		name: func(source string) string { return strings.ReplaceAll(source, old, replacement) },
	}}
}

func from(outside bool, c sim.Config) sim.Config {
	c.Outside = outside
	return c
}

func untagged(c sim.Config) sim.Config {
	c.Outside, c.Untagged = true, true
	return c
}

// many is a mutant of what GetMany asks of its store.
func many(name string, f func(cache.Store) cache.Store, outside bool, rules ...string) mutant {
	return mutant{name, from(outside, wrap(f)), rules, true}
}

func wrap(f func(cache.Store) cache.Store) sim.Config { return sim.Config{Wrap: f} }

var mutants = []mutant{
	{"fill writes without its lease", script("fill", notMine, "if false then"), []string{"P2"}, false},
	{"fill writes without its lease, seen from outside", from(true, script("fill", notMine, "if false then")), []string{"P3"}, false},
	{"store writes what fill refused", wrap(func(s cache.Store) cache.Store { return insistent{s} }), []string{"P2"}, false},
	{"store writes what fill refused, seen from outside", from(true, wrap(func(s cache.Store) cache.Store { return insistent{s} })), []string{"P3"}, false},
	{"every outcome is shared", sim.Config{Share: true, Outside: true}, []string{"P3"}, false},
	{"delete forgets the lease", script("delete", endLease, "redis.call('DEL', KEYS[1])"), []string{"delete"}, false},
	{"delete forgets the lease, seen from outside", from(true, script("delete", endLease, "redis.call('DEL', KEYS[1])")), []string{"P3"}, false},
	{"set forgets the lease", script("set", "redis.call('DEL', KEYS[2], ", "redis.call('DEL', "), []string{"end of lease"}, false},
	{"set forgets the lease, seen from outside", from(true, script("set", "redis.call('DEL', KEYS[2], ", "redis.call('DEL', ")), []string{"P3"}, false},
	{"expire forgets the lease", script("expire", "redis.call('DEL', KEYS[2])", ""), []string{"end of lease"}, false},
	{"release ends any lease", script("release", notMine+" return 0 end", "if not lease then return 0 end"), []string{"fence"}, false},
	{"fail ends any lease", script("fail", notMine, "if not lease then"), []string{"fence"}, false},
	{"acquire doesn't look for an entry", script("acquire", "head ~= seen", "false"), []string{"P1"}, false},
	{"acquire doesn't tell of a failure", script("acquire", "if failure then", "if false then"), []string{"P8"}, false},
	{"acquire ignores the lease", script("acquire", "elseif holder ~= over then", "elseif false then"), []string{"fence"}, false},
	{"acquire takes over at the first look", script("acquire", "holder == suspect and abandoned", "abandoned"), []string{"fence"}, false},
	{"acquire takes over from the living", script("acquire", "holder == suspect and abandoned", "holder == suspect"), []string{"takeover"}, false},
	{"quarantine counts the living", script("acquire", "if nobody(redis.pcall('PUBSUB', 'NUMSUB', channel(try)), 1) then dead", "if true then dead"), []string{"P7"}, false},
	{"quarantine counts who left in order", script("release", "redis.call('SREM', KEYS[2], ARGV[1])", ""), []string{"left behind", "P7"}, false},
	{"reads join one that was sent before", from(true, wrap(func(s cache.Store) cache.Store { return &joining{Store: s, under: map[string]*reading{}} })), []string{"P3"}, false},
	{"waiters believe word of any lease", untagged(wrap(func(s cache.Store) cache.Store {
		return &gullible{Store: s, held: map[string]cache.Token{}, last: map[string]cache.Message{}}
	})), []string{"P3", "sharing"}, false},
	{"a fetch's failure is kept to itself", wrap(func(s cache.Store) cache.Store { return silent{s} }), []string{"leak"}, false},
	{"a tag's deletion isn't recorded", from(true, script("tag", "redis.call('HSET', KEYS[1], ARGV[3], string.format('%.0f', mark))", "")), []string{"P3"}, false},
	{"a tag's deletion doesn't advance the clock", from(true, script("clock", "'HINCRBY', KEYS[1], 'n', ARGV[2]", "'HINCRBY', KEYS[1], 'n', 0")), []string{"P3"}, false},
	{"tie tells of no deletion", from(true, script("tie", "return {deleted, expired, unsettled}", "return {0, expired, 0}")), []string{"P3"}, false},
	{"callers wait for Redis whatever their deadline", from(true, wrap(func(s cache.Store) cache.Store { return patient{s} })), []string{"P4"}, false},
	many("a batch stores what was refused", func(s cache.Store) cache.Store { return insistentMany{s} }, false, "P2"),
	many("a batch stores what was refused, seen from outside", func(s cache.Store) cache.Store { return insistentMany{s} }, true, "P3"),
	many("a batch takes its stamp after its fetch", func(s cache.Store) cache.Store { return stamping{s} }, true, "P3"),
	many("leases of a fetch in parts last for one part", func(s cache.Store) cache.Store { return short{s} }, false, "calm"),
	many("a pipeline's late grants are nobody's", func(s cache.Store) cache.Store { return hurried{s} }, false, "leak"),
	many("a pipeline's answers are given to each other's keys", func(s cache.Store) cache.Store { return mixing{s} }, true, "value"),
}

// mutantSeeds is what a mutant has until it must be found. The last to be found
// needs about a thousand.
const mutantSeeds = 3000

func TestMutantsAreFound(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			m.cfg.Scripts = scriptsDir
			for s := uint64(1); s <= mutantSeeds; s++ {
				if m.cfg.Seed = s; m.many && !sim.Many(s) {
					continue
				}
				for _, v := range sim.Run(t, m.cfg).Violations {
					if slices.Contains(m.rules, v.Rule) {
						t.Logf("found by seed %d: %v", s, v)
						return
					}
				}
			}
			t.Errorf("not found in %d seeds by any of %q", mutantSeeds, m.rules)
		})
	}
}

// insistent writes what a fill was refused, and says that it was stored.
type insistent struct{ cache.Store }

func (s insistent) Fill(ctx context.Context, l *cache.Lease, e *cache.Entry) (bool, error) {
	ok, err := s.Store.Fill(ctx, l, e)
	if err == nil && !ok {
		ok, err = true, s.Set(ctx, l.Key, e)
	}
	return ok, err
}

// joining lets a read take the answer of one that was sent before it came.
type joining struct {
	cache.Store
	mu    sync.Mutex
	under map[string]*reading
}

type reading struct {
	done chan struct{}
	r    *cache.Reading
	err  error
}

func (s *joining) Read(ctx context.Context, key string) (*cache.Reading, error) {
	s.mu.Lock()
	r, first := s.under[key], false
	if r == nil {
		r, first = &reading{done: make(chan struct{})}, true
		s.under[key] = r
	}
	s.mu.Unlock()
	if first {
		r.r, r.err = s.Store.Read(context.WithoutCancel(ctx), key)
		s.mu.Lock()
		delete(s.under, key)
		s.mu.Unlock()
		close(r.done)
	}
	select {
	case <-r.done:
		return r.r, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// gullible makes every wake-up one about the lease that is waited for. The last one
// of a key comes once more to whoever waits next, as one may that was under way.
type gullible struct {
	cache.Store
	mu   sync.Mutex
	held map[string]cache.Token
	last map[string]cache.Message
}

func (s *gullible) Acquire(ctx context.Context, key string, ask cache.Ask) (cache.Answer, error) {
	a, err := s.Store.Acquire(ctx, key, ask)
	if err == nil && a.Verdict == cache.Held {
		s.mu.Lock()
		s.held[key] = a.Holder
		s.mu.Unlock()
	}
	return a, err
}

func (s *gullible) Watch(key string) *cache.Watch {
	inner := s.Store.Watch(key)
	end := make(chan struct{})
	w := cache.NewWatch(func() { close(end); inner.Close() })
	go func() {
		for {
			select {
			case m := <-inner.C:
				s.pass(key, m, w)
			case <-end:
				return
			}
		}
	}()
	return w
}

func (s *gullible) pass(key string, m cache.Message, w *cache.Watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Signal != cache.Confirmed {
		s.last[key] = m
	} else if late, ok := s.last[key]; ok {
		w.Push(m)
		m = late
	}
	m.Token = s.held[key]
	w.Push(m)
}

// silent keeps a failure, and the lease with it.
type silent struct{ cache.Store }

func (s silent) Fail(context.Context, *cache.Lease, []byte, time.Duration) (bool, error) {
	return true, nil
}

// patient reads to the end, whoever has gone meanwhile.
type patient struct{ cache.Store }

func (s patient) Read(ctx context.Context, key string) (*cache.Reading, error) {
	r, err := s.Store.Read(context.WithoutCancel(ctx), key)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return r, err
}

// insistentMany is insistent for many.
type insistentMany struct{ cache.Store }

func (s insistentMany) ReturnMany(ctx context.Context, returns []cache.Return) []cache.Returned {
	all := s.Store.ReturnMany(ctx, returns)
	for i, r := range returns {
		if r.Entry != nil && all[i].Err == nil && !all[i].OK {
			all[i] = cache.Returned{OK: true, Err: s.Set(ctx, r.Lease.Key, r.Entry)}
		}
	}
	return all
}

// stamping stamps what a batch has fetched as if it had been fetched just now.
type stamping struct{ cache.Store }

func (s stamping) ReturnMany(ctx context.Context, returns []cache.Return) []cache.Returned {
	if stamp, err := s.Stamp(ctx); err == nil {
		for _, r := range returns {
			if r.Entry != nil {
				r.Entry.Stamp = stamp
			}
		}
	}
	return s.Store.ReturnMany(ctx, returns)
}

// short has no lease renewed for longer than one call of the fetch may take where
// nothing goes wrong.
type short struct{ cache.Store }

func (s short) AcquireMany(ctx context.Context, requests []cache.Request) []cache.Acquired {
	requests = slices.Clone(requests)
	for i := range requests {
		requests[i].Ask.RenewFor = min(requests[i].Ask.RenewFor, 807*time.Millisecond)
	}
	return s.Store.AcquireMany(ctx, requests)
}

// hurried gives a pipeline up before the store does, and its grants with it.
type hurried struct{ cache.Store }

func (s hurried) AcquireMany(ctx context.Context, requests []cache.Request) []cache.Acquired {
	answers := make(chan []cache.Acquired, 1)
	go func() { answers <- s.Store.AcquireMany(ctx, requests) }()
	select {
	case all := <-answers:
		return all
	case <-time.After(90 * time.Millisecond):
		return slices.Repeat([]cache.Acquired{{Err: cache.ErrUnavailable}}, len(requests))
	}
}

// mixing answers each key with what was answered about another.
type mixing struct{ cache.Store }

func (s mixing) AcquireMany(ctx context.Context, requests []cache.Request) []cache.Acquired {
	all := s.Store.AcquireMany(ctx, requests)
	slices.Reverse(all)
	return all
}
