package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
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

// pitfall 15
func TestTooLargeValueIsHandedOutAndReported(t *testing.T) {
	inWorlds(t, func(w *world) {
		events := &recorder{}
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.MaxBytes, p.Observer = 10, events }))
		large := strings.Repeat("x", 11)
		o := &origin{takes: 100 * time.Millisecond, answer: func(context.Context, int) (string, error) { return large, nil }}
		for _, a := range callers(fleet[:1], 5, "k", o.fetch) {
			if a.value != large || a.took != 100*time.Millisecond {
				w.Errorf("a caller got %q, %v after %v", a.value, a.err, a.took)
			}
		}
		o.fetched(w, 1)
		if events.count(cache.FillTooLarge) != 1 {
			w.Errorf("it was reported %d times", events.count(cache.FillTooLarge))
		}
		// Two processes side by side: no caller waits for a lease. In each, callers share
		// a fetch that started after they came, the one under way or the next.
		for _, a := range callers(fleet, 5, "k", o.fetch) {
			if a.value != large || a.took > 200*time.Millisecond {
				w.Errorf("later, a caller got %q, %v after %v", a.value, a.err, a.took)
			}
		}
		if n := o.n.Load(); n > 1+2*2 {
			w.Errorf("the origin was asked %d times", n)
		}
		if err := fleet[0].Set(context.Background(), "k", large); !errors.Is(err, guard.ErrTooLarge) {
			w.Errorf("Set: %v", err)
		}
	})
}

func TestPrivateValueStaysWithItsCaller(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		type user struct{}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				name := fmt.Sprint("user", i)
				ctx := context.WithValue(context.Background(), user{}, name)
				r, err := fleet[i%2].Load(ctx, "k", func(ctx context.Context, f *guard.Fill[string]) (string, error) {
					time.Sleep(100 * time.Millisecond)
					f.Private = true
					return ctx.Value(user{}).(string), nil
				})
				if r.Value != name || err != nil || r.Stored {
					w.Errorf("%s got %+v, %v", name, r, err)
				}
			})
		}
		wg.Wait()
		start := time.Now()
		var later sync.WaitGroup
		for range 5 {
			later.Go(func() { get(w, fleet[0], "k", (&origin{takes: time.Second}).fetch) })
		}
		later.Wait()
		if took := time.Since(start); took != time.Second {
			w.Errorf("callers of a private key took %v side by side", took)
		}
	})
}

func TestPrivateNotFoundStaysWithItsCaller(t *testing.T) {
	for name, test := range map[string]struct {
		err      error
		negative time.Duration
		value    string // the value of the caller that fetches
		wantErr  error
	}{
		"not modified":            {err: guard.ErrNotModified, value: "old"},
		"not found":               {err: guard.ErrNotFound, wantErr: guard.ErrNotFound},
		"not found, never cached": {err: guard.ErrNotFound, negative: guard.Off, wantErr: guard.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Negative, p.StaleIfError = test.negative, time.Hour }))
				must(w, fleet[0].Set(w.Context(), "k", "old"))
				time.Sleep(2 * time.Minute)
				var wg sync.WaitGroup
				wg.Go(func() {
					r, err := fleet[0].Load(context.Background(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
						time.Sleep(time.Second)
						f.Private = true
						return "", test.err
					})
					if r.Value != test.value || r.Stored || !errors.Is(err, test.wantErr) {
						w.Errorf("the caller that fetched got %+v, %v", r, err)
					}
				})
				time.Sleep(time.Millisecond)
				other := func(i int) {
					r, err := fleet[i%2].Load(context.Background(), "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
						if !f.Private {
							w.Error("another caller's fetch was not told that the key is private")
						}
						return "mine", nil
					})
					if r.Value != "mine" || err != nil {
						w.Errorf("another caller got %+v, %v", r, err)
					}
				}
				for i := range 4 { // the waiters
					wg.Go(func() { other(i) })
				}
				wg.Wait()
				other(0)
				other(1)
			})
		})
	}
}

