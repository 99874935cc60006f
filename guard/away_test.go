package guard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A network is the link between a client and the embedded server. It can refuse
// connections. It can also swallow all bytes, in both directions.
type network struct {
	dial      func(ctx context.Context, network, addr string) (net.Conn, error)
	refuses   atomic.Bool
	blackHole atomic.Bool

	mu    sync.Mutex
	conns []net.Conn
}

func (n *network) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if n.refuses.Load() {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	if n.blackHole.Load() {
		select {
		case <-time.After(5 * time.Second): // the client's DialTimeout by default
		case <-ctx.Done():
		}
		return nil, &net.OpError{Op: "dial", Err: errors.New("i/o timeout")}
	}
	c, err := n.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, c)
	return &link{c, n}, nil
}

// cut refuses connections and ends those there are.
func (n *network) cut() {
	n.refuses.Store(true)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.Close()
	}
}

// link is a connection of a network.
type link struct {
	net.Conn
	n *network
}

func (l *link) Read(b []byte) (int, error) {
	for {
		n, err := l.Conn.Read(b)
		if err != nil || !l.n.blackHole.Load() {
			return n, err
		}
	}
}

func (l *link) Write(b []byte) (int, error) {
	if l.n.blackHole.Load() {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

// faulty opens a guard on the embedded server, in a bubble, behind a network.
func faulty(t *testing.T, p guard.Policy, opts cache.Options, test func(w *world, n *network, client *redis.Client, g *guard.Guard[string])) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		o := server.Options()
		n := &network{dial: o.Dialer}
		o.Dialer = n.Dial
		o.DialerRetries = 1
		client := redis.NewClient(o)
		opts.Namespace = "test"
		s, err := cache.NewRedis(client, opts)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, server: server}
		g, err := guard.New[string](s, "g", p)
		must(w, err)
		time.Sleep(time.Second) // fake: until the subscription is live
		defer func() {          // also when the test has failed
			n.refuses.Store(false)
			n.blackHole.Store(false)
			_ = g.Close()
			time.Sleep(time.Minute) // commands that are stuck in the client end
			if err := errors.Join(s.Close(), client.Close()); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
		}()
		test(w, n, client, g)
	})
}

const redisTimeout = 250 * time.Millisecond // cache.Options' default

// pitfall 28
func TestBlackHoledRedisCostsAFewTimeouts(t *testing.T) {
	events := &recorder{}
	faulty(t, policy(noReserve), cache.Options{Observer: events}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		synctest.Wait() // for the first subscription
		n.blackHole.Store(true)
		o := &origin{takes: 100 * time.Millisecond}
		var slow int
		for range 20 {
			a := callers([]*guard.Guard[string]{g}, 1, "k", o.fetch)[0]
			if a.err != nil {
				w.Fatalf("fail open: %v", a.err)
			}
			if a.took > 100*time.Millisecond {
				slow++
			}
			if a.took > 100*time.Millisecond+redisTimeout {
				w.Errorf("a caller waited %v", a.took)
			}
		}
		if slow > 2 || events.count(cache.BreakerOpened) != 1 {
			w.Errorf("%d callers waited for Redis; the breaker opened %d times", slow, events.count(cache.BreakerOpened))
		}
		o.fetched(w, 20)

		n.blackHole.Store(false)
		back := time.Now()
		for events.count(cache.BreakerClosed) == 0 || events.count(cache.SubscriptionUp) < 2 {
			time.Sleep(10 * time.Millisecond)
			if time.Since(back) > 2*time.Second {
				w.Fatal("Redis came back 2 s ago, and the store is not at work")
			}
		}
		// A value that was fetched while Redis was away is not written later.
		if _, err := g.Peek(context.Background(), "k"); !errors.Is(err, guard.ErrMiss) {
			w.Errorf("Peek: %v", err)
		}
		get(w, g, "k", o.fetch)
		get(w, g, "k", never)
	})
}

// pitfall 28
func TestRedisThatComesBackIsNotStampeded(t *testing.T) {
	const keys = 10
	events := &recorder{}
	p := policy(func(p *guard.Policy) { p.Observer = events })
	faulty(t, p, cache.Options{Observer: events}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		load := func(d time.Duration) {
			var wg sync.WaitGroup
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
				key := fmt.Sprint("k", rand.IntN(keys))
				wg.Go(func() { get(w, g, key, (&origin{takes: 10 * time.Millisecond}).fetch) })
			}
			wg.Wait()
		}
		n.blackHole.Store(true)
		load(3 * time.Second)
		n.cut() // ends the connections from the black hole
		n.refuses.Store(false)
		n.blackHole.Store(false)
		load(3 * time.Second)
		if n, unguarded := events.fetchesSince(cache.BreakerClosed); n > keys || unguarded > 0 {
			w.Errorf("%d fetches of %d keys, %d of them without a lease", n, keys, unguarded)
		}
	})
}

