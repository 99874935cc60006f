package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/cache/cachetest"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// A pause holds commands back while a server does something else, or is gone.
// One whose context ends first is not sent.
type pause struct{ until, each atomic.Int64 } // Unix nanoseconds; nanoseconds

func (p *pause) begin(d time.Duration) { p.until.Store(time.Now().Add(d).UnixNano()) }

// slow makes every command take so much longer.
func (p *pause) slow(d time.Duration) { p.each.Store(int64(d)) }

func (p *pause) wait(ctx context.Context) error {
	d := max(time.Until(time.Unix(0, p.until.Load())), time.Duration(p.each.Load()))
	if d <= 0 {
		// Not with a timer: several goroutines of a bubble that find their timers due
		// already crash Go 1.26's race detector now and then.
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pause) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *pause) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := p.wait(ctx); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (p *pause) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := p.wait(ctx); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err) // as the client does
			}
			return err
		}
		return next(ctx, cmds)
	}
}

// changes notes when a breaker opened and closed.
type changes struct {
	mu             sync.Mutex
	opened, closed []time.Time
	store          cache.Store
}

func (c *changes) Observe(e cache.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e.Kind {
	case cache.BreakerOpened:
		c.opened = append(c.opened, time.Now())
	case cache.BreakerClosed:
		c.closed = append(c.closed, time.Now())
	}
}

func (c *changes) seen() (opened, closed []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.opened), slices.Clone(c.closed)
}

// underLoad runs the test on a store that readers read from all the time, and
// that acquirers ask for leases of many keys.
func underLoad(t *testing.T, readers, acquirers int, test func(t *testing.T, p *pause, c *changes, slowRead *atomic.Int64)) {
	t.Run(fmt.Sprintf("%d readers, %d acquirers", readers, acquirers), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client := redistest.RunEmbeddedInMemory(t).Client()
			p, c := &pause{}, &changes{}
			client.AddHook(p)
			s, err := cache.NewRedis(client, cache.Options{Namespace: "test", Observer: c})
			if err != nil {
				t.Fatal(err)
			}
			c.store = s
			time.Sleep(time.Second) // until the subscription is live
			var (
				stop     atomic.Bool
				wg       sync.WaitGroup
				slowRead atomic.Int64 // when the last read ended that took any time
			)
			for i := range readers {
				wg.Go(func() {
					for !stop.Load() {
						start := time.Now()
						_, err := s.Read(context.Background(), fmt.Sprint("k", i))
						if err != nil && !errors.Is(err, cache.ErrUnavailable) {
							t.Errorf("Read: %v", err)
						}
						if time.Since(start) > 2*time.Millisecond { // a batch may be held back so long
							slowRead.Store(time.Now().UnixNano())
						}
						time.Sleep(time.Duration(10+i%7) * time.Millisecond)
					}
				})
			}
			for i := range acquirers {
				wg.Go(func() {
					for n := 0; !stop.Load(); n++ {
						a, err := s.Acquire(context.Background(), fmt.Sprintf("a%d:%d", i, n), cache.Ask{TTL: 100 * time.Millisecond})
						if err == nil && a.Lease != nil {
							_ = s.Release(context.Background(), a.Lease)
						}
						time.Sleep(time.Duration(10+i%7) * time.Millisecond)
					}
				})
			}
			time.Sleep(100 * time.Millisecond)
			test(t, p, c, &slowRead)
			stop.Store(true)
			wg.Wait()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			_ = client.Close()
		})
	})
}

var loads = [][2]int{{1, 0}, {0, 1}, {30, 0}, {0, 30}, {20, 20}}

// pitfall 28
func TestBreakerOpensAfterTwoTimeoutsWhateverTheLoad(t *testing.T) {
	for _, l := range loads {
		underLoad(t, l[0], l[1], func(t *testing.T, p *pause, c *changes, slowRead *atomic.Int64) {
			const timeout = 250 * time.Millisecond
			began := time.Now()
			p.begin(5 * time.Second)
			time.Sleep(4 * time.Second)
			opened, _ := c.seen()
			if len(opened) != 1 {
				t.Fatalf("opened %d times", len(opened))
			}
			// A caller comes at most 16 ms after the one before, twice.
			if took := opened[0].Sub(began); took < 2*timeout || took > 2*timeout+32*time.Millisecond {
				t.Errorf("opened after %v", took)
			}
			if l[0] > 0 && time.Unix(0, slowRead.Load()).After(opened[0]) {
				t.Errorf("a read still waited %v after the breaker had opened", time.Unix(0, slowRead.Load()).Sub(opened[0]))
			}
			time.Sleep(time.Until(began.Add(7 * time.Second)))
			if opened, closed := c.seen(); len(opened) != 1 || len(closed) != 1 {
				t.Errorf("opened %d times, closed %d times", len(opened), len(closed))
			}
		})
	}
}

