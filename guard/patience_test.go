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

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

func TestSoftTimeoutServesStaleDuringTheFetch(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) {
			p.TTL, p.StaleIfError, p.SoftTimeout = time.Second, time.Minute, 100*time.Millisecond
		}))
		o := &origin{takes: 2 * time.Second}
		first := callers(fleet[:1], 1, "k", o.fetch)[0]
		if first.took != 2*time.Second {
			w.Errorf("without a stale value: %v after %v", first.err, first.took)
		}
		time.Sleep(3 * time.Second)
		for i, a := range callers(fleet, 3, "k", o.fetch) {
			if a.value != "v1" || a.took != 100*time.Millisecond {
				w.Errorf("caller %d: %q, %v after %v", i, a.value, a.err, a.took)
			}
		}
		time.Sleep(2 * time.Second)
		if v := get(w, fleet[1], "k", never); v != "v2" {
			w.Errorf("the fetch that went on stored %q", v)
		}
		o.fetched(w, 2)
	})
}

func TestWaitTimeoutFollowsThePolicy(t *testing.T) {
	for name, c := range map[string]struct {
		on     guard.OnWaitTimeout
		stale  bool
		value  string
		err    error
		source guard.Source
	}{
		"stale or error, stale":  {guard.StaleOrError, true, "v1", nil, guard.Stale},
		"stale or error, none":   {guard.StaleOrError, false, "", guard.ErrWaitTimeout, 0},
		"error always":           {guard.ErrorAlways, true, "", guard.ErrWaitTimeout, 0},
		"stale or fetch, stale":  {guard.StaleOrFetch, true, "v1", nil, guard.Stale},
		"stale or fetch, fetch ": {guard.StaleOrFetch, false, "own", nil, guard.UnguardedFetch},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(2, policy(func(p *guard.Policy) {
					p.TTL, p.WaitTimeout, p.OnWaitTimeout = time.Second, 300*time.Millisecond, c.on
					p.StaleIfError = time.Minute
				}))
				if c.stale {
					get(w, fleet[0], "k", (&origin{}).fetch)
					time.Sleep(2 * time.Second)
				}
				slow := &origin{takes: 5 * time.Second}
				go callers(fleet[:1], 1, "k", slow.fetch)
				synctest.Wait()
				start := time.Now()
				r, err := fleet[1].Load(context.Background(), "k", func(context.Context, *guard.Fill[string]) (string, error) { return "own", nil })
				if r.Value != c.value || r.Source != c.source || !errors.Is(err, c.err) || time.Since(start) != 300*time.Millisecond {
					w.Errorf("%+v, %v after %v", r, err, time.Since(start))
				}
				time.Sleep(6 * time.Second)
			})
		})
	}
}

// A fetch may ask another guard, and return the error that this guard gave its own caller.
func TestAnotherGuardsErrorIsTheFetchs(t *testing.T) {
	others := []error{guard.ErrWaitTimeout, guard.ErrClosed, guard.ErrUnavailable, guard.ErrQuarantined}
	fails := func(err error) *origin {
		return &origin{takes: time.Second, answer: func(context.Context, int) (string, error) {
			return "", fmt.Errorf("the other guard: %w", err)
		}}
	}
	t.Run("shared by all waiters", func(t *testing.T) {
		for _, err := range others {
			inMemory(t, func(w *world) {
				fleet := w.fleet(1, policy(func(p *guard.Policy) { p.OnWaitTimeout = guard.StaleOrFetch }))
				o := fails(err)
				for _, a := range callers(fleet, 10, "k", o.fetch) {
					if !errors.Is(a.err, err) || a.took != time.Second {
						w.Errorf("%v after %v", a.err, a.took)
					}
				}
				o.fetched(w, 1)
				var want guard.Stats
				want.Errors.Fetch = 10
				if s := fleet[0].Stats().Errors; s != want.Errors {
					w.Errorf("%v: %+v", err, s)
				}
			})
		}
	})
	t.Run("by batches, too", func(t *testing.T) {
		inMemory(t, func(w *world) {
			g := w.fleet(1, policy(func(p *guard.Policy) { p.OnWaitTimeout = guard.StaleOrFetch }))[0]
			o := &manyOrigin{takes: time.Second, answer: func(context.Context, []string) (map[string]string, error) {
				return nil, guard.ErrWaitTimeout
			}}
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { _, _ = g.GetMany(context.Background(), []string{"a", "b"}, o.fetch) })
			}
			wg.Wait()
			o.eachOnce(w, []string{"a", "b"})
		})
	})
	t.Run("and masked", func(t *testing.T) {
		for _, err := range others {
			inMemory(t, func(w *world) {
				g := w.fleet(1, policy(func(p *guard.Policy) { p.StaleIfError, p.OnWaitTimeout = time.Hour, guard.ErrorAlways }))[0]
				must(w, g.Set(context.Background(), "k", "old"))
				time.Sleep(2 * time.Minute)
				if v := get(w, g, "k", fails(err).fetch); v != "old" {
					w.Errorf("%v: %q", err, v)
				}
			})
		}
	})
}

