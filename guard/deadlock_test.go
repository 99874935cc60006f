package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// Fetches that ask for each other's keys are told at once: nothing else would end them
// before FetchTimeout.
func TestFetchesThatAskForEachOtherAreTold(t *testing.T) {
	one := func(ctx context.Context, g *guard.Guard[string], key string, fetch fetcher) error {
		_, err := g.Get(ctx, key, fetch)
		return err
	}
	many := func(ctx context.Context, g *guard.Guard[string], key string, fetch fetcher) error {
		_, err := g.GetMany(ctx, []string{"beside " + key, key}, func(ctx context.Context, keys []string) (map[string]string, error) {
			got := map[string]string{}
			for _, key := range keys {
				v, err := fetch(ctx)
				if errors.Is(err, guard.ErrReentrant) { // not as a BatchError, which names keys
					return nil, guard.ErrReentrant
				} else if err != nil {
					return nil, err
				}
				got[key] = v
			}
			return got, nil
		})
		return err
	}
	forced := func(ctx context.Context, g *guard.Guard[string], key string, fetch fetcher) error {
		_, err := g.Get(ctx, key, fetch, guard.MaxAge(0))
		return err
	}
	type ask func(ctx context.Context, g *guard.Guard[string], key string, fetch fetcher) error
	for name, c := range map[string]struct {
		asks   []ask // one for each fetch of the cycle
		change func(*guard.Policy)
		guards int
		away   bool
	}{
		"two":                              {asks: []ask{one, one}},
		"three":                            {asks: []ask{one, one, one}},
		"many and one":                     {asks: []ask{many, one}},
		"many and many":                    {asks: []ask{many, many}},
		"many, in parts":                   {asks: []ask{many, many}, change: func(p *guard.Policy) { p.MaxBatch = 1 }},
		"forced":                           {asks: []ask{forced, forced}},
		"forced and one":                   {asks: []ask{forced, one}},
		"of two guards":                    {asks: []ask{one, one}, guards: 2},
		"of three guards, many and forced": {asks: []ask{one, many, forced}, guards: 3},
		"with Redis away":                  {asks: []ask{one, many, one}, away: true},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(w *world) {
				if c.change == nil {
					c.change = func(*guard.Policy) {}
				}
				s := silenced(w.open())
				s.on.Store(c.away)
				guards := make([]*guard.Guard[string], max(1, c.guards))
				for i := range guards {
					g, err := guard.New[string](s, fmt.Sprint("g", i), policy(c.change))
					must(w, err)
					w.Cleanup(func() { _ = g.Close() })
					guards[i] = g
				}
				time.Sleep(time.Second) // fake: until the subscriptions are live
				n := len(c.asks)
				at := func(i int) *guard.Guard[string] { return guards[i%n%len(guards)] }
				key := func(i int) string { return fmt.Sprint("k", i%n) }
				var begun sync.WaitGroup
				begun.Add(n)
				errs := make([]error, n)
				var told atomic.Int32
				start := time.Now()
				var wg sync.WaitGroup
				for i, ask := range c.asks {
					wg.Go(func() {
						var once sync.Once
						errs[i] = ask(ctx, at(i), key(i), func(ctx context.Context) (string, error) {
							once.Do(begun.Done)
							begun.Wait() // so that each key has a flight
							err := c.asks[(i+1)%n](ctx, at(i+1), key(i+1), never)
							if errors.Is(err, guard.ErrReentrant) {
								told.Add(1)
							}
							return "v", err
						})
					})
				}
				wg.Wait()
				for i, err := range errs {
					// Without a lease the error is not for callers that came in mid-fetch.
					if !errors.Is(err, guard.ErrReentrant) && !c.away {
						w.Errorf("%s: %v, want ErrReentrant", key(i), err)
					}
				}
				if told.Load() == 0 {
					w.Errorf("no fetch was told: %v", errs)
				}
				if took := time.Since(start); took > time.Second {
					w.Errorf("they were told after %v", took)
				}
			})
		})
	}
}

// Refreshes are fetches like others. Their own callers have gone.
func TestRefreshesThatAskForEachOtherAreTold(t *testing.T) {
	inWorlds(t, func(w *world) {
		var fetchTimeouts atomic.Int32
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.TTL, p.Stale = time.Second, time.Hour
			p.Observer = observe(func(e cache.Event) {
				if errors.Is(e.Err, guard.ErrFetchTimeout) {
					fetchTimeouts.Add(1)
				}
			})
		}))[0]
		keys := []string{"a", "b"}
		for _, key := range keys {
			must(w, g.Set(ctx, key, "old"))
		}
		time.Sleep(2 * time.Second)
		var begun sync.WaitGroup
		begun.Add(2)
		told := make(chan error, 2)
		for i, key := range keys {
			get(w, g, key, func(ctx context.Context) (string, error) {
				begun.Done()
				begun.Wait()
				_, err := g.Get(ctx, keys[1-i], func(ctx context.Context) (string, error) {
					_, err := g.Get(ctx, keys[i], never, guard.MaxAge(0))
					return "v", err
				}, guard.MaxAge(0))
				told <- err
				return "v", err
			})
		}
		synctest.Wait()
		time.Sleep(5 * time.Second)
		for range 2 {
			select {
			case err := <-told:
				// It may come by way of the store, where a refresh holds the lease.
				if err == nil || !strings.Contains(err.Error(), guard.ErrReentrant.Error()) {
					w.Errorf("%v, want ErrReentrant", err)
				}
			default:
				w.Error("a refresh still waits")
			}
		}
		if n := fetchTimeouts.Load(); n != 0 {
			w.Errorf("%d fetches ran out of time", n)
		}
	})
}