// pitfall 28
func TestRefusedConnectionsCostNoMore(t *testing.T) {
	faulty(t, policy(), cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.cut()
		for i := range 10 {
			a := callers([]*guard.Guard[string]{g}, 1, "k", (&origin{}).fetch)[0]
			if a.err != nil || a.took > 3*redisTimeout || (i > 5 && a.took > 0) {
				w.Errorf("call %d: %v after %v", i, a.err, a.took)
			}
		}
	})
}

// pitfall 28
func TestCancelledCallerDoesNotWaitForRedis(t *testing.T) {
	faulty(t, policy(), cache.Options{RedisTimeout: time.Hour}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.blackHole.Store(true)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { time.Sleep(30 * time.Millisecond); cancel() }()
		start := time.Now()
		_, err := g.Get(ctx, "k", never)
		if !errors.Is(err, context.Canceled) || time.Since(start) != 30*time.Millisecond {
			w.Errorf("Get: %v after %v", err, time.Since(start))
		}
		if err := g.Delete(ctx, "k"); !errors.Is(err, context.Canceled) {
			w.Errorf("Delete: %v", err)
		}
	})
}

func TestFailClosedTellsSoAtOnce(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.FailClosed = true })
	faulty(t, p, cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.blackHole.Store(true)
		for i := range 20 {
			a := callers([]*guard.Guard[string]{g}, 1, "k", never)[0]
			if !errors.Is(a.err, guard.ErrUnavailable) || a.took > 3*redisTimeout || (i > 10 && a.took > 0) {
				w.Errorf("call %d: %v after %v", i, a.err, a.took)
			}
		}
	})
}

// pitfall 29
func TestUnguardedFetchesAreSharedAndBounded(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxUnguarded, p.Reserve.MaxBytes = 4, guard.Off })
	faulty(t, p, cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.cut()
		for range 10 {
			get(w, g, "warm-up", (&origin{}).fetch)
		}
		var running, most, fetches atomic.Int32
		fetch := func(context.Context) (string, error) {
			now := running.Add(1)
			defer running.Add(-1)
			for {
				m := most.Load()
				if now <= m || most.CompareAndSwap(m, now) {
					break
				}
			}
			fetches.Add(1)
			time.Sleep(100 * time.Millisecond)
			return "v", nil
		}
		var wg sync.WaitGroup
		for _, key := range strings.Split("abcdefghijklmnopqrst", "") {
			for range 10 {
				wg.Go(func() {
					r, err := g.Load(context.Background(), key, func(ctx context.Context, _ *guard.Fill[string]) (string, error) { return fetch(ctx) })
					if err != nil || r.Source != guard.UnguardedFetch && r.Source != guard.Waited || r.Stored {
						w.Errorf("%+v, %v", r, err)
					}
				})
			}
		}
		wg.Wait()
		// Callers that come after a fetch has started share the next.
		if most.Load() != 4 || fetches.Load() > 2*20 {
			w.Errorf("%d fetches at once, of %d for 20 keys", most.Load(), fetches.Load())
		}
	})
}

// A fetch that calls its value private still shares its failure. A fetch by each sharer for
// itself would have no bound.
func TestFailureOfAPrivateUnguardedFetchIsShared(t *testing.T) {
	faulty(t, policy(), cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.cut()
		for range 10 {
			get(w, g, "warm-up", (&origin{}).fetch)
		}
		down := errors.New("down")
		for _, answer := range []error{nil, guard.ErrNotFound, down} {
			var fetches atomic.Int32
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					_, err := g.Load(context.Background(), fmt.Sprint(answer), func(_ context.Context, f *guard.Fill[string]) (string, error) {
						fetches.Add(1)
						time.Sleep(100 * time.Millisecond)
						f.Private = true
						return "v", answer
					})
					if !errors.Is(err, answer) {
						w.Errorf("%v: got %v", answer, err)
					}
				})
			}
			wg.Wait()
			// Callers that come after a fetch has started share the next.
			if n := fetches.Load(); answer == down && n > 2 || answer != down && n != 10 {
				w.Errorf("%v: %d fetches for 10 callers", answer, n)
			}
		}
	})
}

