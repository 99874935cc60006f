package guard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

// A manyOrigin counts how often each key is fetched, and the calls.
type manyOrigin struct {
	takes    time.Duration
	answer   func(ctx context.Context, keys []string) (map[string]string, error)
	numbered bool // values say which fetch of their key they are of

	mu    sync.Mutex
	calls [][]string
	n     map[string]int
}

func (o *manyOrigin) fetch(ctx context.Context, keys []string) (map[string]string, error) {
	o.mu.Lock()
	o.calls = append(o.calls, slices.Clone(keys))
	if o.n == nil {
		o.n = map[string]int{}
	}
	values := valuesOf(keys)
	for _, k := range keys {
		if o.n[k]++; o.numbered {
			values[k] = fmt.Sprint("generation ", o.n[k])
		}
	}
	o.mu.Unlock()
	if o.takes > 0 {
		select {
		case <-time.After(o.takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if o.answer != nil {
		return o.answer(ctx, keys)
	}
	return values, nil
}

func valuesOf(keys []string) map[string]string {
	m := map[string]string{}
	for _, k := range keys {
		m[k] = "v of " + k
	}
	return m
}

// one is the origin for a single key.
func (o *manyOrigin) one(key string) fetcher {
	return func(ctx context.Context) (string, error) {
		m, err := o.fetch(ctx, []string{key})
		return m[key], err
	}
}

func (o *manyOrigin) called(w *world, calls int) {
	w.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.calls) != calls {
		w.Errorf("%d calls of the fetch, want %d: %.200v", len(o.calls), calls, o.calls)
	}
}

// eachOnce checks that every key was fetched exactly once.
func (o *manyOrigin) eachOnce(w *world, keys []string) {
	w.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range keys {
		if o.n[k] != 1 {
			w.Errorf("%q was fetched %d times", k, o.n[k])
		}
	}
}

func keysFrom(from, to int) []string {
	var keys []string
	for i := from; i < to; i++ {
		keys = append(keys, fmt.Sprint("k", i))
	}
	return keys
}

func getMany(w *world, g *guard.Guard[string], keys []string, fetch func(context.Context, []string) (map[string]string, error)) map[string]string {
	w.Helper()
	m, err := g.GetMany(context.Background(), keys, fetch)
	must(w, err)
	return m
}

func equal(w *world, got, want map[string]string) {
	w.Helper()
	if !maps.Equal(got, want) {
		w.Errorf("%d values, want %d: got %.300v, want %.300v", len(got), len(want), got, want)
	}
}

func neverMany(context.Context, []string) (map[string]string, error) {
	return nil, errors.New("fetched, and must not have been")
}

func TestManyColdKeysAreOneFetch(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		o := &manyOrigin{takes: 100 * time.Millisecond}
		keys := keysFrom(0, 300)
		equal(w, getMany(w, fleet[0], keys, o.fetch), valuesOf(keys))
		o.called(w, 1)
		for range 2 { // ages are asked for, and known
			equal(w, getMany(w, fleet[1], keys, neverMany), valuesOf(keys))
		}
		if s := fleet[1].Stats(); s.StoreHits != 600 || s.Fetches != 0 {
			w.Errorf("%+v", s)
		}
		if s := fleet[0].Stats(); s.Fetched != 300 || s.Fetches != 300 {
			w.Errorf("%+v", s)
		}
		// Mixed, with keys asked for twice.
		more := append(keysFrom(290, 310), keysFrom(290, 310)...)
		equal(w, getMany(w, fleet[1], more, o.fetch), valuesOf(more))
		o.called(w, 2)
		o.eachOnce(w, keysFrom(0, 310))
	})
}

func TestManyKeysAgeAsOneDoes(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL = 10 * time.Second; p.Beta = guard.Off }))[0]
		o := &manyOrigin{}
		keys := keysFrom(0, 10)
		getMany(w, g, keys, o.fetch)
		for range 9 { // the first learns the ages, the others know them
			time.Sleep(time.Second)
			getMany(w, g, keys, neverMany)
		}
		time.Sleep(1100 * time.Millisecond)
		getMany(w, g, keys, o.fetch)
		o.called(w, 2)
	})
}

func TestBadBatches(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		ctx := context.Background()
		for _, keys := range [][]string{nil, {}} {
			if m, err := g.GetMany(ctx, keys, neverMany); m == nil || len(m) != 0 || err != nil {
				w.Errorf("%v, %v", m, err)
			}
		}
		hostile := []string{"", "}", "{", "%", "a:b", "\x00\xff", "{}", "a\r\nb", strings.Repeat("x", 5000), "%23", " ", "{a}{b}"}
		o := &manyOrigin{}
		twice := append(hostile, hostile...)
		equal(w, getMany(w, g, twice, o.fetch), valuesOf(hostile))
		o.eachOnce(w, hostile)
		equal(w, getMany(w, g, hostile, neverMany), valuesOf(hostile))
		for _, key := range hostile {
			if v := get(w, g, key, never); v != "v of "+key {
				w.Errorf("%q: %q", key, v)
			}
		}
		// A fetch may answer keys that were not requested, and change its arguments.
		m := getMany(w, g, []string{"p", "q"}, func(_ context.Context, keys []string) (map[string]string, error) {
			m := valuesOf(append(keys, "other"))
			clear(keys)
			return m, nil
		})
		equal(w, m, valuesOf([]string{"p", "q"}))
		if _, err := g.Peek(ctx, "other"); !errors.Is(err, guard.ErrMiss) {
			w.Errorf("a key that was not requested: %v", err)
		}
	})
}