// A private key's callers fetch for themselves: such a fetch waits for the keys that its
// code asks for, and so does the fetch that it is within.
func TestFetchWithinAnOwnFetchIsTold(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		loads(w, g, "private", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			f.Private = true
			return "v", nil
		})
		var begun sync.WaitGroup
		begun.Add(2)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := g.Get(ctx, "a", func(ctx context.Context) (string, error) {
				return g.Get(ctx, "private", func(ctx context.Context) (string, error) {
					begun.Done()
					begun.Wait()
					return g.Get(ctx, "b", never)
				})
			})
			if !errors.Is(err, guard.ErrReentrant) {
				w.Errorf("a: %v", err)
			}
		})
		wg.Go(func() {
			_, err := g.Get(ctx, "b", func(ctx context.Context) (string, error) {
				begun.Done()
				begun.Wait()
				return g.Get(ctx, "a", never)
			})
			if !errors.Is(err, guard.ErrReentrant) {
				w.Errorf("b: %v", err)
			}
		})
		wg.Wait()
		if took := time.Since(start); took > time.Second {
			w.Errorf("they were told after %v", took)
		}
	})
}

// A fetch that is told may have another way, and then none of them fails.
func TestFetchThatIsToldMayGoAnotherWay(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		var begun sync.WaitGroup
		begun.Add(2)
		var told atomic.Int32
		fetch := func(other string) fetcher {
			return func(ctx context.Context) (string, error) {
				begun.Done()
				begun.Wait()
				_, err := g.Get(ctx, other, never)
				if errors.Is(err, guard.ErrReentrant) {
					told.Add(1)
					return "another way", nil
				}
				return "v", err
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() { get(w, g, "a", fetch("b")) })
		wg.Go(func() { get(w, g, "b", fetch("a")) })
		wg.Wait()
		if n := told.Load(); n != 1 {
			w.Errorf("%d were told, want the one that closed the circle", n)
		}
	})
}

func TestFetchesThatShareAKeyAreNoDeadlock(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		leaf := &origin{takes: time.Second}
		ask := func(keys ...string) fetcher {
			return func(ctx context.Context) (string, error) {
				for _, key := range keys {
					if _, err := g.Get(ctx, key, leaf.fetch); err != nil {
						return "", err
					}
				}
				_, err := g.GetMany(ctx, append(keys, "leaf 3"), (&manyOrigin{takes: time.Second}).fetch)
				return "v", err
			}
		}
		var wg sync.WaitGroup
		for _, key := range []string{"a", "b", "c", "a", "b", "c"} {
			wg.Go(func() { get(w, g, key, ask("leaf 1", "leaf 2")) })
		}
		wg.Go(func() { get(w, g, "d", ask("a", "b")) })
		wg.Go(func() { get(w, g, "e", ask("d", "c")) })
		wg.Wait()
	})
}

// A wait that has ended is none: in turn the same keys ask for each other.
func TestEndedWaitIsNoDeadlock(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		begun, left := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			get(w, g, "a", func(ctx context.Context) (string, error) {
				<-begun
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				if _, err := g.Get(short, "b", never); !errors.Is(err, context.DeadlineExceeded) {
					w.Errorf("b: %v", err)
				}
				close(left)
				time.Sleep(time.Second)
				return "v", nil
			})
		})
		wg.Go(func() {
			get(w, g, "b", func(ctx context.Context) (string, error) {
				close(begun)
				<-left
				return g.Get(ctx, "a", never)
			})
		})
		wg.Wait()
	})
}

// Across processes FetchTimeout ends it.
func TestDeadlockAcrossProcessesTimesOut(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.FetchTimeout = 5 * time.Second }))
		keys := []string{"a", "b"}
		var begun, wg sync.WaitGroup
		begun.Add(2)
		for i, g := range fleet {
			wg.Go(func() {
				start := time.Now()
				_, err := g.Get(ctx, keys[i], func(ctx context.Context) (string, error) {
					begun.Done()
					begun.Wait()
					return g.Get(ctx, keys[1-i], (&origin{}).fetch)
				})
				if took := time.Since(start); took > 6*time.Second {
					w.Errorf("%s: %v after %v", keys[i], err, took)
				}
			})
		}
		wg.Wait()
	})
}

// observe is an observer that is a function.
type observe func(cache.Event)

func (f observe) Observe(e cache.Event) { f(e) }
