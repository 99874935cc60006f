package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// kinds lists the kinds of the events about fetches.
func (r *recorder) kinds() (all []cache.EventKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		switch e.Kind {
		case cache.FetchStarted, cache.FetchDone, cache.FetchFailed, cache.FetchNotFound, cache.FetchNotModified, cache.RefreshFailed:
			all = append(all, e.Kind)
		}
	}
	return all
}

// Each fetch ends with one event that names the fetch's answer.
func TestEventsNameTheAnswerOfAFetch(t *testing.T) {
	boom := errors.New("boom")
	type asker = func(ctx context.Context, g *guard.Guard[string], answer error)
	fetched := func(err error) (string, error) { return "v", err }
	for name, ask := range map[string]asker{
		"Get": func(ctx context.Context, g *guard.Guard[string], answer error) {
			_, _ = g.Get(ctx, "k", func(context.Context) (string, error) { return fetched(answer) })
		},
		"Load": func(ctx context.Context, g *guard.Guard[string], answer error) {
			_, _ = g.Load(ctx, "k", func(context.Context, *guard.Fill[string]) (string, error) { return fetched(answer) })
		},
		"Refresh": func(ctx context.Context, g *guard.Guard[string], answer error) {
			_, _ = g.Get(ctx, "k", func(context.Context) (string, error) { return fetched(answer) }, guard.MaxAge(0))
		},
		"GetMany": func(ctx context.Context, g *guard.Guard[string], answer error) {
			_, _ = g.GetMany(ctx, []string{"k"}, func(context.Context, []string) (map[string]string, error) {
				if answer != nil {
					return nil, &guard.BatchError{Errs: map[string]error{"k": answer}}
				}
				return map[string]string{"k": "v"}, nil
			})
		},
	} {
		for _, c := range []struct {
			answer error
			kind   cache.EventKind
			count  func(guard.Stats) uint64
		}{
			{nil, cache.FetchDone, func(s guard.Stats) uint64 { return s.Fetches }},
			{boom, cache.FetchFailed, func(s guard.Stats) uint64 { return s.FetchErrors }},
			{guard.ErrNotFound, cache.FetchNotFound, func(s guard.Stats) uint64 { return s.NotFound }},
			{fmt.Errorf("no such user: %w", guard.ErrNotFound), cache.FetchNotFound, func(s guard.Stats) uint64 { return s.NotFound }},
			{guard.ErrNotModified, cache.FetchNotModified, func(s guard.Stats) uint64 { return s.NotModified }},
		} {
			inWorlds(t, func(w *world) {
				events := &recorder{}
				g := w.fleet(1, policy(func(p *guard.Policy) { p.StaleIfError, p.Observer = time.Hour, events }))[0]
				must(w, g.Set(w.Context(), "k", "old"))
				must(w, g.Expire(w.Context(), "k"))
				ask(w.Context(), g, c.answer)
				if got := events.kinds(); !slices.Equal(got, []cache.EventKind{cache.FetchStarted, c.kind}) {
					w.Errorf("%s, %v: events %v", name, c.answer, got)
				}
				s := g.Stats()
				if s.Fetches != 1 || c.count(s) != 1 || s.FetchErrors+s.NotFound+s.NotModified > 1 {
					w.Errorf("%s, %v: %+v", name, c.answer, s)
				}
			})
		}
	}
}

func TestRefreshThatFindsNothingHasNotFailed(t *testing.T) {
	inWorlds(t, func(w *world) {
		events := &recorder{}
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Stale, p.Observer = time.Hour, events }))[0]
		must(w, g.Set(w.Context(), "k", "old"))
		must(w, g.Expire(w.Context(), "k"))
		get(w, g, "k", func(context.Context) (string, error) { return "", guard.ErrNotFound })
		time.Sleep(time.Second)
		if got := events.kinds(); !slices.Equal(got, []cache.EventKind{cache.FetchStarted, cache.FetchNotFound}) {
			w.Errorf("events %v", got)
		}
	})
}

func noRows(err error) bool { return errors.Is(err, sql.ErrNoRows) }