// An acquire is sent again at once. If the failure of the first weren't known yet,
// that of the second would count for nothing.
func TestFailureIsCountedBeforeItsCallersKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redistest.RunEmbeddedInMemory(t).Client()
		s, err := cache.NewRedis(client, cache.Options{Namespace: "test", BreakerFailures: 10})
		if err != nil {
			t.Fatal(err)
		}
		for i, givenUp := range []bool{false, true} {
			if n := cache.FailuresWhenSettled(s, givenUp); n != int32(i+1) {
				t.Errorf("given up %v: %d failures were counted when its callers went on, of %d", givenUp, n, i+1)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		_ = client.Close()
	})
}

// A sender's alarm is set for one batch after another: each has its time, and no
// more, whenever the one before was sent.
func TestEachBatchHasItsTime(t *testing.T) {
	const timeout = time.Minute // of inBubble
	for _, before := range []time.Duration{0, time.Second, timeout - 1, timeout, timeout + 1, 3 * timeout} {
		inBubble(t, func(t *testing.T, s *cache.Redis, g *gate, _ *redis.Client) {
			wantNothing := func() {
				t.Helper()
				if r, err := s.Read(t.Context(), "k"); err != nil || r.Found {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			wantNothing()
			time.Sleep(before)
			for range 2 { // the second by a sender of its own
				open := g.shut(&g.way)
				start := time.Now()
				_, err := s.Read(t.Context(), "other") // one of "k" may be held back, as nothing was found there
				if took := time.Since(start); !errors.Is(err, cache.ErrUnavailable) || took != timeout {
					t.Errorf("%v after another read: %v after %v", before, err, took)
				}
				open()
				wantNothing()
			}
		})
	}
}

// Who notices the end of a timeout late gives the call more time, once, and says so.
func TestLateProcessIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redistest.RunEmbeddedInMemory(t).Client()
		var told []cache.Event
		s, err := cache.NewRedis(client, cache.Options{Namespace: "test", BreakerFailures: 10, Observer: observing(func(e cache.Event) {
			if e.Kind == cache.ProcessLate {
				told = append(told, e)
			}
		})})
		if err != nil {
			t.Fatal(err)
		}
		const allowed = 20 * time.Millisecond
		if n := cache.RingLate(s, allowed); n != 0 || told != nil {
			t.Errorf("%v late: given time again %d times, told %v", allowed, n, told)
		}
		late := allowed + time.Millisecond
		if n := cache.RingLate(s, late); n != 1 || len(told) != 1 || told[0].Duration != late || told[0].Node != client.Options().Addr {
			t.Errorf("%v late: given time again %d times, told %v", late, n, told)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		_ = client.Close()
	})
}

type observing func(cache.Event)

func (o observing) Observe(e cache.Event) { o(e) }

// A large script, a fork for a snapshot, an election.
func TestBreakerSitsOutAPause(t *testing.T) {
	for _, l := range loads {
		underLoad(t, l[0], l[1], func(t *testing.T, p *pause, c *changes, _ *atomic.Int64) {
			for range 3 {
				p.begin(450 * time.Millisecond)
				time.Sleep(time.Second)
			}
			if opened, _ := c.seen(); len(opened) > 0 {
				t.Errorf("opened %d times in 3 pauses of 450ms", len(opened))
			}
		})
	}
}

func TestBreakerStaysClosedWhileRedisIsSlow(t *testing.T) {
	for _, l := range loads {
		underLoad(t, l[0], l[1], func(t *testing.T, p *pause, c *changes, _ *atomic.Int64) {
			p.slow(200 * time.Millisecond) // below RedisTimeout
			time.Sleep(2 * time.Second)
			p.slow(0)
			if opened, _ := c.seen(); len(opened) > 0 {
				t.Errorf("opened %d times", len(opened))
			}
		})
	}
}

