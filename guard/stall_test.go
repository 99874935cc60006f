package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

// A silence keeps a store from hearing anything while it lasts: its commands are not
// answered, and no wake-up arrives.
type silence struct {
	*tap.Store
	on   atomic.Bool
	asks atomic.Int64 // acquires that were not answered
	mu   sync.Mutex
	last *store.Watch
}

var errSilent = fmt.Errorf("%w: silence", store.ErrUnavailable)

func silenced(s cache.Store) *silence {
	q := &silence{Store: tap.New(s)}
	q.OnRead = func(_ string, r *store.Reading, err error) (*store.Reading, error) {
		if q.on.Load() {
			return nil, errSilent
		}
		return r, err
	}
	q.OnAcquire = func(requests []store.Request) []store.Answer {
		if !q.on.Load() {
			return nil
		}
		q.asks.Add(int64(len(requests)))
		return slices.Repeat([]store.Answer{{Err: errSilent}}, len(requests))
	}
	q.OnWatch = func(string) *store.Watch { // it gets only the messages that the test pushes
		q.mu.Lock()
		defer q.mu.Unlock()
		q.last = store.NewWatch(func() {})
		return q.last
	}
	return q
}

// heldElsewhere has one guard hold the lease of the keys for an hour, and returns another that
// can be silenced.
func heldElsewhere(w *world, p guard.Policy, keys ...string) (g *guard.Guard[string], s *silence) {
	holder := w.guard(w.open(), p)
	s = silenced(w.open())
	g = w.guard(s, p)
	time.Sleep(time.Second) // fake: until the subscriptions are live
	for _, key := range keys {
		go func() { _, _ = holder.Get(ctx, key, (&origin{takes: time.Hour}).fetch) }()
	}
	synctest.Wait()
	time.Sleep(100 * time.Millisecond)
	return g, s
}

// patient is a policy with leases of ten seconds, and with fetches that may take hours.
func patient(p *guard.Policy) {
	p.Lease, p.FetchTimeout, p.WaitTimeout = 10*time.Second, 2*time.Hour, 3*time.Hour
}

// P1: a holder at work is no less at work when Redis is not heard.
func TestWaiterInSilenceOutwaitsTheLease(t *testing.T) {
	for name, ask := range map[string]func(g *guard.Guard[string]) error{
		"Get": func(g *guard.Guard[string]) error {
			_, err := g.Get(ctx, "k", (&origin{}).fetch)
			return err
		},
		"Refresh": func(g *guard.Guard[string]) error {
			_, err := g.Get(ctx, "k", (&origin{}).fetch, guard.MaxAge(0))
			return err
		},
		"GetMany": func(g *guard.Guard[string]) error {
			_, err := g.GetMany(ctx, []string{"k", "l"}, (&manyOrigin{}).fetch)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				rec := &recorder{}
				g, s := heldElsewhere(w, policy(patient, func(p *guard.Policy) { p.Observer = rec }), "k", "l")
				done := make(chan error)
				go func() { done <- ask(g) }()
				time.Sleep(30 * time.Second) // it has been told "held" many times
				s.on.Store(true)
				start := time.Now()
				must(w, <-done)
				// The holder renews its lease every third of it; the last answer told how
				// much was left.
				if took := time.Since(start); took < 6*time.Second || took > 10*time.Second+300*time.Millisecond {
					w.Errorf("fetched without a lease after %v of silence, want when a lease of 10s is over", took)
				}
				if asks := s.asks.Load(); asks < 20 {
					w.Errorf("%d asks in the silence, want it to go on asking", asks)
				}
				if rec.count(cache.Unguarded) == 0 {
					w.Error("no fetch without a lease")
				}
			})
		})
	}
}

func TestWaiterIsAnsweredAfterASilence(t *testing.T) {
	inWorlds(t, func(w *world) {
		holder := w.guard(w.open(), policy(patient))
		s := silenced(w.open())
		g := w.guard(s, policy(patient))
		time.Sleep(time.Second) // fake: until the subscriptions are live
		o := &origin{takes: 4 * time.Second}
		go func() { _, _ = holder.Get(ctx, "k", o.fetch) }()
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		got := make(chan string)
		go func() { got <- get(w, g, "k", o.fetch) }()
		time.Sleep(time.Second)
		s.on.Store(true)
		time.Sleep(5 * time.Second) // the fetch ends in it
		s.on.Store(false)
		start := time.Now()
		if v := <-got; v != "v1" {
			w.Errorf("got %q, want the holder's value", v)
		}
		if took := time.Since(start); took > 300*time.Millisecond {
			w.Errorf("got it %v after the silence", took)
		}
		o.fetched(w, 1)
	})
}

// A lease that was given back is over, even if its TTL is not.
func TestWaiterInSilenceHeedsARelease(t *testing.T) {
	inWorlds(t, func(w *world) {
		g, s := heldElsewhere(w, policy(patient), "k")
		got := make(chan string)
		go func() { got <- get(w, g, "k", (&origin{}).fetch) }()
		time.Sleep(time.Second)
		answer := s.Acquire(ctx, []store.Request{{Key: "g:k", TTL: time.Second, Window: time.Minute}})[0]
		must(w, answer.Err)
		s.on.Store(true)
		s.last.Push(store.Message{Signal: store.Released, Token: answer.Holder})
		start := time.Now()
		<-got
		if took := time.Since(start); took > 300*time.Millisecond {
			w.Errorf("fetched after %v, want at once", took)
		}
	})
}

