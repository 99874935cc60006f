package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

func nearPolicy(change ...func(*guard.Policy)) guard.Policy {
	return policy(append([]func(*guard.Policy){func(p *guard.Policy) { p.Near.MaxEntries = 100 }}, change...)...)
}

// source asks for a key that must be stored and says where its value was.
func source(w *world, g *guard.Guard[string], key string) (string, guard.Source) {
	w.Helper()
	r, err := g.Load(context.Background(), key, func(ctx context.Context, _ *guard.Fill[string]) (string, error) { return never(ctx) })
	must(w, err)
	return r.Value, r.Source
}

func TestNearValueIsServedWithoutAskingTheStore(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, nearPolicy())[0]
		synctest.Wait() // for the subscription
		get(w, g, "k", (&origin{}).fetch)
		for range 3 {
			if v, s := source(w, g, "k"); v != "v1" || s != guard.FromNear {
				w.Errorf("got %q from %v", v, s)
			}
		}
		time.Sleep(11 * time.Second) // Near.TTL's default is 10 s
		if _, s := source(w, g, "k"); s != guard.FromStore {
			w.Errorf("after its TTL: from %v", s)
		}
		r, err := g.Load(context.Background(), "k", neverTold)
		if err != nil || r.Source != guard.FromNear || r.Age != 11*time.Second || r.TTL != 49*time.Second {
			w.Errorf("%+v, %v", r, err)
		}
	})
}

// However long a value was fetched, or others were waited for: its age is since it
// was stored.
func TestNearValueKeepsTheStoredAge(t *testing.T) {
	slow := func(p *guard.Policy) { p.TTL, p.Beta = 10*time.Second, guard.Off }
	asOld := func(w *world, g *guard.Guard[string], age time.Duration) {
		w.Helper()
		p, err := g.Peek(context.Background(), "k")
		must(w, err)
		r, err := g.Load(context.Background(), "k", neverTold)
		if err != nil || r.Source != guard.FromNear || r.Age != age || r.TTL != 10*time.Second-age || p.Age != age {
			w.Errorf("near %+v, %v; stored %+v; want it to be %v old", r, err, p, age)
		}
	}
	for name, fetch := range map[string]func(w *world, g *guard.Guard[string]){
		"Get": func(w *world, g *guard.Guard[string]) { get(w, g, "k", (&origin{takes: 20 * time.Second}).fetch) },
		"GetMany": func(w *world, g *guard.Guard[string]) {
			getMany(w, g, []string{"k"}, (&manyOrigin{takes: 20 * time.Second}).fetch)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				g := w.fleet(1, nearPolicy(slow))[0]
				fetch(w, g)
				time.Sleep(time.Second)
				asOld(w, g, time.Second)
				time.Sleep(9 * time.Second)
				if r, err := g.Load(context.Background(), "k", loadsNew); err != nil || r.Value != "new" {
					w.Errorf("past its TTL: %+v, %v", r, err)
				}
			})
		})
	}
	t.Run("GetMany that waits for another key", func(t *testing.T) {
		inWorlds(t, func(w *world) {
			g := w.fleet(1, nearPolicy(slow))[0]
			go get(w, g, "slow", (&origin{takes: 5 * time.Second}).fetch)
			go get(w, g, "k", (&origin{takes: 3 * time.Second}).fetch)
			time.Sleep(time.Second)
			getMany(w, g, []string{"slow", "k"}, (&manyOrigin{}).fetch)
			asOld(w, g, 2*time.Second)
		})
	})
}

func loadsNew(context.Context, *guard.Fill[string]) (string, error) { return "new", nil }

// pitfall 24
func TestEveryProcessHearsOfAChange(t *testing.T) {
	others := []string{"a", "b", "c"} // one may share the stamp of k, by chance
	for name, change := range map[string]func(*guard.Guard[string]) error{
		"Delete": func(g *guard.Guard[string]) error { return g.Delete(context.Background(), "k") },
		"Set":    func(g *guard.Guard[string]) error { return g.Set(context.Background(), "k", "set") },
		"Expire": func(g *guard.Guard[string]) error { return g.Expire(context.Background(), "k") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(3, nearPolicy())
				synctest.Wait()
				o := &origin{}
				for _, g := range fleet {
					get(w, g, "k", o.fetch)
					for _, other := range others {
						get(w, g, other, o.fetch)
					}
				}
				must(w, change(fleet[0]))
				synctest.Wait()
				for i, g := range fleet {
					if v := get(w, g, "k", o.fetch); v == "v1" {
						w.Errorf("process %d still has the old value", i)
					}
					if !slices.ContainsFunc(others, func(key string) bool { _, s := source(w, g, key); return s == guard.FromNear }) {
						w.Errorf("process %d lost all other keys", i)
					}
				}
			})
		})
	}
}