// pitfall 29
func TestUnguardedFetchWithoutCallersLeavesTheQueue(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxUnguarded = 1 })
	faulty(t, p, cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.cut()
		for range 10 {
			get(w, g, "warm-up", (&origin{}).fetch)
		}
		o, many := &origin{takes: 10 * time.Second}, &manyOrigin{takes: 10 * time.Second}
		go get(w, g, "slow", o.fetch)
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { _, _ = g.Get(ctx, fmt.Sprint("k", i), o.fetch) })
			wg.Go(func() { _, _ = g.GetMany(ctx, []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}, many.fetch) })
		}
		wg.Wait()
		time.Sleep(time.Second)
		if s := g.Stats(); len(s.InFlight) != 1 {
			w.Errorf("in flight, when all but one caller have left: %+v", s.InFlight)
		}
		// A new caller waits for the running fetch, and for nothing else.
		if a := callers([]*guard.Guard[string]{g}, 1, "live", (&origin{}).fetch)[0]; a.err != nil || a.took > 10*time.Second {
			w.Errorf("%v after %v", a.err, a.took)
		}
		o.fetched(w, 1)
		many.called(w, 0)
	})
}

func TestWaitForASlotIsBounded(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxUnguarded, p.MaxUnguardedWait = 1, time.Second })
	faulty(t, p, cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.cut()
		for range 10 {
			get(w, g, "warm-up", (&origin{}).fetch)
		}
		var slow, wg sync.WaitGroup
		slow.Go(func() { get(w, g, "slow", (&origin{takes: 10 * time.Second}).fetch) })
		defer slow.Wait()
		time.Sleep(time.Millisecond)
		start := time.Now()
		for range 3 {
			wg.Go(func() {
				if _, err := g.Get(context.Background(), "k", never); !errors.Is(err, guard.ErrWaitTimeout) {
					w.Errorf("got %v", err)
				}
			})
		}
		wg.Go(func() {
			var failed *guard.BatchError
			if _, err := g.GetMany(context.Background(), []string{"a", "b"}, (&manyOrigin{}).fetch); !errors.As(err, &failed) || len(failed.Errs) != 2 || !errors.Is(err, guard.ErrWaitTimeout) {
				w.Errorf("for many: %v", err)
			}
		})
		wg.Wait()
		if took := time.Since(start); took > 1100*time.Millisecond {
			w.Errorf("after %v", took)
		}
	})
}

// A large batch holds its turn for as long as its parts take. A part without waiters must
// not keep other fetches from the turn, as nothing of it is stored.
func TestUnguardedPartsWithoutCallersAreNotFetched(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxUnguarded, p.MaxBatch = 1, 2 })
	faulty(t, p, cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.cut()
		for range 10 {
			get(w, g, "warm-up", (&origin{}).fetch)
		}
		many := &manyOrigin{takes: time.Second}
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		go func() { _, _ = g.GetMany(ctx, keysFrom(0, 20), many.fetch) }()
		time.Sleep(time.Millisecond)
		go get(w, g, "k7", never) // which is in the fourth part
		time.Sleep(time.Millisecond)
		if a := callers([]*guard.Guard[string]{g}, 1, "live", (&origin{}).fetch)[0]; a.err != nil || a.took > 2*time.Second {
			w.Errorf("%v after %v", a.err, a.took)
		}
		many.called(w, 2)
		many.eachOnce(w, []string{"k0", "k1", "k6", "k7"})
	})
}

// A flight that waits for its turn ends when the last of its callers leaves.
func TestUnguardedFetchServesTheRemainingCaller(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxUnguarded = 1 })
	faulty(t, p, cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.cut()
		for range 10 {
			get(w, g, "warm-up", (&origin{}).fetch)
		}
		o, many := &origin{}, &manyOrigin{}
		go get(w, g, "slow", (&origin{takes: 10 * time.Second}).fetch)
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		go func() { _, _ = g.Get(ctx, "k", o.fetch) }()
		go func() { _, _ = g.GetMany(ctx, []string{"a", "b"}, many.fetch) }()
		time.Sleep(time.Millisecond)
		var wg sync.WaitGroup
		for _, key := range []string{"k", "b"} {
			wg.Go(func() { get(w, g, key, never) })
		}
		wg.Wait()
		o.fetched(w, 1)
		many.called(w, 1)
	})
}