// Its own fetch needs a turn, too: it waits for that as long as for the other's, and no
// longer.
func TestWaitTimeoutBoundsTheWaitForATurn(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) {
			p.WaitTimeout, p.OnWaitTimeout, p.MaxUnguarded = time.Second, guard.StaleOrFetch, 1
		}))
		slow := &manyOrigin{takes: 20 * time.Second}
		keys := []string{"a", "b", "c"}
		go getMany(w, fleet[0], keys, slow.fetch)
		synctest.Wait()
		own := &origin{takes: 10 * time.Second}
		go callers(fleet[1:], 1, "a", own.fetch) // from the first second on, its own
		time.Sleep(500 * time.Millisecond)
		start := time.Now()
		done := make(chan error)
		go func() {
			_, err := fleet[1].GetMany(context.Background(), keys[1:], neverMany)
			done <- err
		}()
		_, err := fleet[1].Get(context.Background(), "b", never)
		for _, err := range []error{err, <-done} {
			if !errors.Is(err, guard.ErrWaitTimeout) || time.Since(start) != 2*time.Second {
				w.Errorf("%v after %v", err, time.Since(start))
			}
		}
		var want guard.Stats
		want.Errors.WaitTimeout = 3
		if s := fleet[1].Stats(); s.Errors != want.Errors {
			w.Errorf("%+v", s.Errors)
		}
		time.Sleep(20 * time.Second)
		own.fetched(w, 1)
	})
}

func TestErrorPauseDoublesFleetWide(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(3, policy(func(p *guard.Policy) {
			p.TTL, p.Stale, p.ErrorPause, p.MaxErrorPause = time.Second, 24*time.Hour, time.Second, 8*time.Second
		}))
		var asked []time.Time
		o := &origin{answer: func(_ context.Context, n int) (string, error) {
			asked = append(asked, time.Now())
			if n == 1 {
				return "good", nil
			}
			return "", errors.New("down")
		}}
		get(w, fleet[0], "k", o.fetch)
		time.Sleep(2 * time.Second)
		for range 600 {
			callers(fleet, 1, "k", o.fetch)
			time.Sleep(50 * time.Millisecond)
		}
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 8 * time.Second}
		if len(asked) < 2+len(want) {
			w.Fatalf("asked %d times", len(asked))
		}
		for i, d := range want {
			if got := asked[i+2].Sub(asked[i+1]); !within(got, d, 500*time.Millisecond) {
				w.Errorf("pause %d was %v, want %v", i+1, got, d)
			}
		}
		// An outcome ends the row.
		must(w, fleet[1].Set(context.Background(), "k", "set"))
		time.Sleep(2 * time.Second)
		n := len(asked)
		for range 40 {
			callers(fleet, 1, "k", o.fetch)
			time.Sleep(50 * time.Millisecond)
		}
		if got := asked[n+1].Sub(asked[n]); !within(got, time.Second, 500*time.Millisecond) {
			w.Errorf("after a Set the first pause was %v", got)
		}
	})
}