// pitfall 16
func TestFetchUnderWayDoesNotUndoADelete(t *testing.T) {
	for name, change := range map[string]func(*guard.Guard[string]) error{
		"Delete": func(g *guard.Guard[string]) error { return g.Delete(context.Background(), "k") },
		"Set":    func(g *guard.Guard[string]) error { return g.Set(context.Background(), "k", "set") },
		"Expire": func(g *guard.Guard[string]) error { return g.Expire(context.Background(), "k") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(3, policy())
				o := &origin{takes: time.Second}
				before := make(chan answer)
				go func() { before <- callers(fleet[:1], 1, "k", o.fetch)[0] }()
				time.Sleep(500 * time.Millisecond)
				must(w, change(fleet[1]))
				// pitfall 17: a new caller joins no fetch from before.
				for i, a := range callers(fleet, 2, "k", o.fetch) {
					if a.value == "v1" || a.err != nil {
						w.Errorf("caller %d, after the %s, got %q, %v", i, name, a.value, a.err)
					}
				}
				if a := <-before; a.value != "v1" {
					w.Errorf("the caller from before got %q, %v", a.value, a.err)
				}
				want := map[string]int{"Delete": 2, "Set": 1, "Expire": 2}[name]
				o.fetched(w, want)
				if v := get(w, fleet[2], "k", never); v == "v1" {
					w.Errorf("the fetch from before was stored")
				}
			})
		})
	}
}

// pitfall 17: in the process that fetches, no caller waits for the old fetch to end.
func TestOwnDeleteFreesNewCallersAtOnce(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		old := &origin{takes: 10 * time.Second}
		go func() { _, _ = g.Get(context.Background(), "k", old.fetch) }()
		time.Sleep(time.Second)
		must(w, g.Delete(context.Background(), "k"))
		a := callers([]*guard.Guard[string]{g}, 3, "k", (&origin{takes: time.Second, answer: func(context.Context, int) (string, error) { return "new", nil }}).fetch)
		for _, a := range a {
			if a.value != "new" || a.took != time.Second {
				w.Errorf("got %q, %v after %v", a.value, a.err, a.took)
			}
		}
		time.Sleep(10 * time.Second)
	})
}

func TestUselessFetchWithoutALeaseIsCancelled(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		ctx, hangUp := context.WithCancel(context.Background())
		cancelled := make(chan time.Time, 1)
		go func() {
			_, _ = g.Get(ctx, "k", func(ctx context.Context) (string, error) {
				<-ctx.Done()
				cancelled <- time.Now()
				return "", ctx.Err()
			})
		}()
		synctest.Wait()
		must(w, g.Delete(context.Background(), "k"))
		synctest.Wait()
		select {
		case <-cancelled:
			w.Fatal("cancelled while its caller waits")
		default:
		}
		hungUp := time.Now()
		hangUp()
		if at := <-cancelled; !at.Equal(hungUp) {
			w.Errorf("cancelled %v after its last caller left", at.Sub(hungUp))
		}
	})
}

// pitfall 18
func TestShortTTLIsCachedAfterADelete(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL = 500 * time.Millisecond }))[0]
		o := &origin{}
		for range 5 {
			must(w, g.Delete(context.Background(), "k"))
			get(w, g, "k", o.fetch)
			get(w, g, "k", never)
		}
		o.fetched(w, 5)
	})
}

// pitfall 19
func TestTTLsAreHonouredToTheMillisecond(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL = 7 * time.Millisecond }))[0]
		o := &origin{}
		get(w, g, "k", o.fetch)
		time.Sleep(6 * time.Millisecond)
		get(w, g, "k", never)
		time.Sleep(time.Millisecond)
		get(w, g, "k", o.fetch)
		o.fetched(w, 2)
	})
}

