package guard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// sameReading answers each Read of the key with one reading, as a store does for
// callers that share a batch.
type sameReading struct {
	cache.Store
	reading *cache.Reading
}

func (s *sameReading) Read(ctx context.Context, key string) (*cache.Reading, error) {
	if s.reading == nil {
		r, err := s.Store.Read(ctx, key)
		if err != nil || !r.Found {
			return r, err
		}
		s.reading = r
	}
	return s.reading, nil
}

type apple struct{ Weight int }

type pear struct{ Weight int }

// readings are the calls that return what is stored, without a fetch.
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
		store := &sameReading{Store: w.open()}
		apples, err := guard.New[apple](store, "g", policy())
		must(w, err)
		defer apples.Close()
		pears, err := guard.New[pear](store, "g", policy())
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

// What the second guard can't decode is a miss to it alone.
func TestValueOfAnotherTypeIsFetchedAnew(t *testing.T) {
	inWorlds(t, func(w *world) {
		store := &sameReading{Store: w.open()}
		apples, err := guard.New[apple](store, "g", policy())
		must(w, err)
		defer apples.Close()
		events := &recorder{}
		numbers, err := guard.New[int](store, "g", policy(func(p *guard.Policy) { p.Observer = events }))
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
