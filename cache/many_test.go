package cache_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/cache/cachetest"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// trips counts the round trips of a client, and tells a function of each
// pipeline of scripts that was carried out.
type trips struct {
	n     atomic.Int64
	mu    sync.Mutex
	after func(cmds []redis.Cmder)
}

func (h *trips) set(f func([]redis.Cmder)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.after = f
}

func (h *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.n.Add(1)
		return next(ctx, cmd)
	}
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.n.Add(1)
		err := next(ctx, cmds)
		h.mu.Lock()
		f := h.after
		h.mu.Unlock()
		if f != nil && !strings.HasSuffix(cmds[0].Name(), "get") {
			f(cmds)
			for _, cmd := range cmds {
				if cmd.Err() != nil {
					return cmd.Err()
				}
			}
		}
		return err
	}
}

func (h *trips) since(n *int64) int64 {
	now := h.n.Load()
	d := now - *n
	*n = now
	return d
}

func tripped(t *testing.T) (*cache.Redis, *trips, *redis.Client) {
	t.Helper()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client := server.Client()
	h := &trips{}
	client.AddHook(h)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	// Its subscription is live.
	a, err := s.Acquire(context.Background(), "first", lasting())
	if err != nil || s.Release(context.Background(), a.Lease) != nil {
		t.Fatal(err)
	}
	return s, h, server.Client()
}

func requestsFor(n int) (keys []string, requests []cache.Request, leases []string) {
	for i := range n {
		key := fmt.Sprint("k", i)
		keys = append(keys, key)
		requests = append(requests, cache.Request{Key: key, Ask: lasting()})
		leases = append(leases, "test:{"+key+"}:lease")
	}
	return keys, requests, leases
}

// acquired checks that everything was granted, and returns the fills.
func acquired(t *testing.T, answers []cache.Acquired) (returns []cache.Return) {
	t.Helper()
	for i, a := range answers {
		if a.Err != nil || a.Answer.Verdict != cache.Granted {
			t.Fatalf("key %d: %+v, %v", i, a.Answer, a.Err)
		}
		returns = append(returns, cache.Return{Lease: a.Answer.Lease, Entry: entryOf("v", time.Minute)})
	}
	return returns
}

func stored(t *testing.T, done []cache.Returned) {
	t.Helper()
	for i, d := range done {
		if !d.OK || d.Err != nil {
			t.Fatalf("key %d: %+v", i, d)
		}
	}
}

func TestManyKeysTakeFewRoundTrips(t *testing.T) {
	s, h, _ := tripped(t)
	ctx := t.Context()
	keys, requests, _ := requestsFor(1000)
	n := h.n.Load()
	for _, r := range cachetest.ReadMany(ctx, s, keys) {
		if r.Err != nil || r.Reading.Found {
			t.Fatalf("%+v", r)
		}
	}
	read := h.since(&n)
	returns := acquired(t, s.AcquireMany(ctx, requests))
	asked := h.since(&n)
	stored(t, s.ReturnMany(ctx, returns))
	filled := h.since(&n)
	if read != 1 || asked > 2 || filled > 2 { // 2: its script is new to the server
		t.Errorf("%d round trips to read, %d to acquire, %d to fill", read, asked, filled)
	}
	for _, want := range []int64{2, 1, 1} {
		for _, r := range cachetest.ReadMany(ctx, s, keys) {
			if r.Err != nil || !r.Reading.Found {
				t.Fatalf("%+v", r)
			}
		}
		if got := h.since(&n); got != want {
			t.Errorf("%d round trips for warm keys, want %d", got, want)
		}
	}
}

func TestScriptsThatWereFlushedAreSentAgainInPipelines(t *testing.T) {
	s, h, admin := tripped(t)
	ctx := t.Context()
	keys, requests, _ := requestsFor(300)
	flush := func() {
		if err := admin.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	n := h.n.Load()
	returns := acquired(t, s.AcquireMany(ctx, requests))
	flush()
	returns[0] = cache.Return{Lease: returns[0].Lease, Failed: true, Failure: []byte("why")}
	returns[1] = cache.Return{Lease: returns[1].Lease}
	stored(t, s.ReturnMany(ctx, returns))
	if got := h.since(&n); got != 4 {
		t.Errorf("%d round trips, want 4", got)
	}
	for i, r := range cachetest.ReadMany(ctx, s, keys) {
		if r.Err != nil || r.Reading.Found != (i > 1) {
			t.Fatalf("key %d: %+v", i, r)
		}
	}
}

// A before is called before each pipeline of scripts is sent.
type before func()

func (f before) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (f before) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (f before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) > 1 && strings.HasPrefix(cmds[0].Name(), "eval") {
			f()
		}
		return next(ctx, cmds)
	}
}

