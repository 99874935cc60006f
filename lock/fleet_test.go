package lock_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
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
	_ = flag.Set("test.parallel", "6") // such tests wait for servers; the command line has the last word
	os.Exit(m.Run())
}

// quiet keeps the client's own log out of the tests, many of which stop its servers.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// A fleetOrder is the first word to a holder.
type fleetOrder struct {
	Addr string
	TTL  time.Duration
}

// A fleetMessage says that a holder has the lock, or that the lock is lost.
type fleetMessage struct {
	Held  bool
	Good  time.Time // the context was good after this, at the last look
	Cause string
}

// hold is a child: it takes the lock, and writes for as long as it has the lock. A write is a
// look at the context: it says when it happens.
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
	parent.Tell(fleetMessage{Held: true})
	ctx := k.Context()
	m := fleetMessage{}
	for now := time.Now(); ctx.Err() == nil; now = time.Now() {
		m.Good = now
		time.Sleep(time.Millisecond)
	}
	if errors.Is(context.Cause(ctx), lock.ErrLost) {
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	const ttl = time.Second
	l := newLocker(t, lock.Options{TTL: ttl}, lock.On(redisStore(t, server)))
	for range 3 {
		p, told := holder(t, server, ttl)
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		k := mustLock(t, l, "n") // its TTL has passed
		replaced := time.Now()
		if err := p.Cont(); err != nil {
			t.Fatal(err)
		}
		m, err := spawn.Await(within(t), p, told)
		if err != nil || m.Good.After(replaced) || m.Cause != "lost" {
			t.Errorf("the holder that was replaced at %v told %+v, %v", replaced, m, err)
		}
		mustUnlock(t, k)
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}
