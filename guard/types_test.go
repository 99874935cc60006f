package guard_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

// sameReading answers each read of the key with one reading.
func sameReading(s cache.Store) *tap.Store {
	t := tap.New(s)
	var first *store.Reading
	t.OnRead = func(_ string, r *store.Reading, err error) (*store.Reading, error) {
		if first == nil && err == nil && r.Found {
			first = r
		}
		if first != nil {
			return first, nil
		}
		return r, err
	}
	return t
}

type apple struct{ Weight int }

type pear struct{ Weight int }

// readings are the calls that return the stored value, without a fetch.
func readings[V any](g *guard.Guard[V], key string) map[string]func(context.Context) (V, error) {
	fails := func(context.Context) (zero V, _ error) { return zero, errors.New("fetched") }
	return map[string]func(context.Context) (V, error){
		"Get": func(ctx context.Context) (V, error) { return g.Get(ctx, key, fails) },
		"Load": func(ctx context.Context) (V, error) {
			r, err := g.Load(ctx, key, func(ctx context.Context, _ *guard.Fill[V]) (V, error) { return fails(ctx) })
			return r.Value, err
		},
		"Peek": func(ctx context.Context) (V, error) {
			r, err := g.Peek(ctx, key)
			return r.Value, err
		},
		"GetMany": func(ctx context.Context) (V, error) {
			all, err := g.GetMany(ctx, []string{key}, func(context.Context, []string) (map[string]V, error) { return nil, errors.New("fetched") })
			return all[key], err
		},
	}
}

func TestGuardsOfOneNameShareReadingsAcrossTypes(t *testing.T) {
	inWorlds(t, func(w *world) {
		s := sameReading(w.open())
		apples, err := guard.New[apple](s, "g", policy())
		must(w, err)
		defer apples.Close()
		pears, err := guard.New[pear](s, "g", policy())
		must(w, err)
		defer pears.Close()
		must(w, apples.Set(w.Context(), "k", apple{7}))
		for range 2 {
			for name, read := range readings(apples, "k") {
				if v, err := read(w.Context()); v.Weight != 7 || err != nil {
					w.Errorf("%s of the first guard: %v, %v", name, v, err)
				}
			}
			for name, read := range readings(pears, "k") {
				if v, err := read(w.Context()); v.Weight != 7 || err != nil {
					w.Errorf("%s of the second guard: %v, %v", name, v, err)
				}
			}
		}
	})
}

// An entry that the second guard can't decode is a miss to that guard alone.
func TestValueOfAnotherTypeIsFetchedAnew(t *testing.T) {
	inWorlds(t, func(w *world) {
		s := sameReading(w.open())
		apples, err := guard.New[apple](s, "g", policy())
		must(w, err)
		defer apples.Close()
		events := &recorder{}
		numbers, err := guard.New[int](s, "g", policy(func(p *guard.Policy) { p.Observer = events }))
		must(w, err)
		defer numbers.Close()
		time.Sleep(time.Second)
		must(w, apples.Set(w.Context(), "k", apple{7}))
		for range 2 {
			if v, err := apples.Peek(w.Context(), "k"); v.Value.Weight != 7 || err != nil {
				w.Errorf("the first guard peeks %v, %v", v, err)
			}
			if _, err := numbers.Peek(w.Context(), "k"); !errors.Is(err, guard.ErrMiss) {
				w.Errorf("the second guard peeks: %v, want ErrMiss", err)
			}
		}
		if n := events.count(cache.EntryDamaged); n == 0 {
			w.Error("the second guard did not report that it can't decode the entry")
		}
		v, err := numbers.Get(w.Context(), "k", func(context.Context) (int, error) { return 8, nil })
		if v != 8 || err != nil {
			w.Errorf("the second guard got %v, %v", v, err)
		}
	})
}

// opens opens a guard of some type, and closes it.
func opens[V any](s cache.Store, change ...func(*guard.Policy)) error {
	g, err := guard.New[V](s, "g", policy(change...))
	if err == nil {
		err = g.Close()
	}
	return err
}

func TestTypesThatCantBeStoredAreRefused(t *testing.T) {
	type hidden struct{ n int }
	type shown struct {
		hidden
		N int
	}
	type job struct {
		Name string
		Done chan struct{}
	}
	_ = shown{hidden: hidden{n: 1}} // the linter wants them used
	inMemory(t, func(w *world) {
		store := w.open()
		refused := func(err error, what string) {
			w.Helper()
			if err == nil || !strings.Contains(err.Error(), "can't be stored") || !strings.Contains(err.Error(), what) {
				w.Errorf("got %v, want an error that names %s", err, what)
			}
		}
		asJSON := func(p *guard.Policy) { p.Codec = cache.JSON{} }
		raw := func(p *guard.Policy) { p.Codec = cache.Raw{} }
		refused(opens[chan int](store), "chan int")
		refused(opens[func()](store), "func()")
		refused(opens[hidden](store), "hidden")
		refused(opens[map[string][]*hidden](store), "hidden")
		refused(opens[job](store), "field Done")
		refused(opens[map[string][]*job](store), "field Done")
		refused(opens[io.Reader](store), "io.Reader")
		refused(opens[job](store, asJSON), "field Done")
		refused(opens[error](store, asJSON), "error")
		refused(opens[int](store, raw), "int")
		must(w, opens[shown](store))
		must(w, opens[struct{}](store))
		must(w, opens[time.Time](store))
		must(w, opens[any](store))
		must(w, opens[error](store))
		must(w, opens[map[string]any](store))
	})
}