// What is asked of one master is answered by two, neither of which knows the script.
func TestSlotsThatMoveApartUnderAPipelineAreServed(t *testing.T) {
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	ctx, client := t.Context(), cluster.Client()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var requests []cache.Request
	var slots []int
	for i := 0; len(requests) < 6; i++ {
		key := fmt.Sprint("k", i)
		master, err := cluster.MasterFor(ctx, "test:{"+key+"}")
		if err != nil {
			t.Fatal(err)
		}
		if master != cluster.Masters()[0] {
			continue
		}
		slot, err := cluster.Slot(ctx, "test:{"+key+"}")
		if err != nil {
			t.Fatal(err)
		}
		requests, slots = append(requests, cache.Request{Key: key, Ask: lasting()}), append(slots, slot)
	}
	for i := range 30 { // the subscriptions are live
		if a, err := s.Acquire(ctx, fmt.Sprint("warm", i), lasting()); err != nil || a.Verdict != cache.Granted {
			t.Fatal(a.Verdict, err)
		}
	}
	client.AddHook(before(sync.OnceFunc(func() {
		for _, m := range cluster.Masters() {
			if err := m.Client().ScriptFlush(ctx).Err(); err != nil {
				t.Error(err)
			}
		}
		for i, slot := range slots {
			if err := cluster.MoveSlot(ctx, slot, 0, 1+i%2); err != nil {
				t.Error(err)
			}
		}
	})))
	acquired(t, s.AcquireMany(ctx, requests))
}