// A pause is for callers that can use a stale value. Where the stale value may not stand in
// for the error, a pause would give all callers the error.
func TestUnmaskableErrorIsNoPause(t *testing.T) {
	denied := errors.New("denied")
	for name, err := range map[string]error{"not found, uncached": guard.ErrNotFound, "StaleOn says no": denied} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(2, policy(func(p *guard.Policy) {
					p.TTL, p.Stale, p.StaleIfError, p.Negative = time.Second, time.Second, time.Hour, guard.Off
					p.ErrorPause = 10 * time.Second
					p.StaleOn = func(err error) bool { return !errors.Is(err, denied) }
				}))
				ctx := w.Context()
				fails := &origin{answer: func(context.Context, int) (string, error) { return "", err }}
				// While it is served without asking, a refresh is held off as ever; and no longer.
				must(w, fleet[0].Set(ctx, "k", "set"))
				time.Sleep(1500 * time.Millisecond)
				for range 40 {
					if v := get(w, fleet[0], "k", fails.fetch); v != "set" {
						w.Errorf("while it is refreshed: %q", v)
					}
					time.Sleep(10 * time.Millisecond)
				}
				fails.fetched(w, 1)
				time.Sleep(time.Second)
				if _, got := fleet[0].Get(ctx, "k", fails.fetch); !errors.Is(got, err) {
					w.Errorf("got %v", got)
				}
				if v := get(w, fleet[1], "k", (&origin{}).fetch); v != "v1" {
					w.Errorf("the next caller got %q", v)
				}
			})
		})
	}
}

// A value that is due for an early refresh is served until its end, also if the refresh
// fails. The next refresh is held off until then.
func TestFailingEarlyRefreshPausesForAnyError(t *testing.T) {
	denied := errors.New("denied")
	for name, err := range map[string]error{"not found, uncached": guard.ErrNotFound, "StaleOn says no": denied} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				g := w.fleet(1, policy(func(p *guard.Policy) {
					p.TTL, p.StaleIfError, p.Negative = 10*time.Second, time.Hour, guard.Off
					p.Beta, p.ErrorPause = 100, 10*time.Second // due at half of its time
					p.StaleOn = func(err error) bool { return !errors.Is(err, denied) }
				}))[0]
				get(w, g, "k", (&origin{takes: time.Second}).fetch)
				time.Sleep(5500 * time.Millisecond)
				fails := &origin{answer: func(context.Context, int) (string, error) { return "", err }}
				for range 400 {
					if v := get(w, g, "k", fails.fetch); v != "v1" {
						w.Errorf("while it is fresh: %q", v)
					}
					time.Sleep(10 * time.Millisecond)
				}
				fails.fetched(w, 1)
				time.Sleep(time.Second)
				if v := get(w, g, "k", (&origin{}).fetch); v != "v1" {
					w.Errorf("when it is no longer: %q", v)
				}
			})
		})
	}
}

// A value that may never be served stale is used while it is fresh. When it is not, the pause
// keeps no caller from fetching it.
func TestFailingEarlyRefreshPausesWithoutStaleValues(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(5, policy(func(p *guard.Policy) {
			p.TTL, p.Beta, p.ErrorPause = 10*time.Second, 100, 2*time.Second // due at half of its time
		}))
		get(w, fleet[0], "k", (&origin{takes: time.Second}).fetch)
		time.Sleep(5500 * time.Millisecond)
		fails := &origin{answer: func(context.Context, int) (string, error) { return "", errors.New("down") }}
		for i := range 400 {
			if v := get(w, fleet[i%5], "k", fails.fetch); v != "v1" {
				w.Errorf("while it is fresh: %q", v)
			}
			time.Sleep(10 * time.Millisecond)
		}
		fails.fetched(w, 2)
		time.Sleep(500 * time.Millisecond)
		if v := get(w, fleet[1], "k", (&origin{}).fetch); v != "v1" {
			w.Errorf("when it is no longer: %q", v)
		}
	})
}

