// Package locktest checks that a lock.Backend keeps its contract.
package locktest

import (
	"bytes"
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/lock"
)

const (
	long  = time.Minute
	short = 100 * time.Millisecond
	// soon bounds each wait of the suite.
	soon = 10 * time.Second
)

// Features are the optional parts of the contract. The suite checks those that a backend has,
// and that a backend without one says so: by fences of zero, a Watch without a channel, and
// an error for more than one place.
type Features struct{ Fences, WakeUps, Semaphores bool }

// All are the features of [lock.On].
var All = Features{Fences: true, WakeUps: true, Semaphores: true}

// Run checks a backend, in subtests. open returns a place for locks, empty, that ends with
// the test; each call of the place returns a backend on it, as another process would have.
func Run(t *testing.T, has Features, open func(t *testing.T) (place func() lock.Backend)) {
	tests := []test{
		{"LockIsGrantedToOneHolder", one},
		{"RefusalTellsTimeLeft", refusal},
		{"ReleaseComparesID", release},
		{"ExtendComparesID", extend},
		{"LockEndsAfterTTL", ttl},
		{"ExtendKeepsLock", keeps},
		{"ExpiredLockIsNotExtended", expired},
		{"HolderMayCallAtOnce", atOnce},
		{"NamesAreAnyBytes", names},
		{"InspectTellsHolder", inspect},
		{"EndedContextEndsCalls", ended},
		{"OneHolderUnderContention", contention},
	}
	tests = append(tests, either(has.Fences, []test{{"FenceRises", fences}, {"ExtendRaisesFence", raise}}, test{"FenceIsZero", noFences})...)
	tests = append(tests, either(has.WakeUps, []test{{"ReleaseWakesWatcher", watch}}, test{"WatchHasNoChannel", noWatch})...)
	tests = append(tests, either(has.Semaphores, []test{{"SemaphoreHasItsPlaces", places}}, test{"SecondPlaceIsRefused", noPlaces})...)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			place := open(t)
			test.run(t, &suite{t: t, a: place(), b: place()})
		})
	}
}

type test struct {
	name string
	run  func(t *testing.T, s *suite)
}

func either(has bool, with []test, without test) []test {
	if has {
		return with
	}
	return []test{without}
}

// A suite is one test with two backends on one place.
type suite struct {
	t    *testing.T
	a, b lock.Backend
}

func id() (id lock.ID) {
	rand.Read(id[:])
	return id
}

func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *suite) acquire(b lock.Backend, name string, ttl time.Duration) (lock.ID, lock.Grant) {
	s.t.Helper()
	r := lock.Request{Name: name, ID: id(), TTL: ttl, Holders: 1}
	g, err := b.Acquire(s.ctx(), r)
	if err != nil {
		s.t.Fatalf("Acquire(%q): %v", name, err)
	}
	return r.ID, g
}

func (s *suite) hold(b lock.Backend, name string, ttl time.Duration) (lock.ID, lock.Grant) {
	s.t.Helper()
	id, g := s.acquire(b, name, ttl)
	if !g.OK {
		s.t.Fatalf("Acquire(%q) of a free lock: %+v", name, g)
	}
	return id, g
}

// await acquires a lock that is about to be free.
func (s *suite) await(b lock.Backend, name string) lock.Grant {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < soon; time.Sleep(time.Millisecond) {
		if _, g := s.acquire(b, name, long); g.OK {
			return g
		}
	}
	s.t.Fatalf("the lock %q is not free after %v", name, soon)
	return lock.Grant{}
}

func (s *suite) release(b lock.Backend, name string, id lock.ID, want bool) {
	s.t.Helper()
	if ok, err := b.Release(s.ctx(), lock.Hold{Name: name, ID: id, Holders: 1}); ok != want || err != nil {
		s.t.Fatalf("Release(%q) = %v, %v, want %v", name, ok, err, want)
	}
}

func (s *suite) extend(b lock.Backend, name string, id lock.ID, ttl time.Duration, fence uint64, want bool) {
	s.t.Helper()
	h := lock.Hold{Name: name, ID: id, Holders: 1, TTL: ttl, Fence: fence}
	if ok, err := b.Extend(s.ctx(), h); ok != want || err != nil {
		s.t.Fatalf("Extend(%q) = %v, %v, want %v", name, ok, err, want)
	}
}

func (s *suite) refused(b lock.Backend, name string) lock.Grant {
	s.t.Helper()
	_, g := s.acquire(b, name, long)
	if g.OK {
		s.t.Fatalf("Acquire(%q) of a held lock was granted", name)
	}
	return g
}