// A master without the replicas that it wants (min-replicas-to-write) takes no
// writes, and what is stored is there to be read.
func TestBreakerStaysClosedWithoutReplicas(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	if err := s.Set(ctx, "stored", entryOf("v", time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := server.Client().ConfigSet(ctx, "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if a, err := s.Acquire(ctx, "missing", lasting()); !errors.Is(err, cache.ErrUnavailable) || !redis.IsNoReplicasError(err) {
			t.Fatalf("Acquire: %+v, %v, want NOREPLICAS", a, err)
		}
		if err := s.Delete(ctx, "stored"); !redis.IsNoReplicasError(err) {
			t.Fatalf("Delete: error %v, want NOREPLICAS", err)
		} else if strings.Contains(err.Error(), "may still be carried out") {
			t.Fatalf("Delete: %v, and it was answered", err)
		}
		if r, err := s.Read(ctx, "stored"); err != nil || !r.Found {
			t.Fatalf("Read: %+v, %v, want what is stored", r, err)
		}
	}
	if err := server.Client().ConfigSet(ctx, "min-replicas-to-write", "0").Err(); err != nil {
		t.Fatal(err)
	}
}

// A server that is loading, or was demoted, turns away each script of a pipeline as it
// does a lone one.
func TestPipelinesThatAreTurnedAwayOpenTheBreaker(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	c := &changes{}
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second, Observer: c})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	_, requests, _ := requestsFor(4)
	returns := acquired(t, s.AcquireMany(ctx, requests))
	if err := server.Client().Do(ctx, "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, r := range s.ReturnMany(ctx, returns) {
			if !redis.IsReadOnlyError(r.Err) {
				t.Fatalf("error %v, want READONLY", r.Err)
			}
		}
	}
	eventually(t, func() bool { opened, _ := c.seen(); return len(opened) > 0 })
	if err := server.Client().Do(ctx, "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
}

// That a store was closed is said first, whatever its node was like.
func TestClosedStoreSaysSoWhileRedisIsAway(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	c := &changes{}
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second, Observer: c})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		_, _ = s.Read(t.Context(), "k")
		opened, _ := c.seen()
		return len(opened) > 0
	})
	_ = s.Close()
	ctx := t.Context()
	_, read := s.Read(ctx, "k")
	_, acquired := s.Acquire(ctx, "k", lasting())
	for i, err := range []error{read, acquired, s.Set(ctx, "k", entryOf("v", time.Minute)), s.Delete(ctx, "k"), s.Expire(ctx, "k"), s.Reset(ctx, "k"), s.DeleteTag(ctx, "t")} {
		if !errors.Is(err, cache.ErrClosed) {
			t.Errorf("call %d: error %v, want ErrClosed", i, err)
		}
	}
}

// A slot on its way from one node to another answers TRYAGAIN until it has arrived.
// That is waited for, and holds up no key of another slot: nor does it look as if
// the node were away.
func TestSlotOnTheMoveHoldsUpNoOther(t *testing.T) {
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	ctx, c := t.Context(), &changes{}
	s, err := cache.NewRedis(cluster.Client(), cache.Options{Namespace: "test", RedisTimeout: 2 * time.Second, Observer: c})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	slotOf := func(key string) (slot, at int) {
		slot, err := cluster.Slot(ctx, "test:{"+key+"}")
		if err != nil {
			t.Fatal(err)
		}
		master, err := cluster.MasterFor(ctx, "test:{"+key+"}")
		if err != nil {
			t.Fatal(err)
		}
		return slot, slices.Index(cluster.Masters(), master)
	}
	slot, at := slotOf("moving")
	staying := func() string {
		for i := 0; ; i++ {
			key := fmt.Sprint("staying", i)
			if other, on := slotOf(key); on == at && other != slot {
				return key
			}
		}
	}()
	if err := s.Set(ctx, staying, entryOf("v", time.Hour)); err != nil {
		t.Fatal(err)
	}
	if a, err := s.Acquire(ctx, staying+"}", lasting()); err != nil || a.Verdict != cache.Granted {
		t.Fatal(a.Verdict, err) // the subscription is live
	}
	if err := cluster.OpenSlot(ctx, slot, at, (at+1)%3); err != nil {
		t.Fatal(err)
	}
	turnedAway := func() string { // how often, as the server says that the slot is on its way to
		info := cluster.Masters()[(at+1)%3].Client().Info(ctx, "errorstats").Val()
		_, count, _ := strings.Cut(info, "errorstat_TRYAGAIN:")
		count, _, _ = strings.Cut(count, "\r\n")
		return count
	}
	for round := range 3 {
		before := turnedAway()
		var moving sync.WaitGroup
		for i := range 4 {
			moving.Go(func() {
				once := lasting()
				once.Once = true
				if _, err := s.Acquire(ctx, fmt.Sprint("moving}", i), once); !redis.IsTryAgainError(err) {
					t.Errorf("error %v, want TRYAGAIN", err)
				}
			})
		}
		eventually(t, func() bool { return turnedAway() != before })
		start := time.Now()
		a, err := s.Acquire(ctx, fmt.Sprint(staying, "}", round), lasting())
		if err != nil || a.Verdict != cache.Granted {
			t.Errorf("%v, %v, want granted", a.Verdict, err)
		}
		if took := time.Since(start); took > time.Second/2 {
			t.Errorf("it took %v", took)
		}
		moving.Wait()
		if r, err := s.Read(ctx, staying); err != nil || !r.Found {
			t.Errorf("%+v, %v, want what is stored", r, err)
		}
	}
	if opened, _ := c.seen(); len(opened) > 0 {
		t.Errorf("the breaker opened %d times", len(opened))
	}
}

