package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

// trips is a hook that counts round trips of reads and scripts. It calls a function after
// each pipeline of scripts.
type trips struct {
	mu    sync.Mutex
	n     int
	after func(cmds []redis.Cmder)
}

func (h *trips) hook() redis.Hook {
	return around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		err := next()
		name := cmds[0].Name()
		h.mu.Lock()
		if name == "get" || name == "mget" || name == "hmget" || name == "time" || strings.HasPrefix(name, "eval") {
			h.n++
		}
		after := h.after
		h.mu.Unlock()
		if after != nil && len(cmds) > 1 && strings.HasPrefix(name, "eval") {
			after(cmds)
			for _, cmd := range cmds {
				if cmd.Err() != nil {
					return cmd.Err()
				}
			}
		}
		return err
	})
}

func (h *trips) set(after func([]redis.Cmder)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.after = after
}

// of is how many round trips a function takes.
func (h *trips) of(f func()) int {
	h.mu.Lock()
	before := h.n
	h.mu.Unlock()
	f()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n - before
}

// tripped is a store on a real server, and another client of the server. The store's round
// trips are counted. Its subscription is live.
func tripped(t *testing.T, opts redisstore.Options) (*redisstore.Store, *trips, *redis.Client) {
	t.Helper()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client, h := server.Client(), &trips{}
	client.AddHook(h.hook())
	if opts.RedisTimeout == 0 {
		opts.RedisTimeout = 5 * time.Second
	}
	s := opened(t, client, opts)
	granted(t, s, "first")
	return s, h, server.Client()
}

func requestsFor(n int) (keys []string, requests []store.Request, leases []string) {
	for i := range n {
		key := fmt.Sprint("k", i)
		keys, requests, leases = append(keys, key), append(requests, lasting(key)), append(leases, "test:{"+key+"}:lease")
	}
	return keys, requests, leases
}

// fillsOf checks that everything was granted, and returns the fills.
func fillsOf(t *testing.T, answers []store.Answer) (returns []store.Return) {
	t.Helper()
	for i, a := range answers {
		if a.Err != nil || a.Verdict != store.Granted {
			t.Fatalf("key %d: %v, %v", i, a.Verdict, a.Err)
		}
		returns = append(returns, store.Return{Lease: a.Lease, Entry: entryOf("v", time.Minute)})
	}
	return returns
}

func areOK(t *testing.T, all []store.Returned) {
	t.Helper()
	for i, r := range all {
		if !r.OK || r.Err != nil {
			t.Fatalf("key %d: %+v", i, r)
		}
	}
}

// areFound checks which keys have a fresh entry.
func areFound(t *testing.T, s store.Store, keys []string, found func(i int) bool) {
	t.Helper()
	for i, r := range storetest.ReadMany(t.Context(), s, "", keys) {
		if r.Err != nil || r.Reading.Fresh() != found(i) {
			t.Fatalf("key %d: %+v, %v", i, r.Reading, r.Err)
		}
	}
}

func all(int) bool  { return true }
func none(int) bool { return false }