func one(_ *testing.T, s *suite) {
	id, _ := s.hold(s.a, "n", long)
	s.refused(s.b, "n")
	s.refused(s.a, "n")
	s.release(s.a, "n", id, true)
	s.hold(s.b, "n", long)
}

func refusal(t *testing.T, s *suite) {
	id, _ := s.hold(s.a, "n", long)
	g := s.refused(s.b, "n")
	if !g.Holder.IsZero() && g.Holder != id {
		t.Errorf("the holder is %v, want %v", g.Holder, id)
	}
	if g.Left != 0 && (g.Left < long/2 || g.Left > long) {
		t.Errorf("%v left of %v", g.Left, long)
	}
	if g.Dead {
		t.Error("a live holder looks dead")
	}
}

func release(_ *testing.T, s *suite) {
	s.release(s.a, "n", id(), false)
	mine, _ := s.hold(s.a, "n", long)
	s.release(s.b, "n", id(), false)
	s.refused(s.b, "n")
	s.release(s.b, "n", mine, true) // from anywhere
	s.release(s.a, "n", mine, false)
}

func extend(_ *testing.T, s *suite) {
	s.extend(s.a, "n", id(), long, 0, false)
	mine, _ := s.hold(s.a, "n", long)
	s.extend(s.b, "n", id(), long, 0, false)
	s.extend(s.b, "n", mine, long, 0, true)
}

func ttl(t *testing.T, s *suite) {
	began := time.Now()
	_, first := s.hold(s.a, "n", short)
	next := s.await(s.b, "n")
	if d := time.Since(began); d < short-10*time.Millisecond {
		t.Errorf("a lock of %v was free after %v", short, d)
	}
	if first.Fence != 0 && next.Fence <= first.Fence {
		t.Errorf("fence %d after %d", next.Fence, first.Fence)
	}
}

func keeps(t *testing.T, s *suite) {
	mine, _ := s.hold(s.a, "n", soon)
	began := time.Now()
	s.extend(s.a, "n", mine, long, 0, true)
	if g := s.refused(s.b, "n"); g.Left != 0 && g.Left <= soon {
		t.Errorf("%v left after an Extend by %v", g.Left, long)
	}
	for range 5 {
		s.extend(s.a, "n", mine, short, 0, true)
	}
	if g := s.refused(s.b, "n"); g.Left != 0 && g.Left < long-time.Since(began)-2*time.Second {
		t.Errorf("%v left after an Extend by %v and five by %v", g.Left, long, short)
	}
}

func expired(_ *testing.T, s *suite) {
	mine, _ := s.hold(s.a, "n", short)
	s.await(s.b, "n")
	s.extend(s.a, "n", mine, long, 0, false)
	s.release(s.a, "n", mine, false)
	s.refused(s.a, "n")
}

// A renewal is under way while the holder extends the lock, and while it releases it.
func atOnce(_ *testing.T, s *suite) {
	for range 20 {
		mine, _ := s.hold(s.a, "n", long)
		ctx, cancel := context.WithCancel(s.ctx())
		var renewals sync.WaitGroup
		renewals.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.a.Extend(ctx, lock.Hold{Name: "n", ID: mine, Holders: 1, TTL: long})
			}
		})
		func() {
			defer renewals.Wait()
			defer cancel()
			s.extend(s.a, "n", mine, long, 0, true)
			s.release(s.a, "n", mine, true)
		}()
	}
}

func fences(t *testing.T, s *suite) {
	var last uint64
	for _, b := range []lock.Backend{s.a, s.b, s.b, s.a} {
		mine, g := s.hold(b, "n", long)
		if g.Fence <= last {
			t.Errorf("fence %d after %d", g.Fence, last)
		}
		last = g.Fence
		s.release(b, "n", mine, true)
	}
}

func raise(t *testing.T, s *suite) {
	mine, g := s.hold(s.a, "n", long)
	high := g.Fence + 1000
	s.extend(s.a, "n", mine, long, high, true)
	s.extend(s.a, "n", mine, long, g.Fence, true)
	s.release(s.a, "n", mine, true)
	if _, g := s.hold(s.b, "n", long); g.Fence <= high {
		t.Errorf("fence %d after %d", g.Fence, high)
	}
}

func names(_ *testing.T, s *suite) {
	all := []string{"n", "N", "", "{", "}", "{}", "%", "a}b", "a{b}c", "../n", "n/m", "\x00", "\xff\xfe", "n\n", "é", strings.Repeat("x", 5000)}
	for _, name := range all {
		s.hold(s.a, name, long)
	}
	for _, name := range all {
		s.refused(s.b, name)
	}
}

