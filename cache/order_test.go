package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// A gate holds acquires up on their way to Redis, and pipelines of them on their
// way back.
type gate struct {
	redistest.Counter
	mu       sync.Mutex
	way, ret chan struct{} // nil: open
	held     chan struct{} // one for each that is being held up
	of       func(cmd redis.Cmder) bool
	passed   atomic.Int64 // of those it is for, by round trip
}

func acquires(cmd redis.Cmder) bool {
	args := cmd.Args()
	return len(args) >= 3 && args[2] == 6
}

// shut shuts one side of the gate.
func (g *gate) shut(side *chan struct{}) (open func()) {
	c := make(chan struct{})
	g.mu.Lock()
	*side = c
	g.mu.Unlock()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		if *side == c { // it may have been shut again
			*side = nil
		}
		g.mu.Unlock()
		close(c)
	})
}

func (g *gate) pass(cmds []redis.Cmder, next func() error) error {
	wait := func(of *chan struct{}) {
		g.mu.Lock()
		c := *of
		g.mu.Unlock()
		if c != nil {
			g.held <- struct{}{}
			<-c
		}
	}
	if !g.of(cmds[0]) {
		return next()
	}
	g.passed.Add(1)
	wait(&g.way)
	err := next()
	if len(cmds) > 1 {
		wait(&g.ret)
	}
	return err
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	next = g.Counter.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		return g.pass([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	next = g.Counter.ProcessPipelineHook(next)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return g.pass(cmds, func() error { return next(ctx, cmds) })
	}
}

type asking struct {
	key    string
	answer cache.Answer
	err    error
}

// ask acquires keys, each in a goroutine of its own.
func ask(ctx context.Context, s cache.Store, answers chan<- asking, keys ...string) {
	for _, key := range keys {
		go func() {
			a, err := s.Acquire(ctx, key, lasting())
			answers <- asking{key, a, err}
		}()
	}
}

func gated(t *testing.T) (*cache.Redis, *gate, *redis.Client) {
	t.Helper()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client := server.Client()
	g := &gate{held: make(chan struct{}, 100), of: acquires}
	client.AddHook(g)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if a, err := s.Acquire(t.Context(), "first", lasting()); err != nil || a.Verdict != cache.Granted {
		t.Fatal(a.Verdict, err) // its subscription is live
	}
	return s, g, server.Client()
}

// busy has as many acquires under way as go at once, and returns when they are
// held up.
func busy(t *testing.T, s cache.Store, g *gate, answers chan<- asking) {
	t.Helper()
	for i := range cache.OrderSenders {
		ask(t.Context(), s, answers, fmt.Sprint("busy", i))
		<-g.held
	}
}

// allGranted waits for so many answers, which grant their leases.
func allGranted(t *testing.T, answers <-chan asking, n int) {
	t.Helper()
	late := time.After(20 * time.Second) // RedisTimeout is longer
	for range n {
		select {
		case a := <-answers:
			if a.err != nil || a.answer.Verdict != cache.Granted {
				t.Errorf("%s: %v, %v", a.key, a.answer.Verdict, a.err)
			}
		case <-late:
			t.Fatal("no answer")
		}
	}
}

func TestAcquiresThatComeMeanwhileShareARoundTrip(t *testing.T) {
	s, g, admin := gated(t)
	answers := make(chan asking)
	open := g.shut(&g.way)
	busy(t, s, g, answers)
	var keys []string
	for i := range 12 { // fewer than make a batch full
		keys = append(keys, fmt.Sprint("k", i))
	}
	ask(t.Context(), s, answers, keys...)
	eventually(t, func() bool { return cache.QueuedOrders(s) == len(keys) })
	if err := admin.ScriptFlush(t.Context()).Err(); err != nil { // all are sent again
		t.Fatal(err)
	}
	before := g.Trips()
	open()
	seen := map[cache.Token]bool{}
	for range len(keys) + cache.OrderSenders {
		a := <-answers
		if a.err != nil || a.answer.Verdict != cache.Granted || a.answer.Lease.Key != a.key || seen[a.answer.Lease.Token] {
			t.Errorf("%s: %v, %v", a.key, a.answer.Verdict, a.err)
			continue
		}
		seen[a.answer.Lease.Token] = true
		if held := admin.Get(t.Context(), "test:{"+a.key+"}:lease").Val(); held != string(a.answer.Lease.Token[:])+"1" {
			t.Errorf("%s: Redis has the lease %x", a.key, held)
		}
	}
	// Each of the busy ones was counted at the gate's exit and is sent again; of the
	// rest there may be two parts, each of which is sent twice.
	if n := g.Trips() - before; n > 2*cache.OrderSenders+4 {
		t.Errorf("%d round trips", n)
	}
}

func TestQueuedAcquireLeavesWithItsCaller(t *testing.T) {
	s, g, admin := gated(t)
	answers := make(chan asking, 10)
	open := g.shut(&g.way)
	defer open()
	busy(t, s, g, answers)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan asking)
	ask(ctx, s, gone, "gone")
	ask(t.Context(), s, answers, "stays")
	eventually(t, func() bool { return cache.QueuedOrders(s) == 2 })
	cancel()
	if a := <-gone; !errors.Is(a.err, context.Canceled) {
		t.Error(a.err)
	}
	sent := g.Count("evalsha", "eval")
	open()
	allGranted(t, answers, cache.OrderSenders+1)
	if n := g.Count("evalsha", "eval") - sent; n != int64(cache.OrderSenders)+1 {
		t.Errorf("%d scripts were sent, the one of the caller who had left too?", n)
	}
	if admin.Exists(t.Context(), "test:{gone}:lease").Val() != 0 {
		t.Error("the lease of a caller who had left was granted")
	}
}

func TestGrantOfABatchWhoseCallerHasLeftIsGivenBack(t *testing.T) {
	s, g, admin := gated(t)
	answers := make(chan asking, 10)
	open := g.shut(&g.way)
	busy(t, s, g, answers)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan asking)
	ask(ctx, s, gone, "gone")
	ask(t.Context(), s, answers, "stays")
	eventually(t, func() bool { return cache.QueuedOrders(s) == 2 })
	answer := g.shut(&g.ret)
	open()
	eventually(t, func() bool { return admin.Exists(t.Context(), "test:{gone}:lease").Val() == 1 })
	cancel()
	if a := <-gone; !errors.Is(a.err, context.Canceled) {
		t.Error(a.err)
	}
	answer()
	allGranted(t, answers, cache.OrderSenders+1)
	eventually(t, func() bool { return admin.Exists(t.Context(), "test:{gone}:lease").Val() == 0 })
	if admin.Exists(t.Context(), "test:{stays}:lease").Val() != 1 {
		t.Error("the other's lease is gone too")
	}
}

// What nobody waits for any more is given back beside the batches: none waits for a
// batch that would have to come after it.
func TestLateGrantsOfAllSendersHoldNothingUp(t *testing.T) {
	s, g, admin := gated(t)
	open := g.shut(&g.way)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan asking)
	for i := range cache.OrderSenders {
		ask(ctx, s, gone, fmt.Sprint("gone", i))
		<-g.held
	}
	cancel()
	for range cache.OrderSenders {
		if a := <-gone; !errors.Is(a.err, context.Canceled) {
			t.Error(a.err)
		}
	}
	open()
	answers := make(chan asking, 1)
	ask(t.Context(), s, answers, "next")
	allGranted(t, answers, 1)
	for i := range cache.OrderSenders {
		eventually(t, func() bool { return admin.Exists(t.Context(), fmt.Sprintf("test:{gone%d}:lease", i)).Val() == 0 })
	}
}
