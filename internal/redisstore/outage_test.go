package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

// A pause is a hook that holds commands back while a server does something else. If its
// context ends first, a command is not sent.
type pause struct{ until, each atomic.Int64 } // Unix nanoseconds; nanoseconds

func (p *pause) begin(d time.Duration) { p.until.Store(time.Now().Add(d).UnixNano()) }

func (p *pause) hook() redis.Hook {
	return around(func(ctx context.Context, cmds []redis.Cmder, next func() error) error {
		// Without a pause there is no timer: goroutines of a bubble that find their timers due
		// crash Go 1.26's race detector now and then.
		if d := max(time.Until(time.Unix(0, p.until.Load())), time.Duration(p.each.Load())); d > 0 {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
		if err := ctx.Err(); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err) // as the client does
			}
			return err
		}
		return next()
	})
}

// underLoad runs the test on a store that readers read from all the time, and that
// acquirers ask for leases of many keys. slowRead is when the last read ended that took
// any time.
func underLoad(t *testing.T, readers, acquirers int, test func(t *testing.T, p *pause, s *redisstore.Store, e *events, slowRead *atomic.Int64)) {
	t.Run(fmt.Sprintf("%d readers, %d acquirers", readers, acquirers), func(t *testing.T) {
		p, e := &pause{}, &events{}
		bubble(t, redisstore.Options{Report: e.report}, p.hook(), func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
			var (
				stop     atomic.Bool
				wg       sync.WaitGroup
				slowRead atomic.Int64
			)
			for i := range readers {
				wg.Go(func() {
					for !stop.Load() {
						start := time.Now()
						if _, err := read(context.Background(), s, fmt.Sprint("k", i)); err != nil && !errors.Is(err, store.ErrUnavailable) {
							t.Errorf("Read: %v", err)
						}
						if time.Since(start) > time.Millisecond {
							slowRead.Store(time.Now().UnixNano())
						}
						time.Sleep(time.Duration(10+i%7) * time.Millisecond)
					}
				})
			}
			for i := range acquirers {
				wg.Go(func() {
					for n := 0; !stop.Load(); n++ {
						a := acquire(context.Background(), s, store.Request{Key: fmt.Sprintf("a%d:%d", i, n), TTL: 100 * time.Millisecond})
						if a.Lease != nil {
							giveBack(context.Background(), s, store.Return{Lease: a.Lease})
						}
						time.Sleep(time.Duration(10+i%7) * time.Millisecond)
					}
				})
			}
			time.Sleep(100 * time.Millisecond)
			test(t, p, s, e, &slowRead)
			stop.Store(true)
			wg.Wait()
		})
	})
}

var loads = [][2]int{{1, 0}, {0, 1}, {30, 0}, {0, 30}, {20, 20}}