func TestManyKeysTakeFewRoundTrips(t *testing.T) {
	s, h, admin := tripped(t, redisstore.Options{})
	keys, requests, _ := requestsFor(1000)
	read := func(found func(int) bool) int { return h.of(func() { areFound(t, s, keys, found) }) }
	if n := read(none); n != 1 {
		t.Errorf("%d round trips to read, want 1", n)
	}
	areOK(t, s.Return(t.Context(), []store.Return{{Lease: granted(t, s, "warm"), Entry: entryOf("v", time.Hour)}}))
	for _, flushed := range []int{0, 1} { // scripts that the server does not know are sent again
		flush := func() {
			if flushed == 1 {
				if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		var returns []store.Return
		flush()
		if n := h.of(func() { returns = fillsOf(t, s.Acquire(t.Context(), requests)) }); n != 1+flushed {
			t.Errorf("%d round trips to acquire, want %d", n, 1+flushed)
		}
		flush()
		if n := h.of(func() { areOK(t, s.Return(t.Context(), returns)) }); n != 1+flushed {
			t.Errorf("%d round trips to fill, want %d", n, 1+flushed)
		}
		if n := read(all); n != 1 {
			t.Errorf("%d round trips to read, want 1", n)
		}
		for i := range requests {
			if err := remove(t.Context(), s, keys[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The scripts of a pipeline for one master are answered by two, neither of which knows them.
func TestScriptsFollowSlotsThatMoveApart(t *testing.T) {
	t.Parallel()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	ctx, client := t.Context(), cluster.Client()
	var requests []store.Request
	var slots []int
	for i := 0; len(requests) < 6; i++ {
		key := fmt.Sprint("k", i)
		if masterOf(t, cluster, "test:{"+key+"}") != 0 {
			continue
		}
		slot, err := cluster.Slot(ctx, "test:{"+key+"}")
		if err != nil {
			t.Fatal(err)
		}
		requests, slots = append(requests, lasting(key)), append(slots, slot)
	}
	move := sync.OnceFunc(func() {
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
	})
	s := opened(t, client, redisstore.Options{RedisTimeout: 10 * time.Second})
	for i := range 30 { // the subscriptions are live
		granted(t, s, fmt.Sprint("warm", i))
	}
	client.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if len(cmds) > 1 && isScript(cmds[0]) {
			move()
		}
		return next()
	}))
	fillsOf(t, s.Acquire(ctx, requests))
}

// The caller gets the leases that a pipeline granted, even if the answers were lost.
func TestGrantsWithoutAnswersAreReplaced(t *testing.T) {
	for name, lost := range map[string]func(i int) bool{"all": all, "from the 20th on": func(i int) bool { return i >= 20 }} {
		t.Run(name, func(t *testing.T) {
			s, h, admin := tripped(t, redisstore.Options{})
			_, requests, leases := requestsFor(50)
			var once sync.Once
			h.set(func(cmds []redis.Cmder) {
				once.Do(func() {
					for i, cmd := range cmds {
						if lost(i) {
							cmd.SetErr(io.ErrUnexpectedEOF)
						}
					}
				})
			})
			returns := fillsOf(t, s.Acquire(t.Context(), requests))
			if n := admin.Exists(t.Context(), leases...).Val(); n != 50 {
				t.Errorf("%d leases, want 50", n)
			}
			areOK(t, s.Return(t.Context(), returns))
			if n := admin.Exists(t.Context(), leases...).Val(); n != 0 {
				t.Errorf("%d leases are left", n)
			}
		})
	}
}

// A fill is not sent again at once unless it was certainly not carried out.
func TestFillsAreNotSentTwice(t *testing.T) {
	s, h, _ := tripped(t, redisstore.Options{})
	_, requests, _ := requestsFor(11)
	returns := fillsOf(t, s.Acquire(t.Context(), requests))
	areOK(t, s.Return(t.Context(), returns[10:])) // the server knows the script
	returns = returns[:10]
	h.set(func(cmds []redis.Cmder) {
		if len(cmds) == 10 {
			cmds[3].SetErr(io.ErrUnexpectedEOF)
		}
	})
	n := h.of(func() {
		for i, r := range s.Return(t.Context(), returns) {
			if lost := i == 3; r.OK == lost || errors.Is(r.Err, store.ErrUnavailable) != lost {
				t.Errorf("key %d: %+v", i, r)
			}
		}
	})
	if n != 1 {
		t.Errorf("%d round trips, want 1", n)
	}
}

// Time is that of the server for many keys: a thousand may take longer than one call may.
func TestManyKeysHaveMoreTime(t *testing.T) {
	const timeout = 250 * time.Millisecond
	slow := around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if len(cmds) > 100 {
			time.Sleep(time.Duration(len(cmds)) * 500 * time.Microsecond)
		}
		return next()
	})
	bubble(t, redisstore.Options{RedisTimeout: timeout}, slow, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		keys, requests, _ := requestsFor(600)
		for _, tagged := range []bool{false, true} {
			returns := fillsOf(t, s.Acquire(t.Context(), requests))
			stamp, err := s.Stamp(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range returns {
				returns[i].Entry = entryOf("v", time.Minute)
				if tagged {
					returns[i].Entry.Stamp, returns[i].Entry.Tags = stamp, []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
				}
			}
			areOK(t, s.Return(t.Context(), returns))
			areFound(t, s, keys, all)
			var deletes []store.Change
			for _, key := range keys {
				deletes = append(deletes, store.Change{Kind: store.Delete, Key: key})
			}
			if err := errors.Join(s.Change(t.Context(), deletes)...); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Leases that were granted together are renewed in one pipeline. The pipeline's time limit
// grows with the number of leases.
func TestManyLeasesAreRenewedTogether(t *testing.T) {
	g := &events{}
	slow := around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if len(cmds) > 100 {
			time.Sleep(350 * time.Millisecond) // and once more, with the source of the script
		}
		return next()
	})
	bubble(t, redisstore.Options{RedisTimeout: 400 * time.Millisecond, Report: g.report}, slow, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		_, requests, leases := requestsFor(300)
		for i := range requests {
			requests[i].TTL, requests[i].RenewFor = 3*time.Second, time.Minute
		}
		returns := fillsOf(t, s.Acquire(t.Context(), requests))
		for range 9 {
			time.Sleep(time.Second)
		}
		if n := server.Client().Exists(t.Context(), leases...).Val(); n != int64(len(leases)) {
			t.Errorf("%d of %d leases are still there", n, len(leases))
		}
		if n := g.times(store.BreakerOpened); n > 0 {
			t.Errorf("the breaker opened %d times", n)
		}
		areOK(t, s.Return(t.Context(), returns))
	})
}

// To an MGET a key of a foreign type is absent.
func TestForeignTypeIsOverwritten(t *testing.T) {
	s, _, admin := tripped(t, redisstore.Options{})
	if err := admin.LPush(t.Context(), "test:{k1}", "x").Err(); err != nil {
		t.Fatal(err)
	}
	keys, requests, _ := requestsFor(3)
	if r, err := read(t.Context(), s, "k1"); err != nil || r.Found || !errors.Is(r.Damage, store.ErrDamaged) {
		t.Errorf("%+v, %v, want a damaged entry", r, err)
	}
	areFound(t, s, keys, none)
	areOK(t, s.Return(t.Context(), fillsOf(t, s.Acquire(t.Context(), requests))))
	areFound(t, s, keys, all)
}

func TestManyKeysOfADeadRedisFailSoon(t *testing.T) {
	g := newGate(func(redis.Cmder) bool { return true })
	bubble(t, redisstore.Options{RedisTimeout: 100 * time.Millisecond}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		open := g.shut(&g.way)
		keys, requests, _ := requestsFor(1000)
		start := time.Now()
		for range 3 {
			for _, r := range storetest.ReadMany(t.Context(), s, "", keys) {
				if !errors.Is(r.Err, store.ErrUnavailable) {
					t.Fatalf("%+v", r)
				}
			}
			for _, a := range s.Acquire(t.Context(), requests) {
				if !errors.Is(a.Err, store.ErrUnavailable) {
					t.Fatalf("%+v", a)
				}
			}
		}
		// 400 ms each, a few times until the breaker opens.
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		open()
	})
}

// A reader of many keys that leaves is answered for each key once: with the reading that
// there was by then, or that it left.
func TestReadOfManyIsLeftInTheMiddle(t *testing.T) {
	g := newGate(isRead)
	bubble(t, redisstore.Options{RedisTimeout: time.Minute}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		keys, _, _ := requestsFor(200)
		for _, key := range keys {
			mustSet(t, s, key, "v")
		}
		keys = append(keys, make([]string, 4000)...) // three pipelines
		ctx, cancel := context.WithCancel(t.Context())
		open := g.shut(&g.way)
		done := make(chan []storetest.Result)
		go func() { done <- storetest.ReadMany(ctx, s, "", keys) }()
		g.isHeld(t)
		cancel()
		for i, r := range <-done {
			if !errors.Is(r.Err, context.Canceled) {
				t.Fatalf("key %d: %+v", i, r)
			}
		}
		open()
		areFound(t, s, keys, func(i int) bool { return i < 200 })
	})
}

// A server that answers an MGET with too few values is damaged for the rest.
func TestValuesMissingFromAnMGETAreDamage(t *testing.T) {
	cut := around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		err := next()
		for _, cmd := range cmds {
			if m, ok := cmd.(*redis.StringSliceCmd); ok && cmd.Name() == "mget" && len(m.Val()) > 1 {
				m.SetVal(m.Val()[:len(m.Val())-1])
			}
		}
		return err
	})
	bubble(t, redisstore.Options{}, cut, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		keys, _, _ := requestsFor(3)
		for _, key := range keys {
			mustSet(t, s, key, "v")
		}
		for i, r := range storetest.ReadMany(t.Context(), s, "", keys) {
			if lost := i == 2; lost != errors.Is(r.Err, store.ErrRefused) || !lost && !r.Reading.Fresh() {
				t.Errorf("key %d: %+v, %v", i, r.Reading, r.Err)
			}
		}
	})
}