// The entry that a flight has read grows older while it waits for another's fetch.
func TestPauseEndsWithStaleAfterADelayedFetch(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) {
			p.TTL, p.StaleIfError, p.ErrorPause = time.Second, 10*time.Second, 5*time.Second
		}))
		ctx := w.Context()
		must(w, fleet[0].Set(ctx, "k", "set"))
		time.Sleep(2 * time.Second)
		go func() { _, _ = fleet[0].Get(ctx, "k", (&origin{takes: time.Hour}).fetch) }()
		time.Sleep(time.Second)
		done := make(chan answer, 1)
		go func() {
			done <- callers(fleet[1:], 1, "k", func(context.Context) (string, error) { return "", errors.New("down") })[0]
		}()
		time.Sleep(7500 * time.Millisecond)
		_ = fleet[0].Close() // and the other one fetches
		if a := <-done; a.value != "set" {
			w.Errorf("while there was a stale value: %q, %v", a.value, a.err)
		}
		time.Sleep(time.Second)
		if v := get(w, fleet[1], "k", (&origin{}).fetch); v != "v1" {
			w.Errorf("when there was none: %q", v)
		}
	})
}

// Nor is it younger for having been read by a call that waited for another key.
func TestPauseEndsWithStaleAfterADelayedCall(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.TTL, p.Stale, p.ErrorPause = time.Second, 10*time.Second, 5*time.Second
		}))[0]
		must(w, g.Set(context.Background(), "k", "set"))
		time.Sleep(2 * time.Second)
		o := &manyOrigin{answer: func(_ context.Context, keys []string) (map[string]string, error) {
			if slices.Contains(keys, "k") {
				return nil, errors.New("down")
			}
			time.Sleep(8 * time.Second)
			return valuesOf(keys), nil
		}}
		equal(w, getMany(w, g, []string{"k", "slow"}, o.fetch), map[string]string{"k": "set", "slow": "v of slow"})
		time.Sleep(time.Second) // it has been refreshed in vain, and is gone
		o.called(w, 2)
		if v := get(w, g, "k", (&origin{}).fetch); v != "v1" {
			w.Errorf("when there was none: %q", v)
		}
	})
}

func TestStaleOnSaysWhichErrorsAreMasked(t *testing.T) {
	down, gone := errors.New("down"), errors.New("gone")
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.TTL, p.StaleIfError, p.ErrorPause = time.Second, time.Hour, guard.Off
			p.StaleOn = func(err error) bool { return !errors.Is(err, gone) }
		}))[0]
		get(w, g, "k", (&origin{}).fetch)
		time.Sleep(2 * time.Second)
		fails := func(err error) fetcher {
			return func(context.Context) (string, error) { return "", err }
		}
		if v, err := g.Get(context.Background(), "k", fails(down)); v != "v1" || err != nil {
			w.Errorf("down: %q, %v", v, err)
		}
		if _, err := g.Get(context.Background(), "k", fails(gone)); !errors.Is(err, gone) {
			w.Errorf("gone: %v", err)
		}
		if _, err := g.Get(context.Background(), "k", fails(guard.ErrNotFound)); !errors.Is(err, guard.ErrNotFound) {
			w.Errorf("not found: %v", err)
		}
	})
}

func TestForcedCallFetchesFreshValuesOnce(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(3, policy())
		o := &origin{takes: time.Second}
		get(w, fleet[0], "k", o.fetch)
		done := make(chan string, 6)
		for i := range 6 {
			go func() {
				v, err := fleet[i%3].Get(context.Background(), "k", o.fetch, guard.MaxAge(0))
				if err != nil {
					w.Error(err)
				}
				done <- v
			}()
		}
		synctest.Wait()
		if v := get(w, fleet[1], "k", never); v != "v1" {
			w.Errorf("meanwhile: %q", v)
		}
		for range 6 {
			if v := <-done; v != "v2" {
				w.Errorf("Refresh returned %q", v)
			}
		}
		if v := get(w, fleet[2], "k", never); v != "v2" {
			w.Errorf("afterwards: %q", v)
		}
		o.fetched(w, 2)
	})
}

