package lock_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
	"github.com/stampedeguard/stampede/lock"
)

func TestMain(m *testing.M) {
	spawn.Main("holder", hold)
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

// quiet keeps the client's own log out of the tests, many of which stop its servers.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// A fleetOrder is what a holder is told first.
type fleetOrder struct {
	Addr string
	TTL  time.Duration
}

// A fleetMessage is what a holder tells: that it has the lock; and, when it is told to write,
// whether its context was good.
type fleetMessage struct {
	Held  bool
	Wrote bool
	Cause string
	At    time.Time
}

// hold is a child: it takes the lock, writes when it is told to, and unlocks at the second
// word.
func hold(parent *spawn.Parent) error {
	var o fleetOrder
	if err := parent.Hear(&o); err != nil {
		return err
	}
	s, err := cache.NewRedis(redis.NewClient(&redis.Options{Addr: o.Addr}), cache.Options{Namespace: "test", RedisTimeout: time.Second})
	if err != nil {
		return err
	}
	l, err := lock.New(lock.Options{TTL: o.TTL}, lock.On(s))
	if err != nil {
		return err
	}
	k, err := l.Lock(context.Background(), "n")
	if err != nil {
		return err
	}
	parent.Tell(fleetMessage{Held: true, At: time.Now()})
	// It looks all the time, as it does when it thaws.
	for k.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	m := fleetMessage{Wrote: k.Context().Err() == nil, At: time.Now()}
	if errors.Is(context.Cause(k.Context()), lock.ErrLost) {
		m.Cause = "lost"
	}
	parent.Tell(m)
	return parent.Hear(&o)
}

// holder starts a process that has taken the lock.
func holder(t *testing.T, server *redistest.Server, ttl time.Duration) (*spawn.Process, chan fleetMessage) {
	t.Helper()
	told := make(chan fleetMessage, 10)
	p, err := spawn.Start("holder", spawn.Lines(func(m *fleetMessage) { told <- *m }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	p.Tell(fleetOrder{server.Addr(), ttl})
	if m, err := spawn.Await(within(t), p, told); err != nil || !m.Held {
		t.Fatalf("%+v, %v", m, err)
	}
	return p, told
}

func TestFleetReplacesKilledHolder(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	l := newLocker(t, lock.Options{TakeOver: true}, lock.On(redisStore(t, server)))
	var times []time.Duration
	for range 5 {
		p, _ := holder(t, server, 10*time.Second)
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		died := time.Now()
		k := mustLock(t, l, "n")
		times = append(times, time.Since(died))
		if !k.TakenOver() || k.Attempt() != 2 {
			t.Errorf("taken over %v, attempt %d", k.TakenOver(), k.Attempt())
		}
		mustUnlock(t, k)
	}
	slices.SortFunc(times, cmp.Compare)
	t.Logf("replaced after %v", times)
	if times[2] > 3*time.Second { // 300 ms on a quiet machine
		t.Errorf("replaced after %v", times[2])
	}
}

func TestFleetWaitsForKilledHolderWithoutTakeOver(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	l := newLocker(t, lock.Options{TTL: time.Second}, lock.On(redisStore(t, server)))
	p, _ := holder(t, server, time.Second)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	died := time.Now()
	k := mustLock(t, l, "n")
	mustUnlock(t, k)
	t.Logf("replaced after %v", time.Since(died))
	if k.TakenOver() {
		t.Error("it was replaced before its TTL had passed")
	}
	if d := time.Since(died); d > 5*time.Second {
		t.Errorf("replaced after %v", d)
	}
}

func TestFleetFrozenHolderFindsContextEnded(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	const ttl = time.Second
	l := newLocker(t, lock.Options{TTL: ttl}, lock.On(redisStore(t, server)))
	for range 3 {
		p, told := holder(t, server, ttl)
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		k := mustLock(t, l, "n") // its TTL has passed
		if err := p.Cont(); err != nil {
			t.Fatal(err)
		}
		m, err := spawn.Await(within(t), p, told)
		if err != nil || m.Wrote || m.Cause != "lost" {
			t.Errorf("it told %+v, %v", m, err)
		}
		mustUnlock(t, k)
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}