func TestPolicySaysWhichErrorsAreNotFound(t *testing.T) {
	asked := func(context.Context) (string, error) { return "", fmt.Errorf("user 7: %w", sql.ErrNoRows) }
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.NotFound = noRows }))
		for name, call := range calls(w.Context(), fleet[0], asked) {
			if name != "Get" && name != "Load" && name != "Refresh" && name != "Reload" {
				continue
			}
			must(w, fleet[0].Delete(w.Context(), "k"))
			if err := call(); !errors.Is(err, guard.ErrNotFound) || !errors.Is(err, sql.ErrNoRows) {
				w.Errorf("%s: %v", name, err)
			}
			if _, err := fleet[1].Get(w.Context(), "k", never); !errors.Is(err, guard.ErrNotFound) {
				w.Errorf("after %s, elsewhere: %v", name, err)
			}
		}
		boom := errors.New("boom")
		if _, err := fleet[0].Get(w.Context(), "other", func(context.Context) (string, error) { return "", boom }); err != boom {
			w.Errorf("another error: %v", err)
		}
		if s := fleet[0].Stats(); s.NotFound != 4 || s.FetchErrors != 1 || s.Errors.NotFound != 4 {
			w.Errorf("%+v", s)
		}
	})
}

func TestNotFoundIsDecidedForEachKey(t *testing.T) {
	boom := errors.New("boom")
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) {
			p.NotFound = func(err error) bool {
				if err.Error() == "angry" {
					panic("ouch")
				}
				return noRows(err)
			}
		}))
		var batch *guard.BatchError
		m, err := fleet[0].GetMany(w.Context(), []string{"here", "none", "bad", "angry"}, func(context.Context, []string) (map[string]string, error) {
			return map[string]string{"here": "v"}, &guard.BatchError{Errs: map[string]error{
				"none": sql.ErrNoRows, "bad": boom, "angry": errors.New("angry"),
			}}
		})
		var panicked *guard.PanicError
		if m["here"] != "v" || !errors.As(err, &batch) || len(batch.Errs) != 2 || batch.Errs["bad"] != boom || !errors.As(batch.Errs["angry"], &panicked) {
			w.Errorf("%v, %v", m, err)
		}
		if _, err := fleet[1].Get(w.Context(), "none", never); !errors.Is(err, guard.ErrNotFound) {
			w.Errorf("elsewhere: %v", err)
		}
		// An error of the whole call is that of each key.
		all, err := fleet[0].GetMany(w.Context(), []string{"a", "b"}, func(context.Context, []string) (map[string]string, error) { return nil, sql.ErrNoRows })
		if len(all) != 0 || err != nil {
			w.Errorf("%v, %v", all, err)
		}
	})
}

func TestPanicInNotFoundFailsItsFetchAlone(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(1, policy(func(p *guard.Policy) { p.NotFound = func(error) bool { panic("ouch") } }))
		var panicked *guard.PanicError
		for _, a := range callers(fleet, 3, "k", (&origin{takes: time.Second, answer: func(context.Context, int) (string, error) {
			return "", sql.ErrNoRows
		}}).fetch) {
			if !errors.As(a.err, &panicked) || panicked.Value != "ouch" {
				w.Errorf("%v", a.err)
			}
		}
		get(w, fleet[0], "k", (&origin{}).fetch)
	})
}

// NotFound is for errors of the origin. It is not asked about an answer to the guard, such
// as ErrNotModified.
func TestNotFoundIsNotAskedAboutOtherAnswers(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.StaleIfError, p.NotFound = time.Hour, func(error) bool { return true }
		}))[0]
		must(w, g.Set(w.Context(), "k", "v"))
		must(w, g.Expire(w.Context(), "k"))
		if v := get(w, g, "k", func(context.Context) (string, error) { return "", guard.ErrNotModified }); v != "v" {
			w.Errorf("renewed as %q", v)
		}
	})
}

func TestObserversAreToldInTheirOrder(t *testing.T) {
	var mu sync.Mutex
	var told []string
	observer := func(name string) cache.Observer {
		return observing(func(e cache.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, name+" "+string(e.Kind))
		})
	}
	inMemory(t, func(w *world) {
		told = nil
		both := cache.Observers(nil, observer("a"), nil, cache.Observers(observer("b"), nil))
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Observer = both }))[0]
		_, _ = g.Get(w.Context(), "k", func(context.Context) (string, error) { return "", guard.ErrNotFound })
		mu.Lock()
		defer mu.Unlock()
		want := []string{"a lease_granted", "b lease_granted", "a fetch_started", "b fetch_started", "a fetch_not_found", "b fetch_not_found", "a fill_stored", "b fill_stored"}
		if !slices.Equal(told, want) {
			w.Errorf("told %v, want %v", told, want)
		}
	})
	if o := cache.Observers(nil, nil); o != nil {
		t.Errorf("no observers are %v", o)
	}
}

type observing func(cache.Event)

func (o observing) Observe(e cache.Event) { o(e) }