func TestForcedCallGetsNoEarlierFetch(t *testing.T) {
	for _, what := range []string{"a fetch", "a Set"} {
		t.Run(what, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				deaf := tap.New(w.open())
				deaf.OnWatch = func(string) *store.Watch { return store.NewWatch(func() {}) }
				here, there := w.guard(deaf, policy()), w.guard(w.open(), policy())
				must(w, there.Set(w.Context(), "k", "old"))
				time.Sleep(time.Second)
				fetched := make(chan error, 1)
				go func() {
					o := &origin{takes: 5 * time.Second, answer: func(context.Context, int) (string, error) { return "new", nil }}
					_, err := there.Get(context.Background(), "k", o.fetch, guard.MaxAge(0))
					fetched <- err
				}()
				time.Sleep(time.Second)
				var wg sync.WaitGroup
				refresh := func(want string) {
					wg.Go(func() {
						v, err := here.Get(context.Background(), "k", func(context.Context) (string, error) { return "newer", nil }, guard.MaxAge(0))
						if v != want || err != nil {
							w.Errorf("got %q, %v, want %q", v, err, want)
						}
					})
				}
				refresh("new") // waits for the other's fetch
				time.Sleep(time.Second)
				if what == "a Set" {
					must(w, there.Set(w.Context(), "k", "new"))
				} else {
					must(w, <-fetched)
				}
				refresh("newer") // joins the flight that waits and hasn't read since
				wg.Wait()
			})
		})
	}
}

// A lookedAt context calls a function when it is first asked for a value: a Refresh
// does so when it knows whether there is another to join, and hasn't joined it.
type lookedAt struct {
	context.Context
	first func()
}

func (c *lookedAt) Value(key any) any {
	if f := c.first; f != nil {
		c.first = nil
		f()
	}
	return c.Context.Value(key)
}

func TestForcedCallFetchesAfterAnEndedFlight(t *testing.T) {
	inWorlds(t, func(w *world) {
		slow := tap.New(w.open())
		slow.OnRead = func(_ string, r *store.Reading, err error) (*store.Reading, error) {
			time.Sleep(time.Second)
			return r, err
		}
		g := w.guard(slow, policy())
		time.Sleep(time.Second)
		must(w, g.Set(context.Background(), "k", "old"))
		end, ended := make(chan struct{}), make(chan struct{})
		go func() {
			_, _ = g.Get(context.Background(), "k", func(context.Context) (string, error) { <-end; return "", errors.New("down") }, guard.MaxAge(0))
			close(ended)
		}()
		time.Sleep(2 * time.Second)
		o := &origin{takes: time.Second}
		ctx, cancel := context.WithCancel(context.Background())
		left := make(chan error)
		go func() {
			_, err := g.Get(&lookedAt{ctx, func() { close(end); <-ended }}, "k", o.fetch, guard.MaxAge(0))
			left <- err
		}()
		time.Sleep(500 * time.Millisecond)
		// The first caller may leave while the key is read: the caller that has joined it goes on.
		second := make(chan answer)
		go func() {
			v, err := g.Get(context.Background(), "k", o.fetch, guard.MaxAge(0))
			second <- answer{value: v, err: err}
		}()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			w.Errorf("the caller that left got %v", err)
		}
		if a := <-second; a.value != "v1" || a.err != nil {
			w.Errorf("the caller that stayed got %q, %v", a.value, a.err)
		}
		if s := g.Stats(); s.Unguarded != 0 {
			w.Errorf("%d fetches without a lease", s.Unguarded)
		}
		o.fetched(w, 1)
	})
}