func TestMissingKeysAreLeftOutAndCached(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		o := &manyOrigin{answer: func(_ context.Context, keys []string) (map[string]string, error) {
			return map[string]string{"a": "1"}, nil
		}}
		keys := []string{"a", "b", "c"}
		for _, g := range fleet {
			equal(w, getMany(w, g, keys, o.fetch), map[string]string{"a": "1"})
		}
		o.called(w, 1)
		if _, err := fleet[1].Get(context.Background(), "b", never); !errors.Is(err, guard.ErrNotFound) {
			w.Errorf("Get: %v", err)
		}
		// As an error of its own, or of all.
		m, err := fleet[0].GetMany(context.Background(), []string{"d", "e"}, func(context.Context, []string) (map[string]string, error) {
			return map[string]string{"d": "1"}, fmt.Errorf("wrapped: %w", guard.ErrNotFound)
		})
		if err != nil || len(m) != 1 {
			w.Errorf("%v, %v", m, err)
		}
	})
}

func TestFailedKeysOfABatchLoseNoOthers(t *testing.T) {
	errBad, errWorse := errors.New("bad"), errors.New("worse")
	for name, c := range map[string]struct {
		err  error
		want map[string]error // nil: not found
	}{
		"some":         {&guard.BatchError{Errs: map[string]error{"b": errBad, "c": errWorse, "zz": errBad}}, map[string]error{"b": errBad, "c": errWorse}},
		"some, nested": {fmt.Errorf("upstream: %w", &guard.BatchError{Errs: map[string]error{"c": errBad}}), map[string]error{"c": errBad}},
		"any":          {errBad, map[string]error{"b": errBad, "c": errBad}},
		"in the map":   {&guard.BatchError{Errs: map[string]error{"a": errBad}}, map[string]error{"a": errBad}},
		"typed nil":    {(*guard.BatchError)(nil), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(w *world) {
				g := w.fleet(1, policy())[0]
				if name == "typed nil" {
					_, err := g.GetMany(context.Background(), []string{"a"}, func(context.Context, []string) (map[string]string, error) { return nil, c.err })
					if err == nil {
						w.Error("no error")
					}
					return
				}
				m, err := g.GetMany(context.Background(), []string{"a", "b", "c"}, func(context.Context, []string) (map[string]string, error) {
					return map[string]string{"a": "1"}, c.err
				})
				var batch *guard.BatchError
				if !errors.As(err, &batch) || !maps.EqualFunc(batch.Errs, c.want, func(got, want error) bool { return errors.Is(got, want) }) {
					t.Fatalf("%v, want %v", err, c.want)
				}
				if c.want["a"] == nil && m["a"] != "1" || len(m) > 1 {
					t.Errorf("%v", m)
				}
				for _, e := range c.want {
					if !errors.Is(err, e) {
						t.Errorf("%v is not %v", err, e)
					}
				}
				// The keys that failed are fetched again, and the others are not.
				o := &manyOrigin{}
				failed := slices.Sorted(maps.Keys(c.want))
				getMany(w, g, []string{"a", "b", "c"}, o.fetch)
				if !slices.Equal(o.calls[0], failed) {
					t.Errorf("%v were fetched again, want %v", o.calls, failed)
				}
			})
		})
	}
}

// A fetch that asks two upstreams may have an error of each.
func TestKeysOfEachJoinedBatchErrorFail(t *testing.T) {
	down, slow := errors.New("down"), errors.New("slow")
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		m, err := g.GetMany(w.Context(), []string{"a", "b", "c", "missing"}, func(context.Context, []string) (map[string]string, error) {
			return valuesOf([]string{"c"}), fmt.Errorf("two shards: %w", errors.Join(
				&guard.BatchError{Errs: map[string]error{"a": down}},
				fmt.Errorf("the second: %w", &guard.BatchError{Errs: map[string]error{"b": slow}}),
			))
		})
		equal(w, m, valuesOf([]string{"c"}))
		var batch *guard.BatchError
		if !errors.As(err, &batch) || len(batch.Errs) != 2 || !errors.Is(batch.Errs["a"], down) || !errors.Is(batch.Errs["b"], slow) {
			w.Errorf("%v", err)
		}
		if v := get(w, g, "b", (&origin{}).fetch); v != "v1" {
			w.Errorf("the next caller got %q", v)
		}
	})
}

// The keys that no error names get the failure of the upstream, and do not count as missing.
// This holds though another error names the keys that its upstream lacks.
func TestJoinedErrorAppliesToUnnamedKeys(t *testing.T) {
	down, gone := errors.New("down"), errors.New("gone")
	named := &guard.BatchError{Errs: map[string]error{"a": gone, "b": guard.ErrNotFound}}
	for name, err := range map[string]error{
		"joined":         fmt.Errorf("two shards: %w", errors.Join(named, down)),
		"before it":      errors.Join(down, fmt.Errorf("the first: %w", named)),
		"two verbs":      fmt.Errorf("%w, and then %w", named, down),
		"with an empty":  errors.Join(named, &guard.BatchError{}, down),
		"joined of them": errors.Join(errors.Join(named, down), named),
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				g := w.fleet(1, policy())[0]
				keys := []string{"a", "b", "c", "d"}
				m, err := g.GetMany(w.Context(), keys, func(context.Context, []string) (map[string]string, error) {
					return valuesOf([]string{"c"}), err
				})
				equal(w, m, valuesOf([]string{"c"}))
				var batch *guard.BatchError
				if !errors.As(err, &batch) || len(batch.Errs) != 2 || !errors.Is(batch.Errs["a"], gone) || !errors.Is(batch.Errs["d"], down) || errors.Is(batch.Errs["d"], gone) {
					w.Errorf("%v", err)
				}
				if v := get(w, g, "d", (&origin{}).fetch); v != "v1" {
					w.Errorf("the next caller got %q", v)
				}
			})
		})
	}
}

