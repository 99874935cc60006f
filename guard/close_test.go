package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
)

// A slowReturn store takes a second to give leases back.
type slowReturn struct{ store.Store }

func (s slowReturn) Unwrap() store.Store { return s }

func (s slowReturn) Return(ctx context.Context, returns []store.Return) []store.Returned {
	time.Sleep(time.Second)
	return s.Store.Return(ctx, returns)
}

// untouched fails the test unless the key's lease is granted as if no process had asked
// for it before.
func untouched(w *world, key string) {
	w.Helper()
	if l := held(w, w.open(), key); l.Attempt != 1 {
		w.Errorf("the next attempt is number %d", l.Attempt)
	}
}

func TestCloseReturnsWhenItsLeasesAreReleased(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.guard(slowReturn{w.open().Unwrap()}, policy())
		got := asking(g, (&origin{takes: time.Hour}).fetch)
		must(w, g.Close())
		untouched(w, "g:k")
		if a := <-got; !errors.Is(a.err, guard.ErrClosed) {
			w.Errorf("the caller got %q, %v", a.value, a.err)
		}
	})
}

func TestGrantThatComesAfterCloseIsReturned(t *testing.T) {
	inMemory(t, func(w *world) {
		answers := make(chan struct{})
		g := w.guard(gated(w, w.open(), answers, nil), policy())
		got := asking(g, (&origin{}).fetch)
		closed := make(chan error, 1)
		go func() { closed <- g.Close() }()
		synctest.Wait()
		close(answers)
		must(w, <-closed)
		untouched(w, "g:k")
		if a := <-got; !errors.Is(a.err, guard.ErrClosed) {
			w.Errorf("the caller got %q, %v", a.value, a.err)
		}
	})
}

// A followed store knows whether a feed is open.
type followed struct {
	store.Store
	feeds store.Feeds
}

func (s *followed) Unwrap() store.Store { return s }

func (s *followed) Follow(forget func(store.Invalidation)) *store.Feed {
	f, _ := s.feeds.Open(forget)
	return f
}

func TestClosedGuardLeavesNoFeed(t *testing.T) {
	inMemory(t, func(w *world) {
		s := &followed{Store: w.open().Unwrap()}
		g := w.guard(s, nearPolicy())
		if !s.feeds.Any() {
			w.Fatal("there is no feed")
		}
		must(w, g.Close())
		if s.feeds.Any() {
			w.Error("the guard is closed, and its feed is open")
		}
	})
}

// Without a pause, too, a failing refresh is not repeated at once while callers are
// served stale values.
func TestFailedRefreshIsHeldOffWithoutAPause(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.TTL, p.Stale, p.ErrorPause = time.Second, time.Hour, guard.Off }))[0]
		must(w, g.Set(w.Context(), "k", "good"))
		time.Sleep(2 * time.Second)
		o := &origin{answer: func(context.Context, int) (string, error) { return "", errors.New("down") }}
		for range 100 {
			if v := get(w, g, "k", o.fetch); v != "good" {
				w.Fatalf("got %q", v)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := o.n.Load(); n < 2 || n > 6 {
			w.Errorf("in 1 s the failing origin was asked %d times, four times was meant", n)
		}
	})
}
