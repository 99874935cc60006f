package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/lock"
)

// A flaky backend can be made to answer nothing. It counts the requests, and answers none after
// far too many, so that a test in fake time ends.
type flaky struct {
	lock.Backend
	away  atomic.Bool
	asked atomic.Int64
	slow  time.Duration // before an Acquire
	lost  bool          // the answers of Acquire and Extend
}

var errAway = errors.New("away")

func (f *flaky) Acquire(ctx context.Context, r lock.Request) (lock.Grant, error) {
	time.Sleep(f.slow)
	if f.asked.Add(1) > 5000 || f.away.Load() {
		return lock.Grant{}, errAway
	}
	g, err := f.Backend.Acquire(ctx, r)
	if f.lost {
		return lock.Grant{}, errAway
	}
	return g, err
}

func (f *flaky) Extend(ctx context.Context, h lock.Hold) (bool, error) {
	if f.away.Load() {
		return false, errAway
	}
	ok, err := f.Backend.Extend(ctx, h)
	if f.lost {
		return false, errAway
	}
	return ok, err
}

func (f *flaky) Release(ctx context.Context, h lock.Hold) (bool, error) {
	if f.away.Load() {
		return false, errAway
	}
	return f.Backend.Release(ctx, h)
}

func (f *flaky) Inspect(ctx context.Context, name string, holders int) (lock.State, error) {
	if f.away.Load() {
		return lock.State{}, errAway
	}
	return f.Backend.Inspect(ctx, name, holders)
}

// memories are n independent places; process returns backends on them, as of another process.
func memories(t *testing.T, n int) (process func() (flakies []*flaky, backends []lock.Backend)) {
	var all []*cache.Memory
	for range n {
		all = append(all, memoryStore(t))
	}
	return func() (flakies []*flaky, backends []lock.Backend) {
		for _, m := range all {
			s := m.Join()
			t.Cleanup(func() { _ = s.Close() })
			f := &flaky{Backend: lock.On(s)}
			flakies, backends = append(flakies, f), append(backends, f)
		}
		return flakies, backends
	}
}

func TestQuorumOutlivesMinority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := memories(t, 5)
		flakies, backends := process()
		l := newLocker(t, lock.Options{TTL: time.Second}, backends...)
		flakies[0].away.Store(true)
		flakies[3].away.Store(true)
		k := mustLock(t, l, "n")
		time.Sleep(10 * time.Second)
		if k.Valid() == 0 || k.Fence() == 0 {
			t.Fatal("the lock is lost with two of five backends away")
		}
		states := map[lock.VoteState]int{}
		for _, v := range k.Status() {
			states[v.State]++
		}
		if states[lock.VoteYes] != 3 || states[lock.VoteError] != 2 {
			t.Errorf("votes %v", k.Status())
		}
		flakies[1].away.Store(true)
		lost := time.Now()
		<-k.Lost()
		if d := time.Since(lost); d > time.Second {
			t.Errorf("lost after %v", d)
		}
		time.Sleep(time.Second) // until the minority's votes for the lost lock have ended
		_, err := l.TryLock(t.Context(), "n")
		var none *lock.QuorumError
		if !errors.As(err, &none) || !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, errAway) || strings.Count(err.Error(), "away") != 3 {
			t.Errorf("TryLock: %v", err)
		}
		if err := k.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

func TestLateVoteWithoutAnswerIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := memories(t, 3)
		flakies, backends := process()
		for _, b := range backends[:2] {
			r := lock.Request{Name: "n", ID: lock.ID{1}, TTL: time.Hour, Holders: 1}
			if g, err := b.Acquire(t.Context(), r); err != nil || !g.OK {
				t.Fatalf("Acquire: %+v, %v", g, err)
			}
		}
		flakies[2].slow, flakies[2].lost = time.Millisecond, true
		l := newLocker(t, lock.Options{TTL: time.Hour}, backends...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		defer cancel()
		if _, err := l.Lock(ctx, "n"); err == nil {
			t.Fatal("a held lock was granted")
		}
		time.Sleep(time.Second)
		if s, err := backends[2].Inspect(t.Context(), "n", 1); err != nil || len(s.Holders) != 0 {
			t.Errorf("the third backend still has %+v, %v", s.Holders, err)
		}
	})
}