// panicking is an error with a text that can't be read.
type panicking struct{}

func (panicking) Error() string { panic("no text") }

// An error may panic when it is compared or converted, or be a typed nil. Such an error of
// one key costs only that key.
type panickingIs struct{}

func (panickingIs) Error() string { return "panics when it is compared" }
func (panickingIs) Is(error) bool { panic("Is") }

type panickingAs struct{}

func (panickingAs) Error() string { return "panics when it is converted" }
func (panickingAs) As(any) bool   { panic("As") }

func TestPanicOverOneKeyLosesNoOthers(t *testing.T) {
	for name, c := range map[string]struct {
		tagsOf func(string, string) []string
		got    map[string]string
		err    error
	}{
		"TagsOf": {
			tagsOf: func(key, _ string) []string {
				if key == "b" {
					panic("no tags")
				}
				return nil
			},
			got: valuesOf([]string{"a", "b"}),
		},
		"its error":         {got: valuesOf([]string{"a"}), err: &guard.BatchError{Errs: map[string]error{"b": panicking{}}}},
		"its error's Is":    {got: valuesOf([]string{"a"}), err: &guard.BatchError{Errs: map[string]error{"b": panickingIs{}}}},
		"its error's As":    {got: valuesOf([]string{"a"}), err: &guard.BatchError{Errs: map[string]error{"b": panickingAs{}}}},
		"their error":       {got: valuesOf([]string{"a"}), err: panicking{}},
		"typed nil":         {got: valuesOf([]string{"a"}), err: (*guard.BatchError)(nil)},
		"wrapped typed nil": {got: valuesOf([]string{"a"}), err: fmt.Errorf("wrapped: %w", (*guard.BatchError)(nil))},
		"joined typed nil":  {got: valuesOf([]string{"a"}), err: errors.Join(&guard.BatchError{}, (*guard.BatchError)(nil))},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				g := w.fleet(1, policy(), guard.TagsOf(c.tagsOf))[0]
				m, err := g.GetMany(w.Context(), []string{"a", "b"}, func(context.Context, []string) (map[string]string, error) { return c.got, c.err })
				equal(w, m, valuesOf([]string{"a"}))
				var batch *guard.BatchError
				if !errors.As(err, &batch) || len(batch.Errs) != 1 || batch.Errs["b"] == nil {
					w.Errorf("%v", err)
				}
				var panicked *guard.PanicError
				if name != "wrapped typed nil" && !errors.As(err, &panicked) {
					w.Errorf("%v", err)
				}
				if v := get(w, g, "a", never); v != "v of a" {
					w.Errorf("%q is stored", v)
				}
			})
		})
	}
}

// Nor does a StaleOn that panics over one key's error.
func TestStaleOnThatPanicsLosesNoOtherKeys(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.TTL, p.Stale = time.Second, time.Hour
			p.StaleOn = func(error) bool { panic("no") }
		}))[0]
		keys := []string{"a", "b"}
		for _, key := range keys {
			must(w, g.Set(w.Context(), key, "old"))
		}
		time.Sleep(2 * time.Second)
		getMany(w, g, keys, func(context.Context, []string) (map[string]string, error) { // the refresh is in the background
			return map[string]string{"a": "new"}, errors.New("b is away")
		})
		time.Sleep(100 * time.Millisecond)
		if v := get(w, g, "a", never); v != "new" {
			w.Errorf("%q is stored", v)
		}
	})
}

func TestBatchErrorNamesAFewKeys(t *testing.T) {
	errs := map[string]error{}
	for i := range 10 {
		errs[fmt.Sprint("secret", i)] = fmt.Errorf("why %d", i)
	}
	text := (&guard.BatchError{Errs: errs}).Error()
	if !strings.Contains(text, "10 keys") || !strings.Contains(text, `"secret2": why 2`) || strings.Contains(text, "secret3") || !strings.Contains(text, "7 more") {
		t.Error(text)
	}
	inMemory(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.HideKeys = true }))[0]
		_, err := g.GetMany(context.Background(), []string{"secret"}, func(context.Context, []string) (map[string]string, error) { return nil, errors.New("why") })
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "why") {
			w.Error(err)
		}
	})
}

func TestPanickingFetchOfManyFailsItsKeys(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		_, err := g.GetMany(context.Background(), []string{"a", "b"}, func(context.Context, []string) (map[string]string, error) { panic("ouch") })
		var batch *guard.BatchError
		var panicked *guard.PanicError
		if !errors.As(err, &batch) || len(batch.Errs) != 2 || !errors.As(batch.Errs["b"], &panicked) {
			w.Errorf("%v", err)
		}
		_, err = g.GetMany(context.Background(), []string{"a", "b"}, func(context.Context, []string) (map[string]string, error) { runtime.Goexit(); return nil, nil })
		if !errors.Is(err, guard.ErrGoexit) {
			w.Errorf("%v", err)
		}
		equal(w, getMany(w, g, []string{"a", "b"}, (&manyOrigin{}).fetch), valuesOf([]string{"a", "b"}))
	})
}

type panicsAt struct{ on cache.EventKind }

func (p panicsAt) Observe(e cache.Event) {
	if e.Kind == p.on && e.Key == "b" {
		panic("observer")
	}
}

