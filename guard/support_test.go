package guard_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/store"
)

// Tests in this package that depend on time run in a testing/synctest bubble:
// its clock is fake and jumps to the next timer when all goroutines wait, so that
// seconds of leases and polls take no time and are exact. They run on the
// memory store and on the Redis store against the embedded server. The fleet
// tests are for behaviour that depends on a real server, on processes or on signals.

// A world is one bubble with one backend that several stores share, each of
// them standing for a process.
type world struct {
	*testing.T
	open   func() cache.Store
	server *redistest.Embedded // nil on the memory store
}

// inWorlds runs the test on each kind of store.
func inWorlds(t *testing.T, test func(w *world)) {
	t.Run("memory", func(t *testing.T) { inMemory(t, test) })
	t.Run("redis", func(t *testing.T) { inRedis(t, test) })
}

func inMemory(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		var first *cache.Memory
		test(&world{T: t, open: func() cache.Store {
			if first == nil {
				m, err := cache.NewMemory(cache.MemoryOptions{})
				if err != nil {
					t.Fatal(err)
				}
				first = m
				t.Cleanup(func() { closed(t, m) })
				return m
			}
			m := first.Join()
			t.Cleanup(func() { closed(t, m) })
			return m
		}})
	})
}

func inRedis(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		test(&world{T: t, server: server, open: func() cache.Store {
			s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closed(t, s) })
			return s
		}})
	})
}

func closed(t *testing.T, s cache.Store) {
	if err := s.Close(); err != nil {
		t.Errorf("closing the store: %v", err)
	}
}

// policy is that of most tests: a minute fresh, nothing stale.
func policy(change ...func(*guard.Policy)) guard.Policy {
	p := guard.Policy{TTL: time.Minute}
	for _, c := range change {
		c(&p)
	}
	return p
}

// noReserve is for tests of guards that have nothing to serve without Redis.
func noReserve(p *guard.Policy) { p.Reserve.MaxBytes = guard.Off }

// fleet opens n guards, each on a store of its own.
func (w *world) fleet(n int, p guard.Policy, opts ...guard.Option[string]) []*guard.Guard[string] {
	w.Helper()
	all := make([]*guard.Guard[string], n)
	for i := range all {
		all[i] = w.guard(w.open(), p, opts...)
	}
	time.Sleep(time.Second) // fake: until the subscriptions are live
	return all
}

func (w *world) guard(s cache.Store, p guard.Policy, opts ...guard.Option[string]) *guard.Guard[string] {
	w.Helper()
	g, err := guard.New(s, "g", p, opts...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = g.Close() })
	return g
}

// An origin counts the fetches that reach it.
type origin struct {
	takes  time.Duration
	answer func(ctx context.Context, n int) (string, error) // n counts the fetches, from 1
	n      atomic.Int32
	ended  atomic.Pointer[time.Time] // the last fetch
}

func (o *origin) fetch(ctx context.Context) (string, error) {
	n := int(o.n.Add(1))
	if o.takes > 0 {
		select {
		case <-time.After(o.takes):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	defer func() { now := time.Now(); o.ended.Store(&now) }()
	if o.answer != nil {
		return o.answer(ctx, n)
	}
	return fmt.Sprintf("v%d", n), nil
}

func (o *origin) fetched(w *world, want int) {
	w.Helper()
	if got := int(o.n.Load()); got != want {
		w.Errorf("the origin was asked %d times, want %d", got, want)
	}
}

// An answer is the result of one caller's call, and how long the call took.
type answer struct {
	value string
	err   error
	took  time.Duration
}

// A fetcher is the fetch of a Get.
type fetcher = func(context.Context) (string, error)

// callers lets n callers of each guard ask for the key at once and waits for
// all of them.
func callers(guards []*guard.Guard[string], n int, key string, fetch fetcher) []answer {
	answers := make([]answer, n*len(guards))
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			start := time.Now()
			v, err := guards[i%len(guards)].Get(context.Background(), key, fetch)
			answers[i] = answer{v, err, time.Since(start)}
		})
	}
	wg.Wait()
	return answers
}

// within reports whether d lies between least and least plus slack.
func within(d, least, slack time.Duration) bool { return d >= least && d <= least+slack }

func must(w *world, err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// get asks for a key and fails the test on an error.
func get(w *world, g *guard.Guard[string], key string, fetch fetcher) string {
	w.Helper()
	v, err := g.Get(context.Background(), key, fetch)
	must(w, err)
	return v
}

// never is a fetch that must not be called.
func never(context.Context) (string, error) { return "", errors.New("fetched, and must not have been") }

// neverTold is never, for Load.
func neverTold(ctx context.Context, _ *guard.Fill[string]) (string, error) { return never(ctx) }

// recorder keeps the events it is told.
type recorder struct {
	mu     sync.Mutex
	events []cache.Event
}

func (r *recorder) Observe(e cache.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// keys lists the keys of the events of a kind.
func (r *recorder) keys(kind cache.EventKind) map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]bool{}
	for _, e := range r.events {
		if e.Kind == kind {
			all[e.Key] = true
		}
	}
	return all
}

func (r *recorder) count(kind cache.EventKind) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// held acquires a lease for ten seconds, as another process might, and returns it.
func held(w *world, s cache.Store, key string) *store.Lease {
	w.Helper()
	a := s.Unwrap().Acquire(w.Context(), []store.Request{{Key: key, TTL: 10 * time.Second, RenewFor: 10 * time.Second, Window: time.Minute}})[0]
	if a.Verdict != store.Granted {
		w.Fatalf("answered %v, %v", a.Verdict, a.Err)
	}
	return a.Lease
}

// released gives a lease back without an outcome.
func released(w *world, s cache.Store, l *store.Lease) {
	w.Helper()
	must(w, s.Unwrap().Return(w.Context(), []store.Return{{Lease: l}})[0].Err)
}