// The store has extended the lock, and is away when it is released.
func TestLostExtendIsReleasedAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flakies, backends := memories(t, 1)()
		l := newLocker(t, lock.Options{TTL: time.Second, NoRenew: true}, backends...)
		k := mustLock(t, l, "n")
		flakies[0].lost = true
		if err := k.Extend(t.Context(), time.Hour); !errors.Is(err, errAway) {
			t.Errorf("Extend: %v", err)
		}
		flakies[0].away.Store(true)
		if err := k.Unlock(t.Context()); !errors.Is(err, errAway) {
			t.Errorf("Unlock: %v", err)
		}
		time.Sleep(10 * time.Second)
		flakies[0].away.Store(false)
		time.Sleep(2 * time.Second)
		if s, err := l.Inspect(t.Context(), "n"); err != nil || len(s.Holders) != 0 {
			t.Errorf("after the outage: %+v, %v", s, err)
		}
	})
}

func TestOutageCostsBoundedMemory(t *testing.T) {
	flakies, backends := memories(t, 1)()
	l := newLocker(t, lock.Options{TTL: time.Hour}, backends...)
	flakies[0].away.Store(true)
	for range 3000 {
		if _, err := l.TryLock(t.Context(), "n"); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
	}
	if n := lock.Strays(l); n > 1000 {
		t.Errorf("%d IDs are remembered", n)
	}
}

// A ledger backend grants all, and knows the grants that were not given back.
type ledger struct {
	lock.Backend
	asked func()
	held  sync.Map
}

func (b *ledger) Acquire(_ context.Context, r lock.Request) (lock.Grant, error) {
	b.held.Store(r.ID, true)
	b.asked()
	return lock.Grant{OK: true}, nil
}

func (b *ledger) Release(_ context.Context, h lock.Hold) (bool, error) {
	_, ok := b.held.LoadAndDelete(h.ID)
	return ok, nil
}

func TestCloseDuringRoundLeavesNoVote(t *testing.T) {
	for range 20 {
		var all []*ledger
		var backends []lock.Backend
		asked := make(chan struct{}, 1)
		for range 201 { // so many that Close comes in between
			b := &ledger{asked: func() {
				select {
				case asked <- struct{}{}:
				default:
				}
			}}
			all, backends = append(all, b), append(backends, b)
		}
		l := newLocker(t, lock.Options{NoRenew: true}, backends...)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = l.Lock(t.Context(), "n") })
		<-asked
		_ = l.Close()
		wg.Wait()
		held := 0
		for _, b := range all {
			b.held.Range(func(any, any) bool { held++; return true })
		}
		if held > 0 {
			t.Fatalf("%d votes are held after Close", held)
		}
	}
}

// A waiter gives the votes back that are no majority, and that wakes waiters.
func TestSplitVotesDoNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := memories(t, 3)
		flakies, backends := process()
		counted := flakies[2]
		for i, b := range backends { // the third one is free soon
			r := lock.Request{Name: "n", ID: lock.ID{1}, TTL: []time.Duration{10 * time.Second, 10 * time.Second, time.Second}[i], Holders: 1}
			if g, err := b.Acquire(t.Context(), r); err != nil || !g.OK {
				t.Fatalf("Acquire: %+v, %v", g, err)
			}
		}
		var wg sync.WaitGroup
		for i := range 4 {
			if i > 0 {
				flakies, backends = process()
			}
			flakies[2].slow = time.Millisecond // its vote comes when the others are a majority
			l := newLocker(t, lock.Options{}, backends...)
			wg.Go(func() { mustUnlock(t, mustLock(t, l, "n")) })
		}
		wg.Wait()
		n := counted.asked.Load()
		t.Logf("a waiter asked %d times in 10 s", n)
		if n > 500 {
			t.Fail()
		}
	})
}