// pitfall 19
func TestNewReportsAllPolicyErrors(t *testing.T) {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, err = guard.New[string](store, "a:b", guard.Policy{
		TTL: -1, Stale: -time.Second, Jitter: 1, Negative: -5, FetchTimeout: -1, Lease: time.Millisecond,
		MaxAttempts: -7, WaitTimeout: -1, MaxUnguarded: -1, MaxUnguardedWait: -1, MaxBytes: -1, CompressAbove: -1,
		Errors: map[string]error{"": errors.New("x"), "guard:mine": nil},
	})
	for _, field := range []string{
		"name", "TTL", "Stale", "Jitter", "Negative", "FetchTimeout", "Lease", "MaxAttempts",
		"WaitTimeout", "MaxUnguarded", "MaxUnguardedWait", "MaxBytes", "CompressAbove", "Errors",
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not speak of %s: %v", field, err)
		}
	}
	for _, ttl := range []time.Duration{0, time.Microsecond, 50 * 24 * time.Hour} {
		if _, err := guard.New[string](store, "g", guard.Policy{TTL: ttl}); err == nil {
			t.Errorf("a TTL of %v was accepted", ttl)
		}
	}
	_, err = guard.New[string](store, "g", guard.Policy{TTL: time.Minute, Stale: 60 * 24 * time.Hour})
	if err == nil || !strings.Contains(err.Error(), "TTL plus Stale is 1440h1m0s") {
		t.Errorf("60 days and a minute: %v", err)
	}
	if _, err := guard.New[string](nil, "g", guard.Policy{TTL: 1}); err == nil {
		t.Error("no store was accepted")
	}
}

// pitfall 20
func TestJitterSpreadsExpiry(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL, p.Jitter = 100*time.Second, 0.2 }))[0]
		ttls := map[time.Duration]bool{}
		for i := range 1000 {
			key := fmt.Sprint(i)
			must(w, g.Set(context.Background(), key, "v"))
			r, err := g.Peek(context.Background(), key)
			must(w, err)
			ttls[r.TTL] = true
		}
		all := slices.Sorted(maps.Keys(ttls))
		if len(all) < 900 || all[0] < 80*time.Second || all[len(all)-1] > 100*time.Second ||
			all[0] > 81*time.Second || all[len(all)-1] < 99*time.Second {
			w.Errorf("%d different TTLs from %v to %v", len(all), all[0], all[len(all)-1])
		}
	})
}

// pitfall 23
func TestNotFoundIsCachedForNegative(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Negative = time.Second }))
		o := &origin{takes: 100 * time.Millisecond, answer: func(context.Context, int) (string, error) {
			return "", fmt.Errorf("no such user: %w", guard.ErrNotFound)
		}}
		for range 3 {
			for _, a := range callers(fleet, 2, "k", o.fetch) {
				if !errors.Is(a.err, guard.ErrNotFound) {
					w.Errorf("got %q, %v", a.value, a.err)
				}
			}
		}
		o.fetched(w, 1)
		if _, err := fleet[0].Peek(context.Background(), "k"); !errors.Is(err, guard.ErrNotFound) {
			w.Errorf("Peek: %v", err)
		}
		time.Sleep(time.Second)
		callers(fleet, 1, "k", o.fetch)
		o.fetched(w, 2)
	})
}

// pitfall 23
func TestNotFoundCanBeLeftUncached(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Negative = guard.Off }))
		o := &origin{takes: time.Millisecond, answer: func(context.Context, int) (string, error) { return "", guard.ErrNotFound }}
		for range 3 {
			for _, a := range callers(fleet, 1, "k", o.fetch) {
				if !errors.Is(a.err, guard.ErrNotFound) {
					w.Errorf("got %q, %v", a.value, a.err)
				}
			}
		}
		o.fetched(w, 3)
	})
}

// A pause that the fetch asks for is kept, also where the answer would be cached for less.
func TestNotFoundIsCachedForItsRetryAfter(t *testing.T) {
	for name, d := range map[string]time.Duration{"a default": 0, "off": guard.Off, "longer": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Negative = d }))
				pause := 30 * time.Second
				o := &origin{answer: func(context.Context, int) (string, error) { return "", guard.RetryAfter(guard.ErrNotFound, pause) }}
				for range 29 {
					for _, a := range callers(fleet, 1, "k", o.fetch) {
						if !errors.Is(a.err, guard.ErrNotFound) {
							w.Errorf("got %q, %v", a.value, a.err)
						}
					}
					time.Sleep(time.Second)
				}
				o.fetched(w, 1)
				time.Sleep(max(pause, d))
				callers(fleet, 1, "k", o.fetch)
				o.fetched(w, 2)
			})
		})
	}
}

