package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

// hasAge reads a key in each of the ways there are. A reading is never younger than its
// entry, nor older by more than some slack.
func hasAge(t *testing.T, s store.Store, key string, age, slack time.Duration) {
	t.Helper()
	one, err := read(t.Context(), s, key)
	many := storetest.ReadMany(t.Context(), s, "", []string{key, "none"})[0]
	a := acquire(t.Context(), s, lasting(key))
	if err != nil || many.Err != nil || a.Verdict != store.HasEntry {
		t.Fatal(err, many.Err, a.Verdict, a.Err)
	}
	for by, r := range map[string]*store.Reading{"Read": one, "ReadMany": many.Reading, "Acquire": a.Reading} {
		if !r.Found || r.Age < age || r.Age > age+slack || r.Left != max(0, r.Entry.TTL-r.Age) {
			t.Errorf("%s: found=%v at age %v with %v left, want %v and at most %v more", by, r.Found, r.Age, r.Left, age, slack)
		}
	}
}

func TestTimeIsAskedOnceASecond(t *testing.T) {
	g := newGate(isRead)
	bubble(t, redisstore.Options{}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		reads, times := g.Count("get", "mget"), g.Count("time")
		const lasted = 10 * time.Second
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				for began := time.Now(); time.Since(began) < lasted; time.Sleep(10 * time.Millisecond) {
					if _, err := read(t.Context(), s, fmt.Sprint("k", i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		reads, times = g.Count("get", "mget")-reads, g.Count("time")-times
		if times < 9 || times > 11 || reads < 1000 {
			t.Errorf("%d TIMEs beside %d reads in %v", times, reads, lasted)
		}
	})
}

func TestAgesNeedNoClockOfTheProcess(t *testing.T) {
	bubble(t, redisstore.Options{}, nil, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		for _, skew := range []time.Duration{10 * time.Hour, -10 * time.Hour} {
			key := fmt.Sprint(skew)
			server.SetTime(time.Now().Add(skew))
			time.Sleep(2 * time.Second) // until TIME is asked again
			server.SetTime(time.Now().Add(skew))
			mustSet(t, s, key, "v")
			hasAge(t, s, key, 0, time.Millisecond)
			time.Sleep(20 * time.Minute)
			server.SetTime(time.Now().Add(skew))
			hasAge(t, s, key, 20*time.Minute, time.Millisecond)
		}
	})
}

func TestAgeIsThatOfTheVersion(t *testing.T) {
	bubble(t, redisstore.Options{}, nil, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		for range 3 {
			mustSet(t, s, "k", "v")
			hasAge(t, s, "k", 0, 0)
			time.Sleep(20 * time.Minute)
			hasAge(t, s, "k", 20*time.Minute, 0)
		}
	})
}

// whileHeld has a key read, and calls f while the command or the answer is held up.
func whileHeld(t *testing.T, s store.Store, g *gate, side *chan struct{}, key string, f func()) *store.Reading {
	t.Helper()
	open := g.shut(side)
	rd := storetest.StartRead(t.Context(), s, key)
	g.isHeld(t)
	f()
	open()
	r, err := rd.Result()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSlowReadsMakeNoEntryYounger(t *testing.T) {
	const slow = 20 * time.Second
	g := newGate(isRead)
	bubble(t, redisstore.Options{RedisTimeout: time.Hour}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		mustSet(t, s, "k", "v")
		began := time.Now()
		for range 2 { // TIME is asked, and known
			for _, side := range []*chan struct{}{&g.way, &g.ret} {
				r := whileHeld(t, s, g, side, "k", func() { time.Sleep(slow) })
				if age := time.Since(began); r.Age < age || r.Age > age+slow {
					t.Errorf("age %v after %v", r.Age, age)
				}
				_, _ = read(t.Context(), s, "k") // it does not ask for TIME, which is known
			}
			time.Sleep(2 * time.Second)
			hasAge(t, s, "k", time.Since(began), 0)
		}
	})
}