func TestNilStoresAndBudgetsAreRefused(t *testing.T) {
	var memory *cache.Memory
	var redis *cache.Redis
	for want, s := range map[string]cache.Store{"nil store": nil, "nil *cache.Memory": memory, "nil *cache.Redis": redis} {
		if err := opens[string](s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
	}
	inMemory(t, func(w *world) {
		var none *budget.Budget
		err := opens[string](w.open(), func(p *guard.Policy) { p.Budget = none })
		if err == nil || !strings.Contains(err.Error(), "Budget is a nil *budget.Budget") {
			w.Errorf("got %v", err)
		}
	})
}

// calls are all calls of a guard that take a context and, but for the last seven, a
// fetch.
func calls(ctx context.Context, g *guard.Guard[string], fetch fetcher) map[string]func() error {
	var telling func(context.Context, *guard.Fill[string]) (string, error)
	var many func(context.Context, []string) (map[string]string, error)
	if fetch != nil {
		telling = func(ctx context.Context, _ *guard.Fill[string]) (string, error) { return fetch(ctx) }
		many = func(ctx context.Context, keys []string) (map[string]string, error) {
			v, err := fetch(ctx)
			return map[string]string{keys[0]: v}, err
		}
	}
	return map[string]func() error{
		"Get":       func() error { _, err := g.Get(ctx, "k", fetch); return err },
		"Load":      func() error { _, err := g.Load(ctx, "k", telling); return err },
		"Refresh":   func() error { _, err := g.Get(ctx, "k", fetch, guard.MaxAge(0)); return err },
		"Reload":    func() error { _, err := g.Load(ctx, "k", telling, guard.MaxAge(0)); return err },
		"GetMany":   func() error { _, err := g.GetMany(ctx, []string{"k"}, many); return err },
		"Peek":      func() error { _, err := g.Peek(ctx, "k"); return err },
		"Set":       func() error { return g.Set(ctx, "k", "v") },
		"Delete":    func() error { return g.Delete(ctx, "k") },
		"Expire":    func() error { return g.Expire(ctx, "k") },
		"Reset":     func() error { return g.Reset(ctx, "k") },
		"DeleteTag": func() error { return g.DeleteTag(ctx, "t") },
		"ExpireTag": func() error { return g.ExpireTag(ctx, "t") },
	}
}

func TestNilContextIsNamedByEveryCall(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Near.MaxEntries = 10 }))[0]
		var none context.Context
		for range 2 { // with nothing stored, and with a near value
			all := calls(none, g, never)
			all["DeleteMany"] = func() error { return g.DeleteMany(none, nil) }
			all["ExpireMany"] = func() error { return g.ExpireMany(none, nil) }
			for name, call := range all {
				if err := call(); err == nil || err.Error() != "guard: nil context (use context.Background())" {
					w.Errorf("%s: %v", name, err)
				}
			}
			get(w, g, "k", (&origin{}).fetch)
		}
	})
}

func TestNilFetchIsNamedWhateverIsStored(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Near.MaxEntries = 10 }))[0]
		named := func() {
			w.Helper()
			all := calls(w.Context(), g, nil)
			for _, name := range []string{"Get", "Load", "Refresh", "Reload", "GetMany"} {
				if err := all[name](); err == nil || err.Error() != "guard: nil fetch function (use Peek to read without fetching)" {
					w.Errorf("%s: %v", name, err)
				}
			}
		}
		named()
		get(w, g, "k", (&origin{}).fetch)
		named() // though each could be served
		if s := g.Stats(); s.Fetches != 1 || s.Errors.Other != 10 || s.Errors.Panic != 0 {
			w.Errorf("the guard counts %d fetches, %d other errors, %d panics", s.Fetches, s.Errors.Other, s.Errors.Panic)
		}
	})
}

func TestClosedGuardNamesItself(t *testing.T) {
	for name, c := range map[string]struct {
		close func(g *guard.Guard[string], s cache.Store) error
		want  string
	}{
		"guard": {func(g *guard.Guard[string], _ cache.Store) error { return g.Close() }, `guard: closed: guard "g"`},
		"store": {func(_ *guard.Guard[string], s cache.Store) error { return s.Close() }, `guard: closed: guard "g": cache: store closed`},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				s := w.open()
				g := w.guard(s, policy())
				time.Sleep(time.Second)
				must(w, g.Set(w.Context(), "k", "v"))
				waits := make(chan error)
				go func() {
					_, err := g.Get(w.Context(), "slow", (&origin{takes: time.Hour}).fetch)
					waits <- err
				}()
				synctest.Wait()
				must(w, c.close(g, s))
				if name == "guard" { // a fetch goes on after the close of its guard's store
					if err := <-waits; err == nil || err.Error() != c.want {
						w.Errorf("a caller that waited: %v", err)
					}
				} else {
					defer func() {
						must(w, g.Close())
						if err := <-waits; !errors.Is(err, guard.ErrClosed) {
							w.Errorf("a caller that waited: %v", err)
						}
					}()
				}
				for name, call := range calls(w.Context(), g, never) {
					err := call()
					var batch *guard.BatchError
					if errors.As(err, &batch) {
						err = batch.Errs["k"]
					}
					if !errors.Is(err, guard.ErrClosed) || err.Error() != c.want {
						w.Errorf("%s: %v", name, err)
					}
				}
				if s := g.Stats().Errors; s.Closed == 0 || s.Other+s.Unavailable > 0 {
					w.Errorf("%+v", s)
				}
			})
		})
	}
}