func TestStaleIsServedWhenTheFetchFails(t *testing.T) {
	boom := errors.New("boom")
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) {
			p.TTL, p.StaleIfError = time.Second, 10*time.Second
		}))
		o := &origin{takes: 100 * time.Millisecond, answer: func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "good", nil
			}
			return "", boom
		}}
		get(w, fleet[0], "k", o.fetch)
		time.Sleep(2 * time.Second)
		for _, a := range callers(fleet, 3, "k", o.fetch) {
			if a.value != "good" || a.took != 100*time.Millisecond {
				w.Errorf("got %q, %v after %v", a.value, a.err, a.took)
			}
		}
		o.fetched(w, 2)
		// No process tries the refresh again at once.
		callers(fleet, 3, "k", o.fetch)
		o.fetched(w, 2)
		time.Sleep(time.Second)
		callers(fleet, 3, "k", o.fetch)
		o.fetched(w, 3)
		time.Sleep(10 * time.Second)
		if a := callers(fleet[:1], 1, "k", o.fetch)[0]; !errors.Is(a.err, boom) {
			w.Errorf("after StaleIfError: got %q, %v", a.value, a.err)
		}
	})
}

// The duration of the failing fetch counts. It adds to the age of the stale value that
// stands in for the error, and that value may have expired by then.
func TestStaleInPlaceOfAnErrorTellsItsAge(t *testing.T) {
	boom := errors.New("boom")
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.TTL, p.StaleIfError, p.ErrorPause = time.Second, 10*time.Second, guard.Off
		}))[0]
		fails := func(context.Context, *guard.Fill[string]) (string, error) {
			time.Sleep(3 * time.Second)
			return "", boom
		}
		must(w, g.Set(context.Background(), "k", "good"))
		time.Sleep(5 * time.Second)
		if r, err := g.Load(context.Background(), "k", fails); err != nil || r.Source != guard.Stale || r.Age != 8*time.Second {
			w.Errorf("%+v, %v; want it to be 8s old", r, err)
		}
		time.Sleep(time.Second)
		if r, err := g.Load(context.Background(), "k", fails); !errors.Is(err, boom) {
			w.Errorf("a value that expired before the fetch failed: %+v, %v", r, err)
		}
	})
}

// The pause after a failure ends with the value that callers live on meanwhile.
func TestErrorPauseEndsWithTheStaleValue(t *testing.T) {
	boom := errors.New("boom")
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.TTL, p.StaleIfError, p.ErrorPause = time.Second, 10*time.Second, time.Minute
		}))[0]
		o := &origin{answer: func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", boom
			}
			return "new", nil
		}}
		must(w, g.Set(context.Background(), "k", "good"))
		time.Sleep(9 * time.Second)
		if v := get(w, g, "k", o.fetch); v != "good" {
			w.Errorf("got %q", v)
		}
		time.Sleep(time.Second)
		if v := get(w, g, "k", never); v != "good" {
			w.Errorf("during the pause: got %q", v)
		}
		time.Sleep(time.Second)
		if v := get(w, g, "k", o.fetch); v != "new" {
			w.Errorf("got %q", v)
		}
		o.fetched(w, 2)
	})
}