// The caller leaves as the answer comes: whoever deals with it, no lease is left.
func TestGrantsOfManyThatComeAsTheirCallerLeavesAreNotLeftBehind(t *testing.T) {
	s, h, admin := tripped(t)
	_, requests, leases := requestsFor(50)
	for range 100 {
		ctx, cancel := context.WithCancel(context.Background())
		h.set(func([]redis.Cmder) { cancel() })
		var back []cache.Return
		for _, a := range s.AcquireMany(ctx, requests) {
			if a.Err == nil && a.Answer.Verdict == cache.Granted {
				back = append(back, cache.Return{Lease: a.Answer.Lease})
			}
		}
		cancel()
		h.set(nil)
		s.ReturnMany(context.Background(), back)
		eventually(t, func() bool { return admin.Exists(t.Context(), leases...).Val() == 0 })
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	tries, err := admin.Keys(t.Context(), "test:*:tries").Result()
	if err != nil || len(tries) > 0 {
		t.Errorf("attempts are left: %v, %v", tries, err)
	}
}

// What a pipeline granted and its answer was lost is the caller's all the same.
func TestGrantsOfManyWhoseAnswersWereLostAreReplaced(t *testing.T) {
	for name, lost := range map[string]func(i int) bool{"all": func(int) bool { return true }, "from the 20th on": func(i int) bool { return i >= 20 }} {
		t.Run(name, func(t *testing.T) {
			s, h, admin := tripped(t)
			_, requests, leases := requestsFor(50)
			h.set(func(cmds []redis.Cmder) {
				h.set1(nil)
				for i, cmd := range cmds {
					if lost(i) {
						cmd.SetErr(io.ErrUnexpectedEOF)
					}
				}
			})
			returns := acquired(t, s.AcquireMany(t.Context(), requests))
			if n := admin.Exists(t.Context(), leases...).Val(); n != 50 {
				t.Errorf("%d leases", n)
			}
			stored(t, s.ReturnMany(t.Context(), returns))
			if n := admin.Exists(t.Context(), leases...).Val(); n != 0 {
				t.Errorf("%d leases are left", n)
			}
		})
	}
}

// set1 is set from within what was set.
func (h *trips) set1(f func([]redis.Cmder)) { go h.set(f) }

// A fill isn't sent again unless it was certainly not carried out.
func TestFillsOfManyAreNotSentTwice(t *testing.T) {
	s, h, _ := tripped(t)
	_, requests, _ := requestsFor(11)
	returns := acquired(t, s.AcquireMany(t.Context(), requests))
	stored(t, s.ReturnMany(t.Context(), returns[10:])) // the server knows the script
	returns = returns[:10]
	n := h.n.Load()
	h.set(func(cmds []redis.Cmder) { cmds[3].SetErr(io.ErrUnexpectedEOF) })
	for i, d := range s.ReturnMany(t.Context(), returns) {
		if lost := i == 3; d.OK == lost || errors.Is(d.Err, cache.ErrUnavailable) != lost {
			t.Errorf("key %d: %+v", i, d)
		}
	}
	h.set(nil)
	if got := h.since(&n); got != 1 {
		t.Errorf("%d round trips", got)
	}
}

// A thousand keys may take longer than one call may.
func TestManyKeysHaveMoreTime(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client := server.Client()
	h := &trips{}
	client.AddHook(h)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	_, requests, _ := requestsFor(1000)
	// It is heard when it has one lease: what needs to be asked again, one by one,
	// has no more time than ever.
	acquired(t, s.AcquireMany(t.Context(), []cache.Request{{Key: "heard", Ask: requests[0].Ask}}))
	h.set(func([]redis.Cmder) { time.Sleep(600 * time.Millisecond) })
	returns := acquired(t, s.AcquireMany(t.Context(), requests))
	stored(t, s.ReturnMany(t.Context(), returns))
}

// Leases that were granted together are renewed together: in a pipeline, whose time
// goes by how many they are.
func TestManyLeasesAreRenewedAsTheyWereGranted(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client, c := server.Client(), &changes{}
	h := &trips{}
	client.AddHook(h)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 400 * time.Millisecond, Observer: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ctx, admin := t.Context(), server.Client()
	_, requests, leases := requestsFor(1000)
	for i := range requests {
		requests[i].Ask.TTL = 3 * time.Second
	}
	acquired(t, s.AcquireMany(ctx, []cache.Request{{Key: "heard", Ask: lasting()}}))
	returns := acquired(t, s.AcquireMany(ctx, requests))
	begun := time.Now()
	if err := admin.ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	h.set(func(cmds []redis.Cmder) {
		if len(cmds) > 100 {
			time.Sleep(600 * time.Millisecond)
		}
	})
	n := h.n.Load()
	time.Sleep(time.Until(begun.Add(3500 * time.Millisecond))) // they are due each second
	if got := h.since(&n); got > 20 {                          // what takes long is begun again meanwhile
		t.Errorf("%d round trips", got)
	}
	if opened, _ := c.seen(); len(opened) > 0 {
		t.Errorf("the breaker opened %d times", len(opened))
	}
	if held := admin.Exists(ctx, leases...).Val(); held != int64(len(leases)) {
		t.Errorf("%d of %d leases are still there", held, len(leases))
	}
	h.set(nil)
	stored(t, s.ReturnMany(ctx, returns))
}

func TestUserWithoutMGETReadsManyKeysAllTheSame(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{}) // the documented user may not use it
	s, err := cache.NewRedis(asUser(t, server, granted...), cache.Options{Namespace: "app"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, key := range []string{"a", "b"} {
		if err := s.Set(t.Context(), key, entryOf("v", time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.Client().LPush(t.Context(), "app:{list}", "x").Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got := cachetest.ReadMany(t.Context(), s, []string{"a", "none", "b", "list"})
		if !got[0].Reading.Fresh() || got[1].Reading.Found || !got[2].Reading.Fresh() || got[3].Reading == nil || got[3].Reading.Damage == nil {
			t.Errorf("%+v", got)
		}
	}
}

func TestForeignTypeAmongManyIsOverwritten(t *testing.T) {
	s, _, admin := tripped(t)
	if err := admin.LPush(t.Context(), "test:{k1}", "x").Err(); err != nil {
		t.Fatal(err)
	}
	keys, requests, _ := requestsFor(3)
	for _, r := range cachetest.ReadMany(t.Context(), s, keys) {
		if r.Err != nil || r.Reading.Found {
			t.Errorf("%+v", r)
		}
	}
	stored(t, s.ReturnMany(t.Context(), acquired(t, s.AcquireMany(t.Context(), requests))))
	if r := cachetest.ReadMany(t.Context(), s, keys)[1]; r.Err != nil || !r.Reading.Fresh() {
		t.Errorf("%+v", r)
	}
}

func TestManyKeysOfADeadRedisFailAtOnce(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	proxy := redistest.RunProxy(t, server.Addr())
	o := proxy.Options()
	o.ReadTimeout, o.DialTimeout = 200*time.Millisecond, 200*time.Millisecond
	client := redis.NewClient(o)
	defer client.Close()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := proxy.Blackhole(); err != nil {
		t.Fatal(err)
	}
	keys, requests, _ := requestsFor(1000)
	start := time.Now()
	for range 3 {
		for _, r := range cachetest.ReadMany(t.Context(), s, keys) {
			if !errors.Is(r.Err, cache.ErrUnavailable) {
				t.Fatalf("%+v", r)
			}
		}
		for _, a := range s.AcquireMany(t.Context(), requests) {
			if !errors.Is(a.Err, cache.ErrUnavailable) {
				t.Fatalf("%+v", a)
			}
		}
	}
	// 400 ms each, a few times until the breaker opens.
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := proxy.Restore(); err != nil {
		t.Fatal(err)
	}
}

// taggedFills makes fills of returns that carry two tags each, which nothing else
// carries.
func taggedFills(t *testing.T, s cache.Store, returns []cache.Return) {
	t.Helper()
	stamp, err := s.Stamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range returns {
		e := entryOf("v", time.Minute)
		e.Stamp, e.Tags = stamp, []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
		returns[i].Entry = e
	}
}

// So may their tags, to be tied and to be looked up.
func TestTagsOfManyKeysHaveMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redistest.RunEmbeddedInMemory(t).Client()
		h := &trips{}
		client.AddHook(h)
		s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		time.Sleep(time.Second) // until the subscription is live
		h.set(func(cmds []redis.Cmder) { time.Sleep(time.Duration(len(cmds)) * 200 * time.Microsecond) })
		keys, requests, _ := requestsFor(1500)
		returns := acquired(t, s.AcquireMany(t.Context(), requests))
		taggedFills(t, s, returns)
		stored(t, s.ReturnMany(t.Context(), returns))
		for _, r := range cachetest.ReadMany(t.Context(), s, keys) {
			if r.Err != nil || !r.Reading.Fresh() {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func TestTaggedKeysAmongManyAreEachTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := cache.NewRedis(redistest.RunEmbeddedInMemory(t).Client(), cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		keys := []string{"a", "b", "c", "plain", "none"}
		for _, key := range keys[:4] {
			e := entryOf("of "+key, time.Minute)
			if key != "plain" {
				e.Tags = []string{"all", "of " + key}
			}
			if err := s.Set(t.Context(), key, e); err != nil {
				t.Fatal(err)
			}
		}
		check := func(there ...bool) {
			t.Helper()
			for i, r := range cachetest.ReadMany(t.Context(), s, keys) {
				if r.Err != nil || r.Reading.Found != there[i] || there[i] && string(r.Reading.Entry.Payload) != "of "+keys[i] {
					t.Errorf("%s: %+v", keys[i], r)
				}
			}
		}
		check(true, true, true, true, false)
		if err := s.DeleteTag(t.Context(), "of b"); err != nil {
			t.Fatal(err)
		}
		check(true, false, true, true, false)
		if err := s.DeleteTag(t.Context(), "all"); err != nil {
			t.Fatal(err)
		}
		check(false, false, false, true, false)
	})
}

func TestScriptsOfTagsThatWereFlushedAreSentAgainInPipelines(t *testing.T) {
	s, h, admin := tripped(t)
	_, requests, _ := requestsFor(500)
	returns := acquired(t, s.AcquireMany(t.Context(), requests))
	taggedFills(t, s, returns)
	if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	n := h.n.Load()
	stored(t, s.ReturnMany(t.Context(), returns))
	if got := h.since(&n); got > 8 {
		t.Errorf("%d round trips", got)
	}
}

// Goroutines of calls stay for the next, and keep nothing of the last.
func TestGoroutinesThatStayKeepNoValues(t *testing.T) {
	s, _, _ := tripped(t)
	keys := warmed(t, s, 20, 1<<10)
	for range 3 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var values []weak.Pointer[byte]
		for range 8 {
			wg.Go(func() {
				s.ReadMany(t.Context(), "", keys, func(_ int, r *cache.Reading, err error) {
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					values = append(values, weak.Make(&r.Entry.Payload[0]))
				})
			})
		}
		wg.Wait()
		if len(values) != 8*len(keys) {
			t.Fatalf("%d values were read", len(values))
		}
		eventually(t, func() bool {
			runtime.GC()
			return !slices.ContainsFunc(values, func(p weak.Pointer[byte]) bool { return p.Value() != nil })
		})
	}
}