func TestStatsCountFetchesWhileRedisIsAway(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy(noReserve))[0]
		must(w, w.server.Stop())
		time.Sleep(5 * time.Second)
		callers([]*guard.Guard[string]{g}, 10, "k", (&origin{takes: time.Second}).fetch)
		if s := g.Stats(); s.Fetched != s.Fetches || s.Fetched+s.Waited != 10 || s.Waited == 0 {
			w.Errorf("of 10 callers %d fetched and %d waited, for %d fetches", s.Fetched, s.Waited, s.Fetches)
		}
	})
}

func TestEntryThatCannotBeReadIsReportedOnce(t *testing.T) {
	for name, fetch := range map[string]func(w *world, g *guard.Guard[string]) (string, error){
		"Get": func(w *world, g *guard.Guard[string]) (string, error) {
			return g.Get(w.Context(), "k", (&origin{}).fetch)
		},
		"Refresh": func(w *world, g *guard.Guard[string]) (string, error) {
			return g.Get(w.Context(), "k", (&origin{}).fetch, guard.MaxAge(0))
		},
		"GetMany": func(w *world, g *guard.Guard[string]) (string, error) {
			m, err := g.GetMany(w.Context(), []string{"k"}, (&manyOrigin{}).fetch)
			return m["k"], err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				events := &recorder{}
				other := w.guard(w.open(), policy(func(p *guard.Policy) { p.Codec = cache.JSON{} }))
				g := w.fleet(1, policy(func(p *guard.Policy) { p.Observer = events }))[0]
				must(w, other.Set(w.Context(), "k", "v"))
				if v, err := fetch(w, g); err != nil || v == "v" {
					w.Errorf("got %q, %v", v, err)
				}
				if n, told := g.Stats().Damaged, events.count(cache.EntryDamaged); n != 1 || told != 1 {
					w.Errorf("of one entry %d were damaged, and it was told %d times", n, told)
				}
			})
		})
	}
}

func TestStatsCountCallsAndFetches(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Near.MaxEntries = 10 }))
		o := &origin{takes: time.Second}
		go callers(fleet[:1], 2, "k", o.fetch)
		synctest.Wait()
		go callers(fleet[1:], 1, "k", o.fetch)
		time.Sleep(500 * time.Millisecond)
		for i, role := range []string{"fetching", "waiting"} {
			s := fleet[i].Stats()
			if len(s.InFlight) != 1 || s.InFlight[0].Role != role || s.InFlight[0].Key != "k" || s.InFlight[0].Age != 500*time.Millisecond {
				w.Errorf("in flight, %s: %+v", role, s.InFlight)
			}
		}
		time.Sleep(time.Second)
		get(w, fleet[0], "k", never)
		boom := errors.New("boom")
		_, _ = fleet[0].Get(context.Background(), "bad", func(context.Context) (string, error) { return "", boom })
		s := fleet[0].Stats()
		if s.Fetched != 1 || s.Waited != 1 || s.NearHits != 1 || s.Fetches != 2 || s.FetchErrors != 1 ||
			s.Errors.Fetch != 1 || s.NearEntries != 1 || len(s.InFlight) != 0 {
			w.Errorf("%+v", s)
		}
		if s := fleet[1].Stats(); s.Waited != 1 || s.Fetches != 0 {
			w.Errorf("the other: %+v", s)
		}
	})
}

// A flight that waits for another process ends when its callers have left. It doesn't wait
// until the other's fetch is over.
func TestDesertedWaitEnds(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		o := &origin{takes: 10 * time.Second}
		done := make(chan answer, 1)
		go func() { done <- callers(fleet[:1], 1, "k", o.fetch)[0] }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := fleet[1].Get(ctx, "k", never); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("the waiter got %v", err)
		}
		time.Sleep(time.Second)
		if s := fleet[1].Stats(); len(s.InFlight) != 0 {
			w.Errorf("a second after its caller has left: %+v", s.InFlight)
		}
		if a := <-done; a.value != "v1" || a.err != nil {
			w.Errorf("the holder got %+v", a)
		}
	})
}

// A busy origin notes how many of its fetches ran at once.
type busyOrigin struct {
	origin
	now, most atomic.Int32
}