func TestPanickingObserverOfABatchLeavesNoLease(t *testing.T) {
	for _, kind := range []cache.EventKind{cache.LeaseGranted, cache.FetchStarted, cache.FetchDone, cache.FillStored} {
		inWorlds(t, func(w *world) {
			fleet := w.fleet(2, policy())
			g := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = panicsAt{kind} }))
			time.Sleep(time.Second)
			_, err := g.GetMany(context.Background(), []string{"a", "b", "c"}, (&manyOrigin{}).fetch)
			if err == nil {
				w.Errorf("%v: no error", kind)
			}
			start := time.Now()
			getMany(w, fleet[0], []string{"a", "b", "c"}, (&manyOrigin{}).fetch)
			if took := time.Since(start); took > 50*time.Millisecond {
				w.Errorf("%v: a lease was left behind: %v", kind, took)
			}
		})
	}
}

func TestLargeBatchIsFetchedInParts(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) {
			p.MaxBatch, p.FetchTimeout, p.Lease, p.WaitTimeout = 10, 2*time.Second, 300*time.Millisecond, 3*time.Second
		}))
		o := &manyOrigin{takes: 1500 * time.Millisecond}
		keys := keysFrom(0, 35)
		// Longer than WaitTimeout all in all, and than FetchTimeout: each part has it.
		equal(w, getMany(w, fleet[0], keys, o.fetch), valuesOf(keys))
		o.called(w, 4)
		o.eachOnce(w, keys)
		for _, c := range o.calls {
			if len(c) > 10 {
				w.Errorf("%d keys in one call", len(c))
			}
		}
		if s := fleet[0].Stats(); s.LeasesLost != 0 || s.FillsRefused != 0 {
			w.Errorf("%+v", s)
		}
	})
}

func TestOverlappingBatchesFetchEachKeyOnce(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(3, policy())
		o := &manyOrigin{takes: 200 * time.Millisecond}
		var wg sync.WaitGroup
		for i := range 30 {
			keys := keysFrom(i*5, i*5+40)
			if i%2 == 0 {
				slices.Reverse(keys)
			}
			wg.Go(func() { equal(w, getMany(w, fleet[i%3], keys, o.fetch), valuesOf(keys)) })
			wg.Go(func() {
				if v := get(w, fleet[(i+1)%3], keys[7], o.one(keys[7])); v != "v of "+keys[7] {
					w.Errorf("Get: %q", v)
				}
			})
		}
		wg.Wait()
		o.eachOnce(w, keysFrom(0, 29*5+40))
	})
}

// Two fleets ask for each other's keys in the opposite order.
func TestReversedBatchesDoNotDeadlock(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.MaxBatch = 3 }))
		for round := range 40 {
			o := &manyOrigin{takes: 10 * time.Millisecond}
			keys := keysFrom(round*20, round*20+20)
			reversed := slices.Clone(keys)
			slices.Reverse(reversed)
			start := time.Now()
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { equal(w, getMany(w, fleet[0], keys, o.fetch), valuesOf(keys)) })
				wg.Go(func() { equal(w, getMany(w, fleet[1], reversed, o.fetch), valuesOf(keys)) })
				wg.Go(func() { equal(w, getMany(w, fleet[0], reversed[5:15], o.fetch), valuesOf(keys[5:15])) })
			}
			wg.Wait()
			o.eachOnce(w, keys)
			if took := time.Since(start); took > time.Second {
				w.Fatalf("round %d took %v", round, took)
			}
		}
	})
}

func TestGetSharesABatchsFlight(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		o := &manyOrigin{takes: time.Second}
		go getMany(w, fleet[0], keysFrom(0, 20), o.fetch)
		time.Sleep(500 * time.Millisecond)
		in := fleet[0].Stats().InFlight
		if len(in) != 20 || in[0].Role != "fetching" {
			w.Errorf("in flight: %+v", in)
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				start := time.Now()
				get(w, fleet[i%2], fmt.Sprint("k", i), never)
				if took := time.Since(start); !within(took, 500*time.Millisecond, 50*time.Millisecond) {
					w.Errorf("woken after %v", took)
				}
			})
		}
		wg.Wait()
	})
}

// P3, for one key of a batch.
func TestDeleteWhileItsBatchIsFetched(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		var generation atomic.Int32
		o := &manyOrigin{takes: time.Second, numbered: true}
		first := make(chan map[string]string)
		go func() { first <- getMany(w, fleet[0], keysFrom(0, 5), o.fetch) }()
		time.Sleep(500 * time.Millisecond)
		by := fleet[generation.Add(1)%2]
		must(w, by.Delete(context.Background(), "k1"))
		for _, g := range fleet {
			m := getMany(w, g, keysFrom(0, 5), o.fetch)
			for k, v := range m {
				want := "generation 1"
				if k == "k1" {
					want = "generation 2"
				}
				if v != want {
					w.Errorf("%s after the Delete: %q, want %q", k, v, want)
				}
			}
		}
		if m := <-first; m["k1"] != "generation 1" || len(m) != 5 {
			w.Errorf("the call from before the Delete: %v", m)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.n["k0"] != 1 || o.n["k1"] != 2 {
			w.Errorf("fetched: %v", o.n)
		}
	})
}