func TestFailingRefreshDoesNotHammerTheOrigin(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(3, policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Second, time.Hour }))
		o := &origin{answer: func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "good", nil
			}
			return "", errors.New("down")
		}}
		get(w, fleet[0], "k", o.fetch)
		time.Sleep(2 * time.Second)
		for range 1000 {
			for _, a := range callers(fleet, 1, "k", o.fetch) {
				if a.value != "good" {
					w.Fatalf("got %q, %v", a.value, a.err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := o.n.Load(); n < 5 || n > 12 {
			w.Errorf("in 10 s the failing origin was asked %d times, once a second was meant", n-1)
		}
	})
}

// A flight that only learns of a pause is no refresh that failed.
func TestRefreshFailedIsReportedForFailedFetches(t *testing.T) {
	down := errors.New("down")
	for name, ask := range map[string]func(w *world, g *guard.Guard[string]){
		"Get": func(w *world, g *guard.Guard[string]) {
			get(w, g, "k", func(context.Context) (string, error) { return "", down })
		},
		"GetMany": func(w *world, g *guard.Guard[string]) {
			getMany(w, g, []string{"k"}, func(context.Context, []string) (map[string]string, error) { return nil, down })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				events := &recorder{}
				g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL, p.Stale, p.Observer = time.Second, time.Hour, events }))[0]
				must(w, g.Set(w.Context(), "k", "good"))
				for range 100 {
					time.Sleep(100 * time.Millisecond)
					ask(w, g)
				}
				time.Sleep(time.Second)
				fetches, failed, paused := g.Stats().Fetches, events.count(cache.RefreshFailed), events.count(cache.KeyPaused)
				if int(fetches) != failed || fetches == 0 || paused == 0 {
					w.Errorf("%d refreshes failed of %d that fetched; %d met a pause", failed, fetches, paused)
				}
			})
		})
	}
}

// logged is a policy that logs to the text it returns, at the given level.
func logged(level slog.Level) (guard.Policy, *bytes.Buffer) {
	var b bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level})) // which locks
	return policy(func(p *guard.Policy) { p.Observer = guard.LogObserver(logger) }), &b
}

func TestExpectedAnswersAreNoWarnings(t *testing.T) {
	for _, answer := range []error{guard.ErrNotFound, guard.ErrNotModified} {
		inMemory(t, func(w *world) {
			p, log := logged(slog.LevelWarn)
			p.Stale = time.Hour
			g := w.fleet(1, p)[0]
			must(w, g.Set(w.Context(), "k", "v"))
			must(w, g.Expire(w.Context(), "k"))
			get(w, g, "k", func(context.Context) (string, error) { return "", answer })
			time.Sleep(time.Second)
			if s := g.Stats(); log.Len() > 0 || s.FetchErrors != 0 || s.NotFound+s.NotModified != 1 {
				w.Errorf("%+v, and the log says:\n%s", s, log)
			}
		})
	}
}

func TestLogHasTheStackOfAPanic(t *testing.T) {
	inMemory(t, func(w *world) {
		p, log := logged(slog.LevelWarn)
		g := w.fleet(1, p)[0]
		_, _ = g.Get(w.Context(), "k", func(context.Context) (string, error) { panic("ouch") })
		if !strings.Contains(log.String(), "stack=") || !strings.Contains(log.String(), "TestLogHasTheStackOfAPanic") {
			w.Errorf("the log says:\n%s", log)
		}
	})
}

func TestLongKeysAreCutInLogsAndErrors(t *testing.T) {
	inMemory(t, func(w *world) {
		p, log := logged(slog.LevelDebug)
		g := w.fleet(1, p)[0]
		key := strings.Repeat("k", 10_000)
		_, err := g.Get(w.Context(), key, func(ctx context.Context) (string, error) { return g.Get(ctx, key, never) })
		kept := strings.Repeat("k", 200)
		for _, text := range []string{err.Error(), log.String()} {
			if strings.Contains(text, kept+"k") || !strings.Contains(text, kept) {
				w.Errorf("it says:\n%.1000s", text)
			}
		}
	})
}

func TestNotModifiedRenewsTheStaleValue(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Second, time.Minute }))
		get(w, fleet[0], "k", (&origin{}).fetch)
		must(w, fleet[0].Expire(context.Background(), "k"))
		given := make(chan string, 1)
		conditional := func(_ context.Context, f *guard.Fill[string]) (string, error) {
			given <- *f.Stale
			return "", guard.ErrNotModified
		}
		r, err := fleet[1].Load(context.Background(), "k", conditional)
		if r.Value != "v1" || r.Source != guard.Stale || err != nil {
			w.Errorf("expired by hand: %+v, %v", r, err)
		}
		if v := <-given; v != "v1" {
			w.Errorf("the fetch was given %q", v)
		}
		synctest.Wait()
		r, err = fleet[0].Load(context.Background(), "k", conditional)
		if r.Value != "v1" || r.Source != guard.FromStore || r.TTL != time.Second || err != nil {
			w.Errorf("renewed: %+v, %v", r, err)
		}
		_, err = fleet[0].Load(context.Background(), "other", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			if f.Stale != nil {
				w.Errorf("a stale value %q where there is none", *f.Stale)
			}
			return "", guard.ErrNotModified
		})
		if !errors.Is(err, guard.ErrNotModified) {
			w.Errorf("not modified without a value: %v", err)
		}
	})
}