func (o *busyOrigin) fetch(ctx context.Context) (string, error) {
	n := o.now.Add(1)
	defer o.now.Add(-1)
	for most := o.most.Load(); n > most && !o.most.CompareAndSwap(most, n); most = o.most.Load() {
	}
	return o.origin.fetch(ctx)
}

func (o *busyOrigin) many(ctx context.Context, keys []string) (map[string]string, error) {
	v, err := o.fetch(ctx)
	return map[string]string{keys[0]: v}, err
}

// The flight goes on for the others when its first caller leaves it to fetch for
// itself. It has that caller's fetch.
func TestCallerThatStopsWaitingRunsItsFetchOnce(t *testing.T) {
	type asker = func(ctx context.Context, g *guard.Guard[string], o *busyOrigin) (string, error)
	for name, ask := range map[string]asker{
		"Get": func(ctx context.Context, g *guard.Guard[string], o *busyOrigin) (string, error) {
			return g.Get(ctx, "k", o.fetch)
		},
		"Refresh": func(ctx context.Context, g *guard.Guard[string], o *busyOrigin) (string, error) {
			return g.Get(ctx, "k", o.fetch, guard.MaxAge(0))
		},
		"GetMany": func(ctx context.Context, g *guard.Guard[string], o *busyOrigin) (string, error) {
			all, err := g.GetMany(ctx, []string{"k"}, o.many)
			return all["k"], err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(2, policy(func(p *guard.Policy) { p.WaitTimeout, p.OnWaitTimeout = time.Second, guard.StaleOrFetch }))
				go func() { _, _ = fleet[0].Get(w.Context(), "k", (&origin{takes: time.Hour}).fetch) }()
				synctest.Wait()
				first, second := &busyOrigin{origin: origin{takes: 5 * time.Second}}, &busyOrigin{}
				var wg sync.WaitGroup
				wg.Go(func() {
					if v, err := ask(w.Context(), fleet[1], first); v != "v1" || err != nil {
						w.Errorf("the first caller got %q, %v", v, err)
					}
				})
				time.Sleep(900 * time.Millisecond)
				wg.Go(func() {
					if v, err := ask(w.Context(), fleet[1], second); v != "v1" || err != nil {
						w.Errorf("the second caller got %q, %v", v, err)
					}
				})
				time.Sleep(200 * time.Millisecond) // the first fetches for itself by now
				must(w, fleet[0].Close())          // and the lease is there to be had
				wg.Wait()
				time.Sleep(10 * time.Second)
				if most := first.most.Load(); most != 1 {
					w.Errorf("the first caller's fetch ran %d times at once", most)
				}
				first.fetched(w, 1)
				second.fetched(w, 1)
				if v, err := fleet[1].Peek(w.Context(), "k"); v.Value != "v1" || err != nil {
					w.Errorf("stored: %+v, %v", v, err)
				}
			})
		})
	}
}

// The same while Redis is away: the flight waits for its turn, and so does its first
// caller then.
func TestCallerWithoutTurnRunsItsFetchOnce(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.WaitTimeout, p.OnWaitTimeout, p.MaxUnguarded = time.Second, guard.StaleOrFetch, 2
		}))[0]
		must(w, w.server.Stop())
		slow := &origin{takes: 1500 * time.Millisecond}
		go callers([]*guard.Guard[string]{g}, 1, "slow 1", slow.fetch)
		go callers([]*guard.Guard[string]{g}, 1, "slow 2", slow.fetch)
		time.Sleep(100 * time.Millisecond)
		first, second := &busyOrigin{origin: origin{takes: 5 * time.Second}}, &busyOrigin{}
		var wg sync.WaitGroup
		for _, o := range []*busyOrigin{first, second} {
			wg.Go(func() { _, _ = g.Get(w.Context(), "k", o.fetch) })
			time.Sleep(900 * time.Millisecond)
		}
		wg.Wait()
		time.Sleep(time.Minute)
		if most := first.most.Load(); most != 1 {
			w.Errorf("the first caller's fetch ran %d times at once", most)
		}
		slow.fetched(w, 2)
	})
}