// The fetch goes on for the others, and ends when there are none.
func TestUnwantedBatchIsCancelled(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		cancelled := make(chan struct{})
		ctx, leave := context.WithCancel(context.Background())
		returned := make(chan error)
		go func() {
			_, err := g.GetMany(ctx, []string{"a", "b"}, func(ctx context.Context, _ []string) (map[string]string, error) {
				<-ctx.Done()
				close(cancelled)
				return nil, ctx.Err()
			})
			returned <- err
		}()
		time.Sleep(time.Second)
		must(w, g.Delete(context.Background(), "a"))
		leave()
		if err := <-returned; !errors.Is(err, context.Canceled) {
			w.Error(err)
		}
		select {
		case <-cancelled:
			w.Fatal("cancelled while b may be stored")
		case <-time.After(time.Second):
		}
		must(w, g.Delete(context.Background(), "b"))
		select {
		case <-cancelled:
		case <-time.After(time.Second):
			w.Error("not cancelled")
		}
		equal(w, getMany(w, g, []string{"a", "b"}, (&manyOrigin{}).fetch), valuesOf([]string{"a", "b"}))
	})
}

func TestBatchThatAsksForItsOwnKeysFails(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.MaxBatch = 2 }))[0]
		ctx := context.Background()
		var calls atomic.Int32
		_, err := g.GetMany(ctx, keysFrom(0, 4), func(ctx context.Context, keys []string) (map[string]string, error) {
			first := calls.Add(1) == 1
			for _, key := range keysFrom(0, 4) {
				_, err := g.Get(ctx, key, never)
				// Keys of a part that is done can be had.
				if own := first || slices.Contains(keys, key); own != errors.Is(err, guard.ErrReentrant) {
					w.Errorf("first=%v, Get of %s: %v", first, key, err)
				}
			}
			if first {
				m, err := g.GetMany(ctx, []string{"k3", "other"}, (&manyOrigin{}).fetch)
				var batch *guard.BatchError
				if !errors.As(err, &batch) || len(batch.Errs) != 1 || !errors.Is(batch.Errs["k3"], guard.ErrReentrant) || m["other"] == "" {
					w.Errorf("GetMany: %v, %v", m, err)
				}
			}
			return valuesOf(keys), nil
		})
		must(w, err)
	})
}

func TestStaleKeysOfABatchShareARefresh(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL, p.Stale = time.Second, time.Minute }))[0]
		o := &manyOrigin{takes: 100 * time.Millisecond}
		keys := keysFrom(0, 30)
		getMany(w, g, keys, o.fetch)
		time.Sleep(2 * time.Second)
		start := time.Now()
		equal(w, getMany(w, g, keys, o.fetch), valuesOf(keys))
		equal(w, getMany(w, g, keys, o.fetch), valuesOf(keys))
		if took := time.Since(start); took > 50*time.Millisecond {
			w.Errorf("waited for %v", took)
		}
		time.Sleep(500 * time.Millisecond)
		o.called(w, 2)
		getMany(w, g, keys, neverMany)
		if s := g.Stats(); s.Refreshes != 30 || s.Stale != 60 || s.StoreHits != 30 {
			w.Errorf("%+v", s)
		}
	})
}

func TestStaleReplacesFailedKeysOfABatch(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.TTL, p.StaleIfError, p.SoftTimeout, p.ErrorPause = time.Second, time.Minute, 300*time.Millisecond, guard.Off
		}))[0]
		o := &manyOrigin{}
		getMany(w, g, []string{"a", "b"}, o.fetch)
		time.Sleep(2 * time.Second)
		m, err := g.GetMany(context.Background(), []string{"a", "b", "new"}, func(context.Context, []string) (map[string]string, error) { return nil, errors.New("down") })
		var batch *guard.BatchError
		if !errors.As(err, &batch) || len(batch.Errs) != 1 || batch.Errs["new"] == nil || m["a"] != "v of a" || len(m) != 2 {
			w.Errorf("%v, %v", m, err)
		}
		// SoftTimeout: stale now, the rest when it is there.
		start := time.Now()
		slow := &manyOrigin{takes: time.Second}
		go func() {
			v, err := g.GetMany(context.Background(), []string{"a", "b"}, slow.fetch)
			if took := time.Since(start); err != nil || len(v) != 2 || !within(took, 300*time.Millisecond, 50*time.Millisecond) {
				w.Errorf("%v, %v after %v", v, err, took)
			}
		}()
		time.Sleep(2 * time.Second)
		slow.called(w, 1)
		getMany(w, g, []string{"a", "b"}, neverMany)
	})
}

func TestBatchWaitsForOthersForWaitTimeout(t *testing.T) {
	for _, then := range []guard.OnWaitTimeout{guard.StaleOrError, guard.StaleOrFetch} {
		inWorlds(t, func(w *world) {
			fleet := w.fleet(2, policy(func(p *guard.Policy) { p.WaitTimeout, p.OnWaitTimeout = time.Second, then }))
			slow, o := &manyOrigin{takes: 5 * time.Second}, &manyOrigin{takes: 2 * time.Second}
			go getMany(w, fleet[0], []string{"a", "b"}, slow.fetch)
			time.Sleep(100 * time.Millisecond)
			m, err := fleet[1].GetMany(context.Background(), []string{"a", "b", "own"}, o.fetch)
			if m["own"] == "" {
				w.Errorf("its own: %v", m)
			}
			var batch *guard.BatchError
			if then == guard.StaleOrFetch {
				equal(w, m, valuesOf([]string{"a", "b", "own"}))
				must(w, err)
				o.called(w, 2)
			} else if !errors.As(err, &batch) || len(batch.Errs) != 2 || !errors.Is(batch.Errs["a"], guard.ErrWaitTimeout) {
				w.Errorf("%v", err)
			}
			time.Sleep(5 * time.Second)
		})
	}
}