// revalidated is the result of a Load. Its fetch confirms the stale value, and returns "new"
// where it is told of none.
func revalidated(w *world, g *guard.Guard[string], key string) string {
	w.Helper()
	r, err := g.Load(w.Context(), key, func(_ context.Context, f *guard.Fill[string]) (string, error) {
		if f.Stale != nil {
			return "", guard.ErrNotModified
		}
		return "new", nil
	})
	if err != nil {
		w.Error(err)
	}
	return r.Value
}

// A flight that has read the stale value and waits for another's fetch meanwhile must
// not bring it back after a Delete, by way of a fetch that finds it good.
func TestDeletedValueIsNotRenewedAfterAWait(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.TTL, p.StaleIfError = time.Second, time.Hour }))
		ctx := w.Context()
		must(w, fleet[0].Set(ctx, "k", "old"))
		time.Sleep(2 * time.Second)
		go func() { _, _ = fleet[0].Get(ctx, "k", (&origin{takes: time.Hour}).fetch) }()
		time.Sleep(time.Second)
		load := func() string { return revalidated(w, fleet[1], "k") }
		before := make(chan string, 1)
		go func() { before <- load() }()
		time.Sleep(time.Second)
		must(w, fleet[0].Delete(ctx, "k"))
		if v := load(); v != "new" {
			w.Errorf("after the Delete: %q", v)
		}
		if v := <-before; v != "new" {
			w.Errorf("the caller from before, after the fetch that began after the Delete: %q", v)
		}
	})
}

// A raced store calls functions of the test before it passes on a request for a lease,
// which their error is the answer to, and after it has read.
type raced struct {
	acquire func() error
	read    func()
}

func (r *raced) of(s cache.Store) *tap.Store {
	t := tap.New(s)
	t.OnAcquire = func([]store.Request) []store.Answer {
		if err := r.acquire(); err != nil {
			return []store.Answer{{Err: err}}
		}
		return nil
	}
	t.OnRead = func(_ string, reading *store.Reading, err error) (*store.Reading, error) {
		r.read()
		return reading, err
	}
	return t
}

// A flight may be granted the lease after the Delete, and no lease tells it of the Delete
// then. It may not bring the value back either, nor hand it to callers after the Delete.
func TestDeletedValueIsNeverRenewed(t *testing.T) {
	stale := policy(func(p *guard.Policy) { p.TTL, p.StaleIfError = time.Second, time.Hour })
	refreshed := policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Second, time.Hour })
	for _, c := range []struct {
		name    string
		p       guard.Policy
		reads   int32 // so many before the Delete; 0: the first ask for a lease comes after it
		away    error // the answer to that ask
		renewed bool  // the callers from before the Delete may have the old value
	}{
		{name: "deleted before the grant", p: stale},
		{name: "deleted before the grant of a refresh", p: refreshed, renewed: true},
		{name: "deleted when it was read for the last time", p: stale, reads: 2, renewed: true},
		{name: "deleted, and Redis is away then", p: stale, away: store.ErrUnavailable, renewed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				ctx := w.Context()
				other := w.fleet(1, c.p)[0]
				s := &raced{}
				g := w.guard(s.of(w.open()), c.p)
				time.Sleep(time.Second)
				load := func() string { return revalidated(w, g, "k") }
				var reads, asks atomic.Int32
				after := make(chan string, 1)
				race := func() {
					must(w, other.Delete(ctx, "k"))
					go func() { after <- load() }()
					time.Sleep(time.Millisecond)
				}
				s.read = func() {
					if reads.Add(1) == c.reads {
						race()
					}
				}
				s.acquire = func() error {
					if asks.Add(1) > 1 {
						return nil
					}
					if c.reads == 0 {
						race()
					}
					return c.away
				}
				must(w, other.Set(ctx, "k", "old"))
				time.Sleep(2 * time.Second)
				if v := load(); v != "new" && !c.renewed {
					w.Errorf("the first caller: %q", v)
				}
				if v := <-after; v != "new" {
					w.Errorf("the caller after the Delete: %q", v)
				}
				time.Sleep(100 * time.Millisecond) // until a refresh is over
				if v := get(w, other, "k", (&origin{}).fetch); v != "new" {
					w.Errorf("stored after the Delete: %q", v)
				}
			})
		})
	}
}