func TestFailClosedDoesNotOutwaitASilence(t *testing.T) {
	inWorlds(t, func(w *world) {
		g, s := heldElsewhere(w, policy(patient, func(p *guard.Policy) { p.FailClosed = true }), "k")
		done := make(chan error)
		go func() {
			_, err := g.Get(ctx, "k", never)
			done <- err
		}()
		time.Sleep(time.Second)
		s.on.Store(true)
		start := time.Now()
		if err := <-done; !errors.Is(err, guard.ErrUnavailable) {
			w.Errorf("%v, want ErrUnavailable", err)
		}
		if took := time.Since(start); took > 300*time.Millisecond {
			w.Errorf("it was told after %v, want at once", took)
		}
	})
}

func TestWaitInSilenceIsBoundedAsAnyOther(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*guard.Policy)
		end    func(g *guard.Guard[string], cancel context.CancelFunc)
		want   error
		within time.Duration
	}{
		"context": {func(*guard.Policy) {}, func(_ *guard.Guard[string], cancel context.CancelFunc) {
			time.Sleep(2 * time.Second)
			cancel()
		}, context.Canceled, 2 * time.Second},
		"WaitTimeout": {func(p *guard.Policy) { p.WaitTimeout = 3 * time.Second }, func(*guard.Guard[string], context.CancelFunc) {}, guard.ErrWaitTimeout, 2 * time.Second},
		"Close": {func(*guard.Policy) {}, func(g *guard.Guard[string], _ context.CancelFunc) {
			time.Sleep(2 * time.Second)
			_ = g.Close()
		}, guard.ErrClosed, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				g, s := heldElsewhere(w, policy(patient, c.change), "k")
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				done := make(chan error)
				go func() {
					_, err := g.Get(ctx, "k", never)
					done <- err
				}()
				time.Sleep(time.Second)
				s.on.Store(true)
				start := time.Now()
				go c.end(g, cancel)
				if err := <-done; !errors.Is(err, c.want) {
					w.Errorf("%v, want %v", err, c.want)
				}
				if took := time.Since(start); took > c.within+300*time.Millisecond {
					w.Errorf("it returned after %v, want %v", took, c.within)
				}
			})
		})
	}
}

// A refresh in the background never fetches without a lease, and is tried again.
func TestRefreshInSilenceEnds(t *testing.T) {
	inWorlds(t, func(w *world) {
		rec := &recorder{}
		p := policy(patient, func(p *guard.Policy) { p.TTL, p.Stale, p.Observer = time.Second, time.Hour, rec })
		must(w, w.guard(w.open(), p).Set(ctx, "k", "old"))
		time.Sleep(2 * time.Second)
		g, s := heldElsewhere(w, p, "k")
		if v := get(w, g, "k", never); v != "old" {
			w.Errorf("got %q, want the stale value", v)
		}
		time.Sleep(time.Second)
		s.on.Store(true)
		time.Sleep(time.Second)
		asks := s.asks.Load()
		time.Sleep(time.Minute)
		if later := s.asks.Load(); later != asks {
			w.Errorf("%d asks, and %d a minute later: the refresh goes on", asks, later)
		}
		if n := rec.count(cache.Unguarded); n != 0 {
			w.Errorf("%d fetches without a lease", n)
		}
	})
}

// The fetches begin before Redis stands still, and end in the middle of that or later.
func TestRedisThatStandsStillCostsNoFetch(t *testing.T) {
	const (
		keys  = 20
		stall = 900 * time.Millisecond
	)
	for name, afterStall := range map[string]bool{"ended before Redis goes on": false, "ended later": true} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
			rec := &recorder{}
			p := policy(patient, func(p *guard.Policy) { p.Observer = rec })
			var fleet []*guard.Guard[string]
			for range 3 {
				client := redis.NewClient(server.Options())
				s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close(); _ = client.Close() })
				fleet = append(fleet, (&world{T: t}).guard(s, p))
			}
			var fetches atomic.Int32
			goOn := make(chan struct{})
			fetch := func(context.Context) (string, error) {
				fetches.Add(1)
				<-goOn
				return "v", nil
			}
			var wg sync.WaitGroup
			for i := range keys {
				for _, g := range fleet {
					wg.Go(func() {
						if _, err := g.Get(ctx, fmt.Sprint("k", i), fetch); err != nil {
							t.Error(err)
						}
					})
				}
			}
			for rec.count(cache.WaitBegan) < 2*keys || rec.count(cache.FetchStarted) < keys {
				time.Sleep(time.Millisecond)
			}
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * stall / 3)
			if !afterStall {
				close(goOn)
			}
			time.Sleep(stall / 3)
			if err := server.Resume(); err != nil {
				t.Fatal(err)
			}
			resumed := time.Now()
			if afterStall {
				time.Sleep(time.Second)
				close(goOn)
			}
			wg.Wait()
			if n := fetches.Load(); n != keys {
				t.Errorf("%d fetches for %d keys", n, keys)
			}
			if took := time.Since(resumed); took > 6*time.Second {
				t.Errorf("the callers were served %v after Redis went on", took)
			}
		})
	}
}