func TestSuspendedProcessTakesNoEntryForYounger(t *testing.T) {
	const suspended = 10 * time.Minute
	g := newGate(isRead)
	bubble(t, redisstore.Options{RedisTimeout: time.Hour}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		mustSet(t, s, "k", "v")
		began := time.Now()
		suspend := func() {
			time.Sleep(suspended)
			redisstore.Slip(s, suspended)
		}
		hasAge(t, s, "k", 0, 0)
		suspend()
		hasAge(t, s, "k", time.Since(began), 0)
		r := whileHeld(t, s, g, &g.ret, "k", suspend)
		if age := time.Since(began); r.Age != age {
			t.Errorf("of an answer from before: age %v after %v", r.Age, age)
		}
		hasAge(t, s, "k", time.Since(began), 0)
	})
}

func TestWallClockThatIsSetChangesNoAge(t *testing.T) {
	bubble(t, redisstore.Options{}, nil, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		mustSet(t, s, "k", "v")
		hasAge(t, s, "k", 0, 0)
		redisstore.Slip(s, -time.Hour)
		hasAge(t, s, "k", 0, 0)
	})
}

// The clocks of servers differ. After a failover ages may be off by that, as expiries are.
func TestFailoverShiftsAgesByTheClocks(t *testing.T) {
	for _, ahead := range []time.Duration{time.Minute, -time.Minute} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old, now := redistest.RunEmbeddedInMemory(t), redistest.RunEmbeddedInMemory(t)
				f, client := failingOver(t, old, now)
				s := opened(t, client, redisstore.Options{})
				for key, age := range map[string]time.Duration{"old": 10 * time.Minute, "young": 10 * time.Second} {
					f.replaced.Store(false)
					time.Sleep(2 * time.Second)
					mustSet(t, s, key, "v")
					hasAge(t, s, key, 0, 0)
					bytes, err := old.Get("test:{" + key + "}")
					if err != nil || now.Set("test:{"+key+"}", bytes) != nil {
						t.Fatal(err)
					}
					f.replaced.Store(true)
					time.Sleep(age)
					now.SetTime(time.Now().Add(ahead))
					hasAge(t, s, key, max(0, age+ahead), 0)
				}
			})
		})
	}
}

// A failover leads the connections that a client makes from now on to another server.
type failover struct{ replaced atomic.Bool }

// failingOver is a client with connections that live for a second.
func failingOver(t *testing.T, old, now *redistest.Embedded) (*failover, *redis.Client) {
	t.Helper()
	f := &failover{}
	o := old.Options()
	o.ConnMaxLifetime = time.Second
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if f.replaced.Load() {
			return now.Options().Dialer(ctx, network, addr)
		}
		return old.Options().Dialer(ctx, network, addr)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return f, client
}

// A limiter may keep a pipeline back and leave its commands as they are.
func TestTimeDelayedByAHookIsNotUsed(t *testing.T) {
	var kept atomic.Bool
	errKept := errors.New("kept back")
	hook := around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if kept.Load() && isRead(cmds[0]) {
			return errKept
		}
		return next()
	})
	bubble(t, redisstore.Options{}, hook, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		mustSet(t, s, "k", "v")
		time.Sleep(time.Minute)
		kept.Store(true)
		if r, err := read(t.Context(), s, "k"); !errors.Is(err, errKept) {
			t.Errorf("%+v, %v", r, err)
		}
		kept.Store(false)
		hasAge(t, s, "k", time.Minute, 0)
	})
}

func TestSlotThatMovesChangesNoAge(t *testing.T) {
	t.Parallel()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	ctx, name := t.Context(), "test:{k}"
	s := opened(t, cluster.Client(), redisstore.Options{RedisTimeout: time.Minute})
	slot, err := cluster.Slot(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	at := masterOf(t, cluster, name)
	mustSet(t, s, "k", "first")
	began := time.Now()
	moved := make(chan error, 1)
	go func() { moved <- cluster.MoveSlot(ctx, slot, at, (at+1)%3) }()
	for done := false; !done; {
		select {
		case err := <-moved:
			if done = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
		// All servers have this machine's clock.
		least := time.Since(began) - time.Millisecond
		if r := reads(t, s, "k", "first"); r.Age < least || r.Age > time.Since(began)+5*time.Second {
			t.Fatalf("age %v after %v", r.Age, time.Since(began))
		}
	}
	mustSet(t, s, "k", "second")
	reads(t, s, "k", "second")
}