func inspect(t *testing.T, s *suite) {
	state, err := s.b.Inspect(s.ctx(), "n", 1)
	if err != nil || len(state.Holders) != 0 {
		t.Fatalf("Inspect of a free lock: %+v, %v", state, err)
	}
	mine, g := s.hold(s.a, "n", long)
	state, err = s.b.Inspect(s.ctx(), "n", 1)
	if err != nil || len(state.Holders) != 1 {
		t.Fatalf("Inspect of a held lock: %+v, %v", state, err)
	}
	h := state.Holders[0]
	if !bytes.Equal(h.ID[:], mine[:]) || h.Left < long/2 || h.Left > long || h.Dead || state.Fence != g.Fence {
		t.Errorf("Inspect: %+v, want the holder %v with fence %d", state, mine, g.Fence)
	}
}

func watch(t *testing.T, s *suite) {
	changed, stop := s.b.Watch("n")
	defer stop()
	if changed == nil {
		t.Fatal("the backend has no channel of wake-ups")
	}
	mine, _ := s.hold(s.a, "n", long)
	select { // the watch has begun
	case <-changed:
	case <-time.After(soon):
		t.Fatal("no message says that the watch has begun")
	}
	s.refused(s.b, "n") // a waiter asks again then
	s.release(s.a, "n", mine, true)
	select {
	case <-changed:
	case <-time.After(soon):
		t.Fatal("the release did not wake the watcher")
	}
}

func ended(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	mine := id()
	if g, err := s.a.Acquire(ctx, lock.Request{Name: "n", ID: mine, TTL: long, Holders: 1}); err == nil && !g.OK {
		t.Errorf("Acquire on an ended context: %+v", g)
	}
	if _, err := s.a.Release(context.Background(), lock.Hold{Name: "n", ID: mine, Holders: 1}); err != nil {
		t.Fatal(err)
	}
	s.hold(s.b, "n", long)
}

func places(t *testing.T, s *suite) {
	var ids []lock.ID
	for i := range 3 {
		r := lock.Request{Name: "n", ID: id(), TTL: long, Holders: 2}
		g, err := s.a.Acquire(s.ctx(), r)
		if err != nil {
			t.Fatalf("Acquire of a place: %v", err)
		}
		if g.OK != (i < 2) {
			t.Fatalf("grant %d of a semaphore of 2: %+v", i+1, g)
		}
		ids = append(ids, r.ID)
	}
	if state, err := s.b.Inspect(s.ctx(), "n", 2); err != nil || len(state.Holders) != 2 {
		t.Errorf("Inspect: %+v, %v", state, err)
	}
	for i, want := range []bool{true, true, false} {
		h := lock.Hold{Name: "n", ID: ids[i], Holders: 2, TTL: long}
		if ok, err := s.b.Extend(s.ctx(), h); ok != want || err != nil {
			t.Errorf("Extend of holder %d: %v, %v", i+1, ok, err)
		}
		if ok, err := s.b.Release(s.ctx(), h); ok != want || err != nil {
			t.Errorf("Release of holder %d: %v, %v", i+1, ok, err)
		}
	}
}

func noFences(t *testing.T, s *suite) {
	if _, g := s.hold(s.a, "n", long); g.Fence != 0 {
		t.Errorf("fence %d of a backend without fences", g.Fence)
	}
}

func noWatch(t *testing.T, s *suite) {
	changed, stop := s.a.Watch("n")
	defer stop()
	if changed != nil {
		t.Error("a channel of a backend without wake-ups")
	}
}

func noPlaces(t *testing.T, s *suite) {
	r := lock.Request{Name: "n", ID: id(), TTL: long, Holders: 2}
	if g, err := s.a.Acquire(s.ctx(), r); err == nil {
		t.Errorf("a place of a backend without semaphores: %+v", g)
	}
	s.hold(s.b, "n", long) // nothing was left locked
}

func contention(t *testing.T, s *suite) {
	var inside atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		b := []lock.Backend{s.a, s.b}[i%2]
		wg.Go(func() {
			for granted := 0; granted < 10; {
				h := lock.Hold{Name: "n", ID: id(), Holders: 1}
				g, err := b.Acquire(s.ctx(), lock.Request{Name: "n", ID: h.ID, TTL: long, Holders: 1})
				if err != nil {
					t.Error(err)
					return
				}
				if !g.OK {
					time.Sleep(time.Millisecond)
					continue
				}
				if granted++; inside.Add(1) != 1 {
					t.Error("two holders at a time")
				}
				inside.Add(-1)
				if ok, err := b.Release(s.ctx(), h); !ok || err != nil {
					t.Errorf("Release: %v, %v", ok, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
