package guard_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// A slowReturn store takes a while to give a lease back.
type slowReturn struct{ cache.Store }

func (s slowReturn) Release(ctx context.Context, l *cache.Lease) error {
	time.Sleep(time.Second)
	return s.Store.Release(ctx, l)
}

// grantedAtOnce fails the test unless the key's lease is granted at once, as if nobody had
// asked for it before.
func grantedAtOnce(w *world, s cache.Store) {
	w.Helper()
	a, err := s.Acquire(w.Context(), "g:k", cache.Ask{TTL: time.Minute, RenewFor: time.Minute, Window: time.Hour})
	if err != nil || a.Verdict != cache.Granted || a.Lease.Attempt != 1 {
		w.Errorf("the next to ask is answered %v, %+v, %v", a.Verdict, a.Lease, err)
	}
}

func TestCloseReturnsWhenItsLeasesAreReleased(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.guard(slowReturn{w.open()}, policy())
		got := asking(g, (&origin{takes: time.Hour}).fetch)
		must(w, g.Close())
		grantedAtOnce(w, w.open())
		if a := <-got; !errors.Is(a.err, guard.ErrClosed) {
			w.Errorf("the caller got %q, %v", a.value, a.err)
		}
	})
}

func TestGrantThatComesAfterCloseIsGivenBack(t *testing.T) {
	inMemory(t, func(w *world) {
		s := &late{Store: w.open(), answers: make(chan struct{})}
		g := w.guard(s, policy())
		got := asking(g, (&origin{}).fetch)
		closed := make(chan error, 1)
		go func() { closed <- g.Close() }()
		synctest.Wait()
		close(s.answers)
		must(w, <-closed)
		grantedAtOnce(w, w.open())
		if a := <-got; !errors.Is(a.err, guard.ErrClosed) {
			w.Errorf("the caller got %q, %v", a.value, a.err)
		}
	})
}

// A followed store counts the feeds that are open.
type followed struct {
	cache.Store
	open atomic.Int32
}

func (s *followed) Follow(forget func(cache.Invalidation)) *cache.Feed {
	s.open.Add(1)
	return cache.NewFeed(forget, func() { s.open.Add(-1) })
}

func TestClosedGuardLeavesNoFeed(t *testing.T) {
	inMemory(t, func(w *world) {
		s := &followed{Store: w.open()}
		g := w.guard(s, nearPolicy())
		if n := s.open.Load(); n != 1 {
			w.Fatalf("%d feeds", n)
		}
		must(w, g.Close())
		if n := s.open.Load(); n != 0 {
			w.Errorf("%d feeds are left of a guard that is closed", n)
		}
	})
}

// Without a pause, too, callers who are served stale values do not have a refresh
// that fails tried again at once.
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

// A flight that waits for another may outlast a deletion. What it fetches then is
// from after it.
func TestTagDeletedBeforeAWaiterFetchesSpoilsNothing(t *testing.T) {
	inWorlds(t, func(w *world) {
		other := w.open()
		g := w.guard(w.open(), policy(tagged("t")))
		time.Sleep(time.Second)
		a, err := other.Acquire(w.Context(), "g:k", cache.Ask{TTL: time.Minute, RenewFor: time.Minute, Window: time.Hour})
		must(w, err)
		o := &origin{}
		got := asking(g, o.fetch)
		time.Sleep(time.Second) // it waits
		must(w, g.DeleteTag(w.Context(), "t"))
		must(w, other.Release(w.Context(), a.Lease))
		if a := <-got; a.value != "v1" || a.err != nil {
			w.Fatalf("got %q, %v", a.value, a.err)
		}
		if v := get(w, g, "k", o.fetch); v != "v1" {
			w.Errorf("the next caller got %q: the fetch was in vain", v)
		}
	})
}