// pitfall 28
func TestBreakerOpensAfterTwoTimeouts(t *testing.T) {
	for _, l := range loads {
		underLoad(t, l[0], l[1], func(t *testing.T, p *pause, _ *redisstore.Store, e *events, slowRead *atomic.Int64) {
			const timeout = 250 * time.Millisecond
			began := time.Now()
			p.begin(5 * time.Second)
			for e.times(store.BreakerOpened) == 0 && time.Since(began) < 4*time.Second {
				time.Sleep(time.Millisecond)
			}
			// A caller comes at most 16 ms after the one before, twice.
			opened := time.Now()
			if took := opened.Sub(began); took < 2*timeout || took > 2*timeout+34*time.Millisecond {
				t.Errorf("opened after %v", took)
			}
			for e.times(store.BreakerClosed) == 0 && time.Since(began) < 7*time.Second {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(3 * timeout) // it would open again
			if last := time.Unix(0, slowRead.Load()); l[0] > 0 && last.After(opened) && last.Before(began.Add(5*time.Second)) {
				t.Errorf("a read still waited %v after the breaker had opened", last.Sub(opened))
			}
			if opened, closed := e.times(store.BreakerOpened), e.times(store.BreakerClosed); opened != 1 || closed != 1 {
				t.Errorf("opened %d times, closed %d times", opened, closed)
			}
		})
	}
}

// A pause is a large script, a fork for a snapshot or an election. A slow server answers
// within RedisTimeout.
func TestBreakerStaysClosedThroughPauses(t *testing.T) {
	for _, l := range loads {
		underLoad(t, l[0], l[1], func(t *testing.T, p *pause, _ *redisstore.Store, e *events, _ *atomic.Int64) {
			for range 3 {
				p.begin(450 * time.Millisecond)
				time.Sleep(600 * time.Millisecond)
			}
			p.each.Store(int64(200 * time.Millisecond))
			time.Sleep(2 * time.Second)
			p.each.Store(0)
			if n := e.times(store.BreakerOpened); n > 0 {
				t.Errorf("opened %d times", n)
			}
		})
	}
}

// A reader of many keys has more time, and need not wait for its end.
func TestReadManyEndsWhenTheBreakerOpens(t *testing.T) {
	underLoad(t, 1, 0, func(t *testing.T, p *pause, s *redisstore.Store, _ *events, _ *atomic.Int64) {
		p.begin(5 * time.Second)
		start := time.Now()
		for _, r := range storetest.ReadMany(t.Context(), s, "", make([]string, 2000)) {
			if !errors.Is(r.Err, store.ErrUnavailable) {
				t.Fatalf("%+v", r)
			}
		}
		if took := time.Since(start); took > 600*time.Millisecond {
			t.Errorf("it took %v, and the breaker opens after two timeouts of 250ms", took)
		}
		time.Sleep(10 * time.Second) // until the client has given up, too
	})
}

// An answer that is there before its caller waits for it is the answer.
func TestQuickAnswerIsNoTimeout(t *testing.T) {
	s := opened(t, redistest.RunEmbedded(t).Client(), redisstore.Options{RedisTimeout: time.Minute})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10_000 {
				if err := redisstore.Bounded(s, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A master without the replicas that it wants (min-replicas-to-write) takes no writes, and
// its entries can be read.
func TestBreakerStaysClosedWithoutReplicas(t *testing.T) {
	e := &events{}
	s, _, admin := tripped(t, redisstore.Options{Report: e.report})
	ctx := t.Context()
	mustSet(t, s, "stored", "v")
	if err := admin.ConfigSet(ctx, "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if a := acquire(ctx, s, lasting("missing")); !errors.Is(a.Err, store.ErrUnavailable) || !redis.IsNoReplicasError(a.Err) {
			t.Fatalf("%v, %v, want NOREPLICAS", a.Verdict, a.Err)
		}
		if err := remove(ctx, s, "stored"); !redis.IsNoReplicasError(err) || contains(err, "may still be carried out") {
			t.Fatalf("error %v, want NOREPLICAS as the answer", err)
		}
		reads(t, s, "stored", "v")
	}
	if n := e.times(store.BreakerOpened); n > 0 {
		t.Errorf("the breaker opened %d times", n)
	}
	if err := admin.ConfigSet(ctx, "min-replicas-to-write", "0").Err(); err != nil {
		t.Fatal(err)
	}
}

// A server that is loading, or was demoted, turns away each script of a pipeline as it does
// a lone one.
func TestRefusedPipelinesOpenTheBreaker(t *testing.T) {
	e := &events{}
	s, _, admin := tripped(t, redisstore.Options{Report: e.report})
	_, requests, _ := requestsFor(4)
	returns := fillsOf(t, s.Acquire(t.Context(), requests))
	if err := admin.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, r := range s.Return(t.Context(), returns) {
			if !redis.IsReadOnlyError(r.Err) && e.times(store.BreakerOpened) == 0 {
				t.Fatalf("error %v, want READONLY", r.Err)
			}
		}
	}
	eventually(t, func() bool { return e.times(store.BreakerOpened) > 0 })
	if err := admin.Do(t.Context(), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
}

// calls are the calls of a store that ask Redis.
func calls(t *testing.T, s store.Store) map[string]func() error {
	ctx := t.Context()
	tagged := func() *store.Entry {
		e := entryOf("v", time.Minute)
		e.Tags = []string{"t"}
		return e
	}
	lease := &store.Lease{Key: "k", Token: store.Token{1}}
	return map[string]func() error{
		"Read":         func() error { _, err := read(ctx, s, "k"); return err },
		"ReadMany":     func() error { return storetest.ReadMany(ctx, s, "", []string{"a", "b"})[1].Err },
		"Acquire":      func() error { return acquire(ctx, s, lasting("k")).Err },
		"Acquire many": func() error { return s.Acquire(ctx, []store.Request{lasting("a"), lasting("b")})[1].Err },
		"Stamp":        func() error { _, err := s.Stamp(ctx); return err },
		"Fill": func() error {
			return giveBack(ctx, s, store.Return{Lease: lease, Entry: entryOf("v", time.Minute)}).Err
		},
		"Fail":        func() error { return giveBack(ctx, s, store.Return{Lease: lease, Failed: true}).Err },
		"Release":     func() error { return giveBack(ctx, s, store.Return{Lease: lease}).Err },
		"Set":         func() error { return set(ctx, s, "k", entryOf("v", time.Minute)) },
		"Set, tagged": func() error { return set(ctx, s, "k", tagged()) },
		"Delete":      func() error { return remove(ctx, s, "k") },
		"Expire":      func() error { return change(ctx, s, store.Change{Kind: store.Expire, Key: "k"}) },
		"Reset":       func() error { return change(ctx, s, store.Change{Kind: store.Reset, Key: "k"}) },
		"DeleteTag":   func() error { return s.ChangeTags(ctx, store.DeleteTag, []string{"t"}) },
		"ExpireTag":   func() error { return s.ChangeTags(ctx, store.ExpireTag, []string{"t"}) },
	}
}

// On a closed store ErrClosed wins over the error of an open breaker.
func TestClosedStoreSaysSoDuringAnOutage(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s := opened(t, server.Client(), redisstore.Options{})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		_, _ = read(t.Context(), s, "k")
		return redisstore.BreakerOpen(s)
	})
	_ = s.Close()
	for name, call := range calls(t, s) {
		if err := call(); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s: error %v, want ErrClosed", name, err)
		}
	}
}