// A Get's fetch isn't told of the stale value, and may find it good all the same.
func TestDeletedValueIsNotRenewedByAGet(t *testing.T) {
	inWorlds(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.TTL, p.StaleIfError = time.Second, time.Hour })
		s := &raced{read: func() {}, acquire: func() error { return nil }}
		g, other := w.guard(s.of(w.open()), p), w.fleet(1, p)[0]
		good := func(context.Context) (string, error) { return "", guard.ErrNotModified }
		must(w, other.Set(w.Context(), "k", "old"))
		time.Sleep(2 * time.Second)
		if v := get(w, g, "k", good); v != "old" {
			w.Errorf("renewed: %q", v)
		}
		time.Sleep(2 * time.Second)
		s.acquire = func() error { return other.Delete(w.Context(), "k") }
		_, _ = g.Get(w.Context(), "k", good)
		if v := get(w, other, "k", (&origin{}).fetch); v != "v1" {
			w.Errorf("after the Delete: %q", v)
		}
	})
}

// Bytes are served from the memory that they were read into. With Clone a caller
// may write to its own all the same.
func TestClonedBytesAreTheCallersOwn(t *testing.T) {
	for _, size := range []int{10, 10_000} { // the latter is compressed
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inWorlds(t, func(w *world) {
				ctx := context.Background()
				want := bytes.Repeat([]byte("v"), size)
				p := policy(func(p *guard.Policy) {
					p.TTL, p.Stale, p.StaleIfError = time.Second, time.Minute, time.Hour
				})
				g, err := guard.New(w.open(), "g", p, guard.Clone(bytes.Clone))
				must(w, err)
				defer g.Close()
				time.Sleep(time.Second)
				good := func(got []byte, err error) {
					w.Helper()
					if err != nil || !bytes.Equal(got, want) {
						w.Fatalf("%.20q, %v", got, err)
					}
					clear(got)
					_ = append(got, 1, 2, 3)
				}
				one := func(fetch func(context.Context) ([]byte, error)) {
					w.Helper()
					good(g.Get(ctx, "k", fetch))
				}
				many := func() {
					w.Helper()
					m, err := g.GetMany(ctx, []string{"k", "k"}, func(context.Context, []string) (map[string][]byte, error) {
						return nil, errors.New("fetched")
					})
					good(m["k"], err)
				}
				one(func(context.Context) ([]byte, error) { return bytes.Clone(want), nil })
				many()
				one(func(context.Context) ([]byte, error) { return nil, errors.New("fetched") })
				r, err := g.Peek(ctx, "k")
				good(r.Value, err)
				for _, answer := range []error{guard.ErrNotModified, errors.New("away")} {
					time.Sleep(2 * time.Minute) // only good if there is an error
					one(func(context.Context) ([]byte, error) { return nil, answer })
					one(func(context.Context) ([]byte, error) { return nil, answer })
				}
			})
		})
	}
}