// A key that no other caller fetches isn't late because the call has waited for another key.
func TestTooLargeKeyIsFetchedAfterALongWait(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.MaxBytes, p.WaitTimeout = 100, time.Second }))
		large := map[string]string{"large": strings.Repeat("x", 1000)}
		o := &manyOrigin{answer: func(context.Context, []string) (map[string]string, error) { return large, nil }}
		getMany(w, fleet[0], []string{"large"}, o.fetch)
		go get(w, fleet[0], "slow", (&origin{takes: 5 * time.Second}).fetch)
		time.Sleep(100 * time.Millisecond)
		m, err := fleet[1].GetMany(w.Context(), []string{"slow", "large"}, o.fetch)
		equal(w, m, large)
		var batch *guard.BatchError
		if !errors.As(err, &batch) || len(batch.Errs) != 1 || !errors.Is(batch.Errs["slow"], guard.ErrWaitTimeout) {
			w.Errorf("%v", err)
		}
		o.called(w, 2)
		time.Sleep(5 * time.Second)
	})
}

func TestBatchFetchTimesOutAsAWhole(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.FetchTimeout = time.Second }))[0]
		_, err := g.GetMany(context.Background(), []string{"a", "b"}, (&manyOrigin{takes: time.Hour}).fetch)
		var batch *guard.BatchError
		if !errors.As(err, &batch) || len(batch.Errs) != 2 || !errors.Is(batch.Errs["a"], guard.ErrFetchTimeout) {
			w.Errorf("%v", err)
		}
	})
}

func TestCallerOfABatchLeavesWithItsContext(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		o := &manyOrigin{takes: 2 * time.Second}
		must(w, fleet[0].Set(context.Background(), "warm", "v"))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		m, err := fleet[0].GetMany(ctx, []string{"a", "warm", "b"}, o.fetch)
		if took := time.Since(start); took != time.Second || !errors.Is(err, context.DeadlineExceeded) || m["warm"] != "v" {
			w.Errorf("%v, %v after %v", m, err, took)
		}
		equal(w, getMany(w, fleet[1], []string{"a", "b"}, neverMany), valuesOf([]string{"a", "b"}))
		if _, err := fleet[0].GetMany(ctx, []string{"a"}, o.fetch); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("with a context that is over: %v", err)
		}
	})
}

func TestCloseEndsABatchAndFreesItsKeys(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.MaxBatch = 5 }))
		o := &manyOrigin{takes: time.Hour}
		ended := make(chan error)
		go func() { _, err := fleet[0].GetMany(context.Background(), keysFrom(0, 20), o.fetch); ended <- err }()
		time.Sleep(time.Second)
		must(w, fleet[0].Close())
		if err := <-ended; !errors.Is(err, guard.ErrClosed) {
			w.Error(err)
		}
		start := time.Now()
		getMany(w, fleet[1], keysFrom(0, 20), (&manyOrigin{}).fetch)
		if took := time.Since(start); took > 50*time.Millisecond {
			w.Errorf("the keys were not free for %v", took)
		}
		if _, err := fleet[0].GetMany(context.Background(), []string{"x"}, o.fetch); !errors.Is(err, guard.ErrClosed) {
			w.Error(err)
		}
	})
}

// Parts run one after the other. When the call is over, the parts that are left have no
// waiter, and must not run at once for that reason.
func TestEndedCallFetchesNoFurtherParts(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxBatch = 1 })
	keys := keysFrom(0, 5)
	deaf := func(_ context.Context, keys []string) (map[string]string, error) {
		time.Sleep(time.Second)
		return valuesOf(keys), nil
	}
	private := func(w *world, g *guard.Guard[string]) {
		for _, key := range keys {
			_, err := g.Load(w.Context(), key, func(_ context.Context, f *guard.Fill[string]) (string, error) { f.Private = true; return "mine", nil })
			must(w, err)
		}
	}
	away := func(w *world, _ *guard.Guard[string]) { must(w, w.server.Stop()) }
	closes := func(g *guard.Guard[string], _ context.CancelFunc) { _ = g.Close() }
	leaves := func(_ *guard.Guard[string], leave context.CancelFunc) { leave() }
	for name, c := range map[string]struct {
		prepare func(w *world, g *guard.Guard[string])
		end     func(g *guard.Guard[string], leave context.CancelFunc)
		want    error
	}{
		"private, the caller leaves": {private, leaves, context.Canceled},
		"private, Close":             {private, closes, guard.ErrClosed},
		"under leases, Close":        {func(*world, *guard.Guard[string]) {}, closes, guard.ErrClosed},
		"without Redis, Close":       {away, closes, guard.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			inRedis(t, func(w *world) {
				g := w.fleet(1, p)[0]
				c.prepare(w, g)
				o := &manyOrigin{answer: deaf}
				ctx, leave := context.WithCancel(w.Context())
				defer leave()
				ended := make(chan error)
				go func() { _, err := g.GetMany(ctx, keys, o.fetch); ended <- err }()
				for calls := 0; calls == 0; { // with Redis away it takes a while
					time.Sleep(time.Millisecond)
					o.mu.Lock()
					calls = len(o.calls)
					o.mu.Unlock()
				}
				c.end(g, leave)
				if err := <-ended; !errors.Is(err, c.want) {
					w.Errorf("%v, want %v", err, c.want)
				}
				time.Sleep(10 * time.Second)
				o.called(w, 1)
			})
		})
	}
}