// A slot on its way from one node to another answers TRYAGAIN until it has arrived. Callers
// of its keys wait for that. They hold up no key of another slot, and the node does not
// look as if it were away.
func TestMovingSlotHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	ctx, e := t.Context(), &events{}
	s := opened(t, cluster.Client(), redisstore.Options{RedisTimeout: time.Second, Report: e.report})
	slotOf := func(key string) (slot, at int) {
		slot, err := cluster.Slot(ctx, "test:{"+key+"}")
		if err != nil {
			t.Fatal(err)
		}
		return slot, masterOf(t, cluster, "test:{"+key+"}")
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
	mustSet(t, s, staying, "v")
	granted(t, s, staying+"}") // the subscription is live
	if err := cluster.OpenSlot(ctx, slot, at, (at+1)%3); err != nil {
		t.Fatal(err)
	}
	turnedAway := func() string { // how often, as the server that the slot moves to says
		info := cluster.Masters()[(at+1)%3].Client().Info(ctx, "errorstats").Val()
		_, count, _ := strings.Cut(info, "errorstat_TRYAGAIN:")
		count, _, _ = strings.Cut(count, "\r\n")
		return count
	}
	for round := range 2 {
		before := turnedAway()
		var moving sync.WaitGroup
		for i := range 4 {
			moving.Go(func() {
				once := lasting(fmt.Sprint("moving}", i))
				once.Once = true
				if a := acquire(ctx, s, once); !redis.IsTryAgainError(a.Err) {
					t.Errorf("%v, %v, want TRYAGAIN", a.Verdict, a.Err)
				}
			})
		}
		eventually(t, func() bool { return turnedAway() != before })
		start := time.Now()
		granted(t, s, fmt.Sprint(staying, "}", round))
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v", took)
		}
		moving.Wait()
		reads(t, s, staying, "v")
	}
	if n := e.times(store.BreakerOpened); n > 0 {
		t.Errorf("the breaker opened %d times", n)
	}
}

// Of a slot that no node serves the client asks any of them. That node is well, and so are
// the other keys on it.
func TestSlotWithoutANodeHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{Args: []string{"--cluster-require-full-coverage", "no"}})
	ctx, e := t.Context(), &events{}
	s := opened(t, cluster.Client(), redisstore.Options{RedisTimeout: 5 * time.Second, Report: e.report})
	slot, err := cluster.Slot(ctx, "test:{gone}")
	if err != nil {
		t.Fatal(err)
	}
	serves := func() {
		t.Helper()
		for i := range 30 {
			if b := giveBack(ctx, s, store.Return{Lease: granted(t, s, fmt.Sprint("served", i))}); b.Err != nil {
				t.Fatal(b.Err)
			}
		}
	}
	serves() // the subscriptions are live
	for _, m := range cluster.Masters() {
		if err := m.Client().Do(ctx, "CLUSTER", "DELSLOTS", slot).Err(); err != nil {
			t.Fatal(err)
		}
	}
	w := s.Watch("gone")
	defer w.Close()
	for range 20 {
		if a := acquire(ctx, s, lasting("gone")); !errors.Is(a.Err, store.ErrUnavailable) {
			t.Fatalf("error %v, want ErrUnavailable", a.Err)
		}
		if _, err := read(ctx, s, "gone"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("error %v, want ErrUnavailable", err)
		}
	}
	serves()
	if opened, lost := e.times(store.BreakerOpened), e.times(store.SubscriptionLost); opened+lost > 0 {
		t.Errorf("the breaker opened %d times, %d subscriptions were lost", opened, lost)
	}
}