func TestQuorumHasOneHolderAtATime(t *testing.T) {
	process := memories(t, 3)
	var inside, done atomic.Int64
	var last atomic.Uint64
	var wg sync.WaitGroup
	for i := range 4 {
		flakies, backends := process()
		flakies[i%3].away.Store(i < 2)
		l := newLocker(t, lock.Options{Retry: 5 * time.Millisecond}, backends...)
		wg.Go(func() {
			for range 20 {
				if err := l.Do(within(t), "n", func(_ context.Context, k *lock.Lock) error {
					if inside.Add(1) != 1 {
						t.Error("two holders")
					}
					if before := last.Swap(k.Fence()); before >= k.Fence() {
						t.Errorf("fence %d after %d", k.Fence(), before)
					}
					inside.Add(-1)
					done.Add(1)
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if done.Load() != 80 {
		t.Errorf("%d done", done.Load())
	}
}

func TestFencesRiseWhenMajorityChanges(t *testing.T) {
	process := memories(t, 3)
	flakies, backends := process()
	l := newLocker(t, lock.Options{}, backends...)
	var last uint64
	for i := range 30 {
		away := flakies[i%3]
		away.away.Store(true)
		for range i % 5 {
			k := mustLock(t, l, "n")
			if k.Fence() <= last {
				t.Fatalf("fence %d after %d", k.Fence(), last)
			}
			last = k.Fence()
			mustUnlock(t, k)
		}
		away.away.Store(false)
	}
}

// quorum starts n servers, and waits until they vote for locks of 100 ms.
func quorum(t *testing.T, n int) (servers []*redistest.Server, process func(lock.Options) *lock.Locker) {
	for range n {
		servers = append(servers, redistest.RunStandalone(t, redistest.StandaloneConfig{}))
	}
	return servers, func(opts lock.Options) *lock.Locker {
		var backends []lock.Backend
		for _, s := range servers {
			backends = append(backends, lock.On(redisStore(t, s)))
		}
		return newLocker(t, opts, backends...)
	}
}

func TestRestartedServersAbstain(t *testing.T) {
	t.Parallel()
	servers, process := quorum(t, 3)
	const ttl = 2 * time.Second
	a, b := process(lock.Options{TTL: ttl}), process(lock.Options{TTL: ttl})
	k := mustLock(t, a, "n") // once they vote
	for _, s := range servers[:2] {
		if err := s.RestartEmpty(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	for k.Context().Err() == nil {
		if other, err := b.TryLock(within(t), "n"); err == nil {
			if k.Context().Err() == nil {
				t.Errorf("another process has the lock, after two of three servers forgot it: %v", other.Status())
			}
			return
		}
	}
	mustUnlock(t, mustLock(t, b, "n"))
}

func TestQuorumOutlivesServerThatHangs(t *testing.T) {
	t.Parallel()
	servers, process := quorum(t, 3)
	l := process(lock.Options{TTL: 800 * time.Millisecond}) // the stores' RedisTimeout is longer
	k := mustLock(t, l, "n")
	if err := servers[0].Pause(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if k.Valid() == 0 {
		t.Error("the lock is lost, as one of three servers hangs")
	}
	if err := servers[0].Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestOneServerTwiceIsFound(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for name, b := range map[string][]lock.Backend{
		"store": {lock.On(redisStore(t, server)), lock.On(redisStore(t, server)), lock.On(memoryStore(t))},
		"plain": {lock.Plain(server.Client()), lock.Plain(server.Client()), lock.On(memoryStore(t))},
	} {
		l := newLocker(t, lock.Options{TTL: 100 * time.Millisecond}, b...)
		if _, err := l.Lock(within(t), "n"); !errors.Is(err, lock.ErrSameServer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