func TestOwnChangeIsSeenAtOnce(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, nearPolicy())[0]
		synctest.Wait()
		for i := range 50 {
			v := fmt.Sprint(i)
			must(w, g.Set(context.Background(), "k", v))
			if got := get(w, g, "k", never); got != v {
				w.Fatalf("set %s, got %s", v, got)
			}
		}
	})
}

// A process may have two guards of a name on its store. A change by one is known to the
// other at once, without a message.
func TestChangeByASiblingGuardIsSeenAtOnce(t *testing.T) {
	inWorlds(t, func(w *world) {
		s, ctx := w.open(), w.Context()
		one, other := w.guard(s, nearPolicy()), w.guard(s, nearPolicy())
		time.Sleep(time.Second)
		for name, change := range map[string]func() error{
			"Set":       func() error { return one.Set(ctx, "k", "new") },
			"Delete":    func() error { return one.Delete(ctx, "k") },
			"DeleteTag": func() error { return one.DeleteTag(ctx, "t") },
		} {
			must(w, one.Set(ctx, "k", "old", "t"))
			time.Sleep(time.Second)
			for range 2 {
				get(w, other, "k", never)
			}
			must(w, change())
			if v := get(w, other, "k", (&origin{}).fetch); v == "old" {
				w.Errorf("%s: the old value", name)
			}
		}
	})
}

// A gate holds up the entry that a store has read until the test lets it through.
type gate struct {
	read chan struct{} // something has been read
	open chan struct{}
}

// hold puts a gate behind the reads of a store.
func hold(s *tap.Store) *gate {
	g := &gate{make(chan struct{}), make(chan struct{})}
	s.OnRead = func(_ string, r *store.Reading, err error) (*store.Reading, error) {
		g.read <- struct{}{}
		<-g.open
		return r, err
	}
	return g
}

func TestReadThatRacedADeleteIsNotKept(t *testing.T) {
	inWorlds(t, func(w *world) {
		s := tap.New(w.open())
		g, other := w.guard(s, nearPolicy()), w.guard(w.open(), nearPolicy())
		synctest.Wait()
		must(w, other.Set(context.Background(), "k", "old"))
		synctest.Wait()
		gate := hold(s)
		got := make(chan string)
		go func() { got <- get(w, g, "k", never) }()
		<-gate.read
		must(w, other.Set(context.Background(), "k", "new"))
		synctest.Wait() // the invalidation has arrived
		gate.open <- struct{}{}
		if v := <-got; v != "old" {
			w.Fatalf("the read from before got %q", v)
		}
		s.OnRead = nil
		if v, src := source(w, g, "k"); v != "new" {
			w.Errorf("got %q from %v", v, src)
		}
	})
}

// pitfalls 24 and 25: a link that swallows everything is noticed within two
// seconds, and the near values from before are not used after.
func TestNearCacheIsBypassedWhileDeaf(t *testing.T) {
	faulty(t, nearPolicy(noReserve), cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		s, err := cache.NewRedis(w.server.Client(), cache.Options{Namespace: "test"})
		must(w, err)
		defer func() { must(w, s.Close()) }()
		other := w.guard(s, policy())
		synctest.Wait()
		must(w, other.Set(context.Background(), "k", "old"))
		synctest.Wait() // it has been heard of
		get(w, g, "k", never)
		if _, src := source(w, g, "k"); src != guard.FromNear {
			w.Fatalf("before: from %v", src)
		}
		n.blackHole.Store(true)
		must(w, other.Set(context.Background(), "k", "new"))
		time.Sleep(2 * time.Second)
		v, err := g.Get(context.Background(), "k", func(context.Context) (string, error) { return "fetched", nil })
		if v != "fetched" {
			w.Errorf("2 s into the black hole: %q, %v", v, err)
		}
		if g.Stats().NearLive {
			w.Error("2 s into the black hole the near cache is said to be in use")
		}
		n.blackHole.Store(false)
		time.Sleep(5 * time.Second)
		if v, src := source(w, g, "k"); v != "new" {
			w.Errorf("after it: %q from %v", v, src)
		}
		if v, src := source(w, g, "k"); v != "new" || src != guard.FromNear {
			w.Errorf("near again: %q from %v", v, src)
		}
		if !g.Stats().NearLive {
			w.Error("the near cache is said not to be in use")
		}
		must(w, other.Close())
	})
}