// A Redis that comes back and turns all clients away is not silent: why the breaker stays
// open is reported, once.
func TestBreakerReportsWhyItStaysOpen(t *testing.T) {
	t.Parallel()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	told := make(chan store.Event, 100)
	s := opened(t, asUser(t, server, "~*", "&*", "+@all"), redisstore.Options{Report: func(e store.Event) {
		if e.Kind == store.BreakerOpened || e.Kind == store.BreakerClosed {
			told <- e
		}
	}})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		_, _ = read(t.Context(), s, "k")
	}
	if e := <-told; e.Kind != store.BreakerOpened || e.Duration != 0 {
		t.Fatalf("%+v", e)
	}
	if err := server.Restart(t.Context()); err != nil { // it has forgotten the user
		t.Fatal(err)
	}
	if e := <-told; e.Kind != store.BreakerOpened || e.Duration == 0 || !contains(e.Err, "WRONGPASS") {
		t.Errorf("%+v", e)
	}
	select {
	case e := <-told:
		t.Errorf("and then %+v", e)
	case <-time.After(3 * time.Second):
	}
}

// silentServer accepts connections and answers nothing on them.
func silentServer(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

// Nothing listens at nowhere. The client's own error does not say so when a call is given
// up.
const nowhere = "127.0.0.1:1"

// The first calls get no answer in time. Those after them find the breaker open.
func TestErrorsNameTheNodeAndTheCause(t *testing.T) {
	t.Parallel()
	silent := silentServer(t)
	for name, c := range map[string]struct {
		client redis.UniversalClient
		want   []string
	}{
		"refused": {redis.NewClient(&redis.Options{Addr: nowhere}), []string{nowhere, "connection refused"}},
		"silent":  {redis.NewClient(&redis.Options{Addr: silent}), []string{silent, "accepts connections"}},
		"cluster": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nowhere}}), []string{nowhere, "connection refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { _ = c.client.Close() })
			openings := make(chan store.Event, 100)
			s := opened(t, c.client, redisstore.Options{RedisTimeout: 100 * time.Millisecond, Report: func(e store.Event) {
				if e.Kind == store.BreakerOpened {
					openings <- e
				}
			}})
			says := func(call string, err error) {
				t.Helper()
				if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: error %v, want ErrUnavailable", call, err)
					return
				}
				eventually(t, func() bool { return contains(err, c.want...) }) // it may have to be found out yet
			}
			for range 2 {
				for name, call := range calls(t, s) {
					says(name, call())
				}
			}
			if name != "cluster" { // which has no nodes yet
				says("the event", (<-openings).Err)
			}
		})
	}
}

// The cause of the outage before is over.
func TestNextOutageNamesItsOwnCause(t *testing.T) {
	t.Parallel()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s := opened(t, server.Client(), redisstore.Options{RedisTimeout: time.Second})
	reads := func() error { _, err := read(t.Context(), s, "k"); return err }
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return contains(reads(), "connection refused") })
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return reads() == nil })
	if err := server.Pause(); err != nil { // from now on it accepts connections, and is silent
		t.Fatal(err)
	}
	err := reads()
	if err == nil || contains(err, "refused") {
		t.Errorf("error %v", err)
	}
	eventually(t, func() bool { return contains(err, "accepts connections") })
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestRefusalsNameTheirNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redistest.RunEmbeddedInMemory(t).Client()
		s := opened(t, client, redisstore.Options{})
		if err := client.HSet(t.Context(), "test:{k}:tries", "a", "b").Err(); err != nil {
			t.Fatal(err)
		}
		a := acquire(t.Context(), s, lasting("k"))
		if !errors.Is(a.Err, store.ErrRefused) || !contains(a.Err, client.Options().Addr) {
			t.Errorf("error %v", a.Err)
		}
	})
}