func TestUnansweredChangeMayStillHappen(t *testing.T) {
	faulty(t, policy(), cache.Options{BreakerFailures: 4}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		n.blackHole.Store(true)
		for _, err := range []error{
			g.Set(context.Background(), "k", "v"), g.Delete(context.Background(), "k"), g.Expire(context.Background(), "k"),
		} {
			if !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "may still be carried out") {
				w.Errorf("got %v", err)
			}
		}
	})
}

// losing loses the answers of the next so many acquires, after they were carried
// out. Acquire is the one script of six keys.
type losing struct{ n atomic.Int32 }

func (l *losing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && len(cmd.Args()) > 2 && cmd.Args()[2] == 6 && l.n.Add(-1) >= 0 {
			cmd.SetErr(io.ErrUnexpectedEOF)
			return io.ErrUnexpectedEOF
		}
		return err
	}
}

func (l *losing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// pitfall 27
func TestLostGrantOfThisProcessIsNotAwaited(t *testing.T) {
	faulty(t, policy(), cache.Options{}, func(w *world, _ *network, client *redis.Client, g *guard.Guard[string]) {
		l := &losing{}
		client.AddHook(l)
		get(w, g, "warm-up", (&origin{}).fetch) // the scripts are known from here on
		l.n.Store(1)
		o := &origin{takes: 100 * time.Millisecond}
		if a := callers([]*guard.Guard[string]{g}, 3, "k", o.fetch)[0]; a.err != nil || a.took != 100*time.Millisecond {
			w.Errorf("got %q, %v after %v", a.value, a.err, a.took)
		}
		o.fetched(w, 1)
		if r, err := g.Peek(context.Background(), "k"); r.Value != "v1" {
			w.Errorf("stored: %+v, %v", r, err)
		}
		// Lost twice: as when Redis can't be reached, and the lease expires.
		l.n.Store(2)
		get(w, g, "k2", o.fetch)
		o.fetched(w, 2)
	})
}

// pitfall 11
func TestMissedWakeUpIsFoundByPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, server: redistest.RunEmbeddedInMemory(t)}
		o := w.server.Options()
		n := &network{dial: o.Dialer}
		o.Dialer = n.Dial
		client := redis.NewClient(o)
		s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
		must(w, err)
		waiter := w.guard(s, policy())
		s2, err := cache.NewRedis(w.server.Client(), cache.Options{Namespace: "test"})
		must(w, err)
		holder := w.guard(s2, policy())
		origin := &origin{takes: time.Second}
		go callers([]*guard.Guard[string]{holder}, 1, "k", origin.fetch)
		time.Sleep(100 * time.Millisecond)
		go func() {
			// The waiter's connections break just before the fill, and again after.
			time.Sleep(895 * time.Millisecond)
			n.cut()
			time.Sleep(10 * time.Millisecond)
			n.refuses.Store(false)
		}()
		a := callers([]*guard.Guard[string]{waiter}, 3, "k", origin.fetch)
		for _, a := range a {
			if a.value != "v1" || a.took > 900*time.Millisecond+300*time.Millisecond {
				w.Errorf("got %q, %v after %v", a.value, a.err, a.took)
			}
		}
		origin.fetched(w, 1)
		for _, g := range []*guard.Guard[string]{waiter, holder} {
			must(w, g.Close())
		}
		must(w, s.Close())
		must(w, s2.Close())
		must(w, client.Close())
	})
}

// pitfall 13
func TestCommandsDoNotGrowWithCallers(t *testing.T) {
	count := func(t *testing.T, n int) (sent int64) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{T: t, server: redistest.RunEmbeddedInMemory(t)}
			client := w.server.Client()
			counter := &redistest.Counter{}
			client.AddHook(counter)
			s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
			must(w, err)
			g := w.guard(s, policy())
			counter.Reset()
			o := &origin{takes: 200 * time.Millisecond}
			callers([]*guard.Guard[string]{g}, n, "k", o.fetch)
			sent = counter.Total()
			must(w, g.Close())
			must(w, s.Close())
		})
		return sent
	}
	if few, many := count(t, 10), count(t, 1000); many > 15 || few > 15 {
		t.Errorf("%d commands for 10 callers, %d for 1000", few, many)
	}
}