func TestCloneGivesEachCallerItsOwn(t *testing.T) {
	inMemory(t, func(w *world) {
		g, err := guard.New(w.open(), "g", guard.Policy{TTL: time.Minute, Near: guard.Near{MaxEntries: 1}}, guard.Clone(slices.Clone[[]int]))
		must(w, err)
		defer g.Close()
		for range 3 {
			v, err := g.Get(context.Background(), "k", func(context.Context) ([]int, error) { return []int{1, 2}, nil })
			must(w, err)
			if v[0] != 1 {
				w.Errorf("another caller's change shows: %v", v)
			}
			v[0] = 9
		}
	})
}

func TestNearCacheIsBounded(t *testing.T) {
	for name, near := range map[string]guard.Near{"entries": {MaxEntries: 10}, "bytes": {MaxBytes: 10 * 1010}} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(w *world) {
				g := w.fleet(1, policy(func(p *guard.Policy) { p.Near = near }))[0]
				large := string(make([]byte, 1000))
				for i := range 100 {
					must(w, g.Set(context.Background(), fmt.Sprint(i), large))
					get(w, g, fmt.Sprint(i), never)
				}
				time.Sleep(time.Second)
				n := 0
				for i := range 100 {
					r, err := g.Load(context.Background(), fmt.Sprint(i), neverTold)
					must(w, err)
					if r.Source == guard.FromNear {
						n++
					}
				}
				if n > 30 { // looking puts some back in
					w.Errorf("%d of 100 are near, 10 were allowed", n)
				}
			})
		})
	}
}

func TestEvictionsFromNearAreThoseByItsBounds(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.fleet(1, nearPolicy(func(p *guard.Policy) { p.Near.MaxEntries, p.Near.TTL = 5, time.Second }))[0]
		for range 2 { // otter removes expired entries only when new ones come
			for i := range 5 {
				get(w, g, fmt.Sprint(i), (&origin{}).fetch)
			}
			time.Sleep(30 * time.Second)
		}
		if n := g.Stats().NearEvictions; n != 0 {
			w.Errorf("%d evictions, and the bound was never met", n)
		}
		for i := range 10 {
			get(w, g, fmt.Sprint(i), (&origin{}).fetch)
		}
		time.Sleep(time.Second)
		if n := g.Stats().NearEvictions; n == 0 {
			w.Error("no evictions, of twice as many as there is room for")
		}
	})
}

// The decoded value takes the memory. Its small size in Redis is no help.
func TestBytesNearAreThoseBeforeCompression(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Near.MaxBytes, p.CompressAbove = 10*1010, 100 }))[0]
		for i := range 100 {
			must(w, g.Set(context.Background(), fmt.Sprint(i), strings.Repeat("x", 1000)))
			get(w, g, fmt.Sprint(i), never)
		}
		time.Sleep(time.Second)
		if n := g.Stats().NearEntries; n > 10 {
			w.Errorf("%d of 100 are near, 10 were allowed", n)
		}
	})
}

// pitfall 22
func TestHotKeyIsRefreshedBeforeItExpires(t *testing.T) {
	for name, near := range map[string]guard.Near{"near": {MaxEntries: 10}, "far": {}} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(4, policy(func(p *guard.Policy) { p.TTL, p.Near = time.Second, near }))
				o := &origin{takes: 200 * time.Millisecond}
				callers(fleet, 1, "k", o.fetch) // warm
				warm := o.n.Load()
				var slow atomic.Int32
				var wg sync.WaitGroup
				const duration = 60 * time.Second
				for i, g := range fleet {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						for start := time.Now(); time.Since(start) < duration; time.Sleep(20 * time.Millisecond) {
							asked := time.Now()
							get(w, g, "k", o.fetch)
							if time.Since(asked) > 10*time.Millisecond {
								slow.Add(1)
							}
						}
					})
				}
				wg.Wait()
				perTTL := float64(o.n.Load()-warm) / duration.Seconds()
				w.Logf("%d slow calls, %.2f fetches a TTL", slow.Load(), perTTL)
				if slow.Load() > 0 || perTTL < 0.9 || perTTL > 1.3 {
					w.Errorf("%d slow calls, %.2f fetches a TTL", slow.Load(), perTTL)
				}
			})
		})
	}
}