// Commands are printed with their keys by the hooks of a client.
func TestReadsArePrintedWithTheirKeys(t *testing.T) {
	var mu sync.Mutex
	var printed []string
	hook := around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		mu.Lock()
		if text := cmds[0].String(); isRead(cmds[0]) && !strings.Contains(text, "probe") {
			printed = append(printed, text)
		}
		mu.Unlock()
		return next()
	})
	bubble(t, redisstore.Options{}, hook, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		areFound(t, s, []string{"a"}, none)
		areFound(t, s, []string{"a", "b"}, none)
		if got := strings.Join(printed, "|"); got != "get test:{a}: |mget test:{a} test:{b}: []" {
			t.Errorf("%q", got)
		}
	})
}

// A limiter may keep pipelines back and leave their commands as they are.
func TestCommandsThatAHookKeepsBackFail(t *testing.T) {
	h := &wall{}
	keeper := around(func(_ context.Context, _ []redis.Cmder, next func() error) error {
		if h.up.Load() {
			return errWall
		}
		return next()
	})
	bubble(t, redisstore.Options{BreakerFailures: 1000}, keeper, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		keys, requests, _ := requestsFor(3)
		returns := fillsOf(t, s.Acquire(t.Context(), requests))
		h.up.Store(true)
		_, stamp := s.Stamp(t.Context())
		_, one := read(t.Context(), s, keys[0])
		errs := []error{
			stamp, one, s.ChangeTags(t.Context(), store.DeleteTag, []string{"t"}), s.ChangeTags(t.Context(), store.ExpireTag, []string{"t"}),
			remove(t.Context(), s, "k"), acquire(t.Context(), s, lasting("k")).Err,
		}
		for _, r := range storetest.ReadMany(t.Context(), s, "", keys) {
			errs = append(errs, r.Err)
		}
		for _, r := range s.Return(t.Context(), returns) {
			errs = append(errs, r.Err)
		}
		for _, a := range s.Acquire(t.Context(), []store.Request{lasting("x"), lasting("y")}) {
			errs = append(errs, a.Err)
		}
		for i, err := range errs {
			if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, errWall) {
				t.Errorf("call %d: error %v", i, err)
			}
		}
		h.up.Store(false)
		time.Sleep(time.Second) // the fills are sent again
		areFound(t, s, keys, all)
	})
}