func TestManyNearValues(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Near.MaxEntries = 1000 }), guard.Clone(strings.Clone))
		keys := keysFrom(0, 20)
		getMany(w, fleet[0], keys[:10], (&manyOrigin{}).fetch)
		getMany(w, fleet[0], keys, (&manyOrigin{}).fetch)
		before := fleet[0].Stats()
		equal(w, getMany(w, fleet[0], keys, neverMany), valuesOf(keys))
		if s := fleet[0].Stats(); s.NearHits-before.NearHits != 20 || s.StoreHits != before.StoreHits {
			w.Errorf("%+v, before %+v", s, before)
		}
		must(w, fleet[1].Set(context.Background(), "k3", "new"))
		time.Sleep(100 * time.Millisecond)
		if m := getMany(w, fleet[0], keys, neverMany); m["k3"] != "new" || len(m) != 20 {
			w.Errorf("%v", m)
		}
	})
}

// Some values of a batch come long before the rest. They stay in the near cache no longer
// than they are fresh.
func TestNearValuesOfASlowBatchEndInTime(t *testing.T) {
	inWorlds(t, func(w *world) {
		p := policy(func(p *guard.Policy) { p.TTL, p.Near.MaxEntries = 2*time.Second, 100 })
		late := tap.New(w.open())
		late.OnRead = func(_ string, r *store.Reading, err error) (*store.Reading, error) {
			time.Sleep(3 * time.Second)
			return r, err
		}
		slow := w.guard(late, p)
		fleet := append(w.fleet(2, p), slow)
		o := &origin{}
		get(w, fleet[1], "read", o.fetch)
		getMany(w, slow, []string{"read"}, neverMany)
		if v := get(w, slow, "read", o.fetch); v != "v2" {
			w.Errorf("%q is near, 3 s after it was read", v)
		}
		for _, key := range []string{"soon", "late"} {
			o := &origin{takes: map[string]time.Duration{"soon": time.Second, "late": 5 * time.Second}[key]}
			go func() { _, _ = fleet[1].Get(context.Background(), key, o.fetch) }()
		}
		time.Sleep(100 * time.Millisecond)
		getMany(w, fleet[0], []string{"late", "soon"}, neverMany)
		if v := get(w, fleet[0], "soon", func(context.Context) (string, error) { return "new", nil }); v != "new" {
			w.Errorf("%q is near, 4 s after it was fetched", v)
		}
	})
}

// A key that is asked for twice may be read twice, and once in vain: it is served,
// and neither fetched nor failed.
func TestKeyAskedForTwiceHasOneOutcome(t *testing.T) {
	inWorlds(t, func(w *world) {
		s := tap.New(w.open())
		g := w.guard(s, policy(func(p *guard.Policy) { p.FailClosed = true }))
		time.Sleep(time.Second)
		getMany(w, g, []string{"a"}, (&manyOrigin{}).fetch)
		first := true
		s.OnRead = func(key string, r *store.Reading, err error) (*store.Reading, error) {
			if key == "g:a" && first {
				first = false
				return nil, store.ErrUnavailable
			}
			return r, err
		}
		equal(w, getMany(w, g, []string{"a", "b", "a"}, func(_ context.Context, keys []string) (map[string]string, error) {
			if !slices.Equal(keys, []string{"b"}) {
				return nil, fmt.Errorf("%v are fetched", keys)
			}
			return valuesOf(keys), nil
		}), valuesOf([]string{"a", "b"}))
	})
}

func TestBypassedKeysOfABatch(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.MaxBytes = 100 }))
		ctx := context.Background()
		for _, key := range []string{"p1", "p2"} {
			_, err := fleet[0].Load(ctx, key, func(_ context.Context, f *guard.Fill[string]) (string, error) { f.Private = true; return "mine", nil })
			must(w, err)
		}
		large := strings.Repeat("x", 1000)
		o := &manyOrigin{takes: time.Second, answer: func(_ context.Context, keys []string) (map[string]string, error) {
			m := valuesOf(keys)
			for k := range m {
				if strings.HasPrefix(k, "large") {
					m[k] = large
				}
			}
			return m, nil
		}}
		keys := []string{"p1", "p2", "large1", "large2", "plain"}
		m := getMany(w, fleet[0], keys, o.fetch)
		if m["p1"] != "v of p1" || m["large2"] != large || len(m) != 5 {
			w.Errorf("%.100v", m)
		}
		o.called(w, 2) // those with a lease, and the private ones
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { getMany(w, fleet[1], []string{"large1", "large2"}, o.fetch) })
		}
		wg.Wait()
		// One fetch came before. Here is one more, and one for the callers that came after its start.
		for _, key := range []string{"large1", "large2"} {
			if n := o.n[key]; n > 3 {
				w.Errorf("%d fetches of %s: not shared within the process", n, key)
			}
		}
	})
}

// The values that a batch's fetch confirms are read again in one round trip. They are not
// read again where Redis is away.
func TestUnchangedValuesOfABatchTakeOneRead(t *testing.T) {
	for name, goes := range map[string]bool{"under leases": false, "Redis has gone away": true} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				s := tap.New(w.open())
				if goes {
					s.OnAcquire = func(requests []store.Request) []store.Answer {
						s.OnRead = tap.Unread
						return slices.Repeat([]store.Answer{{Err: store.ErrUnavailable}}, len(requests))
					}
				}
				g := w.guard(s, policy())
				time.Sleep(time.Second)
				keys := keysFrom(0, 50)
				for key, v := range valuesOf(keys) {
					must(w, g.Set(w.Context(), key, v))
					must(w, g.Expire(w.Context(), key)) // and keep it, to compare with
				}
				good := func(context.Context, []string) (map[string]string, error) { return nil, guard.ErrNotModified }
				equal(w, getMany(w, g, keys, good), valuesOf(keys))
				if one, many := s.Lone.Load(), s.Many.Load(); one > 0 || many > 2 {
					w.Errorf("%d keys were read one by one, and others in %d goes", one, many)
				}
			})
		})
	}
}