func TestEarlyRefreshIsDrawnOncePerVersion(t *testing.T) {
	const ttl, took = 10 * time.Second, 200 * time.Millisecond
	minter := store.NewMinter()
	var sum time.Duration
	least, most := ttl, time.Duration(0)
	for range 10_000 {
		e := &store.Entry{Version: minter.Token(), FreshFor: ttl, Took: took}
		gap := ttl - guard.DueAt(e, 1)
		if guard.DueAt(e, 1) != ttl-gap {
			t.Fatal("two draws for one version")
		}
		least, most, sum = min(least, gap), max(most, gap), sum+gap
	}
	if mean := sum / 10_000; least < took*11/10 || most < 3*took || mean < took*15/10 || mean > took*17/10 {
		t.Errorf("gaps from %v to %v, mean %v, for a fetch of %v", least, most, mean, took)
	}
	slow := &store.Entry{Version: minter.Token(), FreshFor: ttl, Took: time.Hour}
	if due := guard.DueAt(slow, 1); due != ttl/2 {
		t.Errorf("a fetch slower than its TTL is due at %v", due)
	}
	if due := guard.DueAt(slow, guard.Off); due != ttl {
		t.Errorf("turned off: due at %v", due)
	}
}

// Changes and reads at random: after a process heard of a change, no read returns an
// older value.
func TestNearCachesAgreeAfterRandomChanges(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(3, nearPolicy())
		synctest.Wait()
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range 500 {
			key := fmt.Sprint("k", rng.IntN(5))
			v := fmt.Sprint(i)
			switch rng.IntN(3) {
			case 0:
				must(w, fleet[rng.IntN(3)].Set(context.Background(), key, v))
			case 1:
				must(w, fleet[rng.IntN(3)].Delete(context.Background(), key))
			}
			synctest.Wait()
			var want string
			for j, g := range fleet {
				got, err := g.Get(context.Background(), key, func(context.Context) (string, error) { return v, nil })
				must(w, err)
				if j == 0 {
					want = got
				} else if got != want {
					w.Fatalf("step %d: %q here, %q there", i, want, got)
				}
			}
		}
	})
}

func TestNearPolicyIsValidated(t *testing.T) {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, near := range []guard.Near{{MaxEntries: -1}, {MaxBytes: -1}, {MaxEntries: 1, MaxBytes: 1}, {MaxEntries: 1, TTL: time.Microsecond}} {
		if _, err := guard.New[string](store, "g", guard.Policy{TTL: time.Minute, Near: near}); err == nil {
			t.Errorf("accepted: %+v", near)
		}
	}
	if _, err := guard.New[string](store, "g", guard.Policy{TTL: time.Minute, Beta: -2}); err == nil {
		t.Error("a negative Beta was accepted")
	}
}

// In the process that changes a key, no reader sees an older value again. This holds while
// other callers put values into the near cache.
func TestRacingReaderUndoesNoOwnChange(t *testing.T) {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	g, err := guard.New[int](store, "g", guard.Policy{TTL: time.Minute, Near: guard.Near{MaxEntries: 10}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	ctx := context.Background()
	fetch := func(context.Context) (int, error) { return -1, nil }
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for !done.Load() {
				_, _ = g.Get(ctx, "k", fetch)
			}
		})
	}
	for i := range 2_000 {
		if err := g.Set(ctx, "k", i); err != nil {
			t.Fatal(err)
		}
		if v, err := g.Get(ctx, "k", fetch); err != nil || v != i {
			t.Errorf("set %d, got %d, %v", i, v, err)
			break
		}
	}
	done.Store(true)
	wg.Wait()
}

func TestRefreshOfADepartedCallerEndsTheNearValue(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, nearPolicy())[0]
		synctest.Wait()
		o := &origin{}
		get(w, g, "k", o.fetch)
		ctx, cancel := context.WithCancel(context.Background())
		_, err := g.Get(ctx, "k", func(ctx context.Context) (string, error) {
			cancel()
			time.Sleep(time.Second)
			return o.fetch(ctx)
		}, guard.MaxAge(0))
		if !errors.Is(err, context.Canceled) {
			w.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if v, _ := source(w, g, "k"); v != "v2" {
			w.Errorf("got %q after the refresh", v)
		}
		if v, s := source(w, g, "k"); v != "v2" || s != guard.FromNear {
			w.Errorf("then %q from %v", v, s)
		}
	})
}