// Of a slot that no node has, the client asks any of them. That one is well, and so is
// what else is on it.
func TestSlotThatNobodyServesHoldsUpNoOther(t *testing.T) {
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{Args: []string{"--cluster-require-full-coverage", "no"}})
	ctx, c := t.Context(), &changes{}
	var lost atomic.Int64
	s, err := cache.NewRedis(cluster.Client(), cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second, Observer: observing(func(e cache.Event) {
		c.Observe(e)
		if e.Kind == cache.SubscriptionLost {
			lost.Add(1)
		}
	})})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	slot, err := cluster.Slot(ctx, "test:{gone}")
	if err != nil {
		t.Fatal(err)
	}
	served := func() {
		t.Helper()
		for i := range 30 {
			a, err := s.Acquire(ctx, fmt.Sprint("served", i), lasting())
			if err != nil || a.Verdict != cache.Granted {
				t.Fatalf("%v, %v, want granted", a.Verdict, err)
			}
			if err := s.Release(ctx, a.Lease); err != nil {
				t.Fatal(err)
			}
		}
	}
	served() // the subscriptions are live
	for _, m := range cluster.Masters() {
		if err := m.Client().Do(ctx, "CLUSTER", "DELSLOTS", slot).Err(); err != nil {
			t.Fatal(err)
		}
	}
	w := s.Watch("gone")
	defer w.Close()
	for range 20 {
		if _, err := s.Acquire(ctx, "gone", lasting()); !errors.Is(err, cache.ErrUnavailable) {
			t.Fatalf("error %v, want ErrUnavailable", err)
		}
		if _, err := s.Read(ctx, "gone"); !errors.Is(err, cache.ErrUnavailable) {
			t.Fatalf("error %v, want ErrUnavailable", err)
		}
	}
	served()
	if opened, _ := c.seen(); len(opened) > 0 {
		t.Errorf("the breaker opened %d times", len(opened))
	}
	if n := lost.Load(); n > 0 {
		t.Errorf("%d subscriptions were lost", n)
	}
}

// Who reads many keys has more time, and need not wait for its end.
func TestReadManyIsToldWhenTheBreakerOpens(t *testing.T) {
	underLoad(t, 1, 0, func(t *testing.T, p *pause, c *changes, _ *atomic.Int64) {
		p.begin(5 * time.Second)
		start := time.Now()
		for _, r := range cachetest.ReadMany(t.Context(), c.store, make([]string, 2000)) {
			if !errors.Is(r.Err, cache.ErrUnavailable) {
				t.Fatalf("%+v", r)
			}
		}
		if took := time.Since(start); took > 600*time.Millisecond {
			t.Errorf("it took %v, and the breaker opens after two timeouts of 250ms", took)
		}
		time.Sleep(10 * time.Second) // until the client has given up, too
	})
}

// A Redis that comes back and turns everybody away isn't silent: why the breaker stays
// open is told, once.
func TestBreakerTellsWhyItStaysOpen(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	told := make(chan cache.Event, 100)
	s, err := cache.NewRedis(asUser(t, server, "~*", "&*", "+@all"), cache.Options{Namespace: "test", Observer: observing(func(e cache.Event) {
		if e.Kind == cache.BreakerOpened || e.Kind == cache.BreakerClosed {
			told <- e
		}
	})})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		_, _ = s.Read(t.Context(), "k")
	}
	if e := <-told; e.Kind != cache.BreakerOpened || e.Duration != 0 {
		t.Fatalf("%+v", e)
	}
	if err := server.Restart(t.Context()); err != nil { // it has forgotten the user
		t.Fatal(err)
	}
	if e := <-told; e.Kind != cache.BreakerOpened || e.Duration == 0 || !strings.Contains(fmt.Sprint(e.Err), "WRONGPASS") {
		t.Errorf("%+v", e)
	}
	select {
	case e := <-told:
		t.Errorf("and then %+v", e)
	case <-time.After(3 * time.Second):
	}
}