func TestFillSetsItsOwnTerms(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Minute, time.Minute }))[0]
		load := func(key string, ttl, stale time.Duration) guard.Result[string] {
			r, err := g.Load(context.Background(), key, func(_ context.Context, f *guard.Fill[string]) (string, error) {
				if f.TTL != time.Minute || f.StaleFor != time.Minute || f.Attempt != 1 || len(f.IdempotencyKey) != 32 {
					w.Errorf("preset: %+v", f)
				}
				f.TTL, f.StaleFor = ttl, stale
				return "v", nil
			})
			must(w, err)
			return r
		}
		if r := load("short", time.Second, guard.Off); r.TTL != time.Second || r.Source != guard.Fetched || !r.Stored {
			w.Errorf("%+v", r)
		}
		load("once", 0, 0)
		time.Sleep(time.Second)
		for _, key := range []string{"short", "once"} {
			if r, err := g.Peek(context.Background(), key); !errors.Is(err, guard.ErrMiss) {
				w.Errorf("%s is still stored: %+v, %v", key, r, err)
			}
		}
	})
}

func TestResultTellsWhereTheValueComesFrom(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.TTL, p.Stale = 10*time.Second, time.Minute }))
		slow := func(_ context.Context, f *guard.Fill[string]) (string, error) {
			time.Sleep(time.Second)
			return "v", nil
		}
		var wg sync.WaitGroup
		sources := make(chan guard.Source, 3)
		for i := range 3 {
			wg.Go(func() {
				r, err := fleet[i/2].Load(context.Background(), "k", slow)
				must(w, err)
				sources <- r.Source
			})
		}
		wg.Wait()
		close(sources)
		count := map[guard.Source]int{}
		for s := range sources {
			count[s]++
		}
		if count[guard.Fetched] != 1 || count[guard.Waited] != 2 {
			w.Errorf("sources: %v", count)
		}
		time.Sleep(4 * time.Second)
		r, err := fleet[1].Load(context.Background(), "k", slow)
		if r.Source != guard.FromStore || r.Age != 4*time.Second || r.TTL != 6*time.Second || err != nil {
			w.Errorf("%+v, %v", r, err)
		}
	})
}

// pitfall 21: ages rest on Redis's own clock. So a machine with a wrong clock serves and
// fetches like any other. In a bubble there is only one clock. The test can only show that
// nothing in an entry is a point in time.
func TestEntriesHoldNoPointInTime(t *testing.T) {
	e := store.Entry{Version: store.NewMinter().Token(), Kind: store.Value, TTL: time.Minute, FreshFor: time.Second, Took: time.Millisecond}
	first := e.Encode()
	time.Sleep(2 * time.Millisecond)
	if !bytes.Equal(first, e.Encode()) {
		t.Error("the same entry, encoded later, differs")
	}
}

// pitfall 31
func TestForeignBytesAreAMissAndAreOverwritten(t *testing.T) {
	inRedis(t, func(w *world) {
		events := &recorder{}
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Observer = events }))
		rng := rand.New(rand.NewPCG(1, 2))
		good := (&store.Entry{
			Version: store.NewMinter().Token(), Kind: store.Value, TTL: time.Minute, FreshFor: time.Minute,
			Written: store.Instant(time.Now().UnixMicro()), Payload: []byte("x"),
		}).Encode()
		other := append([]byte{}, good...)
		other[18] = 200 // an unknown codec
		future := append([]byte{}, good...)
		future[16] = 3
		foreign := [][]byte{{}, []byte("hello"), good[:31], other, future, bytes.Repeat([]byte{0xff}, 1000)}
		for range 50 {
			b := make([]byte, 1+rng.IntN(80))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			foreign = append(foreign, b)
		}
		for i, b := range foreign {
			key := fmt.Sprint("k", i)
			must(w, w.server.Set("test:{g:"+key+"}", string(b)))
			o, before := &origin{}, events.count(cache.EntryDamaged)
			if v := get(w, fleet[i%2], key, o.fetch); v != "v1" {
				w.Errorf("bytes %x: got %q", b, v)
			}
			if len(b) > 0 && events.count(cache.EntryDamaged) == before {
				w.Errorf("bytes %x were not reported", b)
			}
			if v := get(w, fleet[(i+1)%2], key, never); v != "v1" {
				w.Errorf("bytes %x: were not overwritten", b)
			}
		}
		// A key of another Redis type.
		_, err := w.server.Lpush("test:{g:list}", "x")
		must(w, err)
		get(w, fleet[0], "list", (&origin{}).fetch)
		get(w, fleet[1], "list", never)
	})
}