func TestBatchTakesOverKeysOfDeadHolders(t *testing.T) {
	inRedis(t, func(w *world) {
		// A process has died if its subscription is gone and it renews no lease.
		dead := &manyOrigin{takes: time.Hour}
		client := w.server.Client()
		s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
		must(w, err)
		doomed := w.guard(s, policy())
		g := w.fleet(1, policy())[0]
		go func() { _, _ = doomed.GetMany(context.Background(), keysFrom(0, 3), dead.fetch) }()
		time.Sleep(time.Second)
		_ = client.Close()
		start := time.Now()
		o := &manyOrigin{}
		equal(w, getMany(w, g, keysFrom(0, 6), o.fetch), valuesOf(keysFrom(0, 6)))
		if took := time.Since(start); took > time.Second {
			w.Errorf("taken over after %v", took)
		}
		o.eachOnce(w, keysFrom(0, 6))
		if s := g.Stats(); s.Takeovers != 3 {
			w.Errorf("%+v", s)
		}
		_ = doomed.Close()
		_ = s.Close()
	})
}

func TestBatchWithRedisAwayIsOneUnguardedFetch(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.MaxUnguarded = 1 }))[0]
		closed := w.guard(w.open(), policy(func(p *guard.Policy) { p.FailClosed = true }))
		time.Sleep(time.Second)
		must(w, w.server.Stop())
		o := &manyOrigin{takes: time.Second}
		keys := keysFrom(0, 50)
		equal(w, getMany(w, g, keys, o.fetch), valuesOf(keys))
		o.called(w, 1)
		if s := g.Stats(); s.Unguarded != 50 {
			w.Errorf("%+v", s)
		}
		_, err := closed.GetMany(context.Background(), keys, o.fetch)
		var batch *guard.BatchError
		if !errors.As(err, &batch) || len(batch.Errs) != 50 || !errors.Is(err, guard.ErrUnavailable) {
			w.Errorf("%v", err)
		}
		o.called(w, 1)
	})
}

// The leases of a long batch outlast all of its fetches, however long that is.
func TestLeasesOfManyPartsAreRenewed(t *testing.T) {
	inMemory(t, func(w *world) {
		events := &recorder{}
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.MaxBatch, p.FetchTimeout, p.WaitTimeout, p.Quarantine, p.Observer = 1, 20*24*time.Hour, time.Hour, 45*24*time.Hour, events
		}))[0]
		keys := keysFrom(0, 6000)
		o := &manyOrigin{answer: func(_ context.Context, keys []string) (map[string]string, error) {
			if keys[0] == "k0" {
				time.Sleep(time.Minute)
			}
			return valuesOf(keys), nil
		}}
		equal(w, getMany(w, g, keys, o.fetch), valuesOf(keys))
		if n := events.count(cache.LeaseLost); n > 0 {
			w.Errorf("%d leases were lost", n)
		}
	})
}

// inPlace keeps a short text within itself.
type inPlace struct {
	room [8]byte
	text []byte
}

func (v inPlace) MarshalText() ([]byte, error) { return v.text, nil }

func (v *inPlace) UnmarshalText(b []byte) error {
	v.text = append(v.room[:0], b...)
	return nil
}

func TestBatchValuesMayHoldTheirOwnAddress(t *testing.T) {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	g, err := guard.New[inPlace](store, "g", guard.Policy{TTL: time.Minute, Codec: cache.JSON{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	keys := []string{"a", "b", "c"}
	for _, k := range keys {
		if err := g.Set(t.Context(), k, inPlace{text: []byte(k)}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := g.GetMany(t.Context(), keys, func(context.Context, []string) (map[string]inPlace, error) { return nil, errors.New("asked") })
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if string(got[k].text) != k {
			t.Errorf("%q has the value of %q", k, got[k].text)
		}
	}
}

// The last fetch of a batch in parts starts when those before it have ended.
func TestAttemptsOfABatchOutlastItsLeases(t *testing.T) {
	inMemory(t, func(w *world) {
		s := tap.New(w.open())
		var requests []store.Request
		s.OnAcquire = func(all []store.Request) []store.Answer {
			requests = append(requests, all...)
			return nil
		}
		p := policy(func(p *guard.Policy) { p.MaxBatch, p.FetchTimeout = 1, time.Minute })
		getMany(w, w.guard(s, p), keysFrom(0, 20), (&manyOrigin{}).fetch)
		if len(requests) != 20 {
			w.Fatalf("%d requests", len(requests))
		}
		for _, r := range requests {
			if r.RenewFor < 20*time.Minute || r.Window <= r.RenewFor+r.TTL {
				w.Errorf("the lease of %s lasts for %v and %v, and its attempt is remembered for %v", r.Key, r.RenewFor, r.TTL, r.Window)
			}
		}
	})
}

// A part that starts its fetch after a deletion brings values from after it.
func TestTagDeletedBeforeAPartSpoilsNothing(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(tagged("t"), func(p *guard.Policy) { p.MaxBatch = 1 }))
		var last string
		getMany(w, fleet[0], []string{"a", "b"}, func(ctx context.Context, keys []string) (map[string]string, error) {
			if last == "" {
				must(w, fleet[1].DeleteTag(ctx, "t"))
			}
			last = keys[0]
			return map[string]string{last: "v"}, nil
		})
		if v := get(w, fleet[1], last, never); v != "v" {
			w.Errorf("got %q", v)
		}
	})
}
