package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// behindAWall runs the test with a store behind a wall, and one that is not.
func behindAWall(t *testing.T, test func(t *testing.T, s, other *redisstore.Store, h *wall)) {
	t.Helper()
	h := &wall{}
	bubble(t, redisstore.Options{}, h.hook(), func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		other := opened(t, server.Client(), redisstore.Options{})
		time.Sleep(time.Second) // until its subscription is live
		test(t, s, other, h)
	})
}

// loses returns the outcome of a lease of the key while the wall is up.
func loses(t *testing.T, s store.Store, h *wall, r store.Return) {
	t.Helper()
	h.up.Store(true)
	if b := giveBack(t.Context(), s, r); !errors.Is(b.Err, store.ErrUnavailable) {
		t.Fatalf("%+v, want ErrUnavailable", b)
	}
}

// returnsOf are the ways to give a lease back.
func returnsOf(t *testing.T, s store.Store, l *store.Lease) map[string]store.Return {
	t.Helper()
	stamp, err := s.Stamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tagged := entryOf("v", time.Minute)
	tagged.Tags, tagged.Stamp = []string{"t"}, stamp
	return map[string]store.Return{
		"fill":          {Lease: l, Entry: entryOf("v", time.Minute)},
		"fill of a tag": {Lease: l, Entry: tagged},
		"fail":          {Lease: l, Failed: true, Failure: []byte("why")},
		"decline":       {Lease: l, Failed: true, Declined: true, Failure: []byte("why")},
		"release":       {Lease: l},
	}
}

// The waiters of other processes wait for that lease.
func TestUnansweredReturnIsSentAgain(t *testing.T) {
	const stall = 2 * time.Second
	for _, name := range []string{"fill", "fill of a tag", "fail", "decline", "release"} {
		t.Run(name, func(t *testing.T) {
			behindAWall(t, func(t *testing.T, s, other *redisstore.Store, h *wall) {
				r := returnsOf(t, s, granted(t, s, "k"))[name]
				held := acquire(t.Context(), other, lasting("k"))
				if held.Verdict != store.Held {
					t.Fatalf("%v, %v, want held", held.Verdict, held.Err)
				}
				loses(t, s, h, r)
				time.Sleep(stall)
				h.up.Store(false)
				time.Sleep(1500 * time.Millisecond) // until the breaker has closed
				ask := lasting("k")
				ask.LastHeld = held.Holder
				got := acquire(t.Context(), other, ask)
				switch {
				case got.Err != nil:
					t.Fatal(got.Err)
				case r.Entry != nil:
					if got.Verdict != store.HasEntry || !got.Reading.Found {
						t.Fatalf("%v, want the entry", got.Verdict)
					}
					// It is as old as if it had been stored at once.
					if left := got.Reading.Left; left > time.Minute-stall || left < time.Minute-stall-2*time.Second {
						t.Errorf("%v of a minute are left, %v after the fill", left, stall)
					}
				case r.Failed:
					if got.Verdict != store.Failed || string(got.Failure) != "why" {
						t.Errorf("%v %q, want the failure", got.Verdict, got.Failure)
					}
				case got.Verdict != store.Granted:
					t.Errorf("%v, want granted", got.Verdict)
				}
			})
		})
	}
}

// P2
func TestReturnSentAgainComparesItsLease(t *testing.T) {
	behindAWall(t, func(t *testing.T, s, other *redisstore.Store, h *wall) {
		loses(t, s, h, store.Return{Lease: granted(t, s, "k"), Entry: entryOf("old", time.Minute)})
		if err := remove(t.Context(), other, "k"); err != nil {
			t.Fatal(err)
		}
		h.up.Store(false)
		time.Sleep(5 * time.Second)
		if r, err := read(t.Context(), other, "k"); err != nil || r.Found {
			t.Errorf("found=%v, %v; want nothing, as it was deleted", r.Found, err)
		}
	})
}

func TestReturnIsNotSentAgainAfterItsLease(t *testing.T) {
	behindAWall(t, func(t *testing.T, s, other *redisstore.Store, h *wall) {
		ask := lasting("k")
		ask.TTL = 3 * time.Second
		a := acquire(t.Context(), s, ask)
		if a.Verdict != store.Granted {
			t.Fatal(a.Verdict, a.Err)
		}
		loses(t, s, h, store.Return{Lease: a.Lease, Entry: entryOf("v", time.Minute)})
		time.Sleep(4 * time.Second)
		h.up.Store(false)
		time.Sleep(5 * time.Second)
		if r, err := read(t.Context(), other, "k"); err != nil || r.Found {
			t.Errorf("found=%v, %v; want nothing, as the lease was over", r.Found, err)
		}
	})
}

func TestExpiredEntryIsReleasedInsteadOfStored(t *testing.T) {
	behindAWall(t, func(t *testing.T, s, other *redisstore.Store, h *wall) {
		loses(t, s, h, store.Return{Lease: granted(t, s, "k"), Entry: entryOf("v", time.Second)})
		time.Sleep(2 * time.Second)
		h.up.Store(false)
		time.Sleep(1500 * time.Millisecond)
		granted(t, other, "k")
	})
}

func TestCloseEndsReturnsSentAgain(t *testing.T) {
	behindAWall(t, func(t *testing.T, s, other *redisstore.Store, h *wall) {
		loses(t, s, h, store.Return{Lease: granted(t, s, "k"), Entry: entryOf("v", time.Minute)})
		h.up.Store(false)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if l := granted(t, other, "k"); l.TakenOver {
			t.Error("the lease was taken over, want it released by Close")
		}
	})
}

// afterAcquires is a hook that calls f when acquires were carried out and before their
// answers are handed on.
func afterAcquires(f func()) redis.Hook {
	return around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		err := next()
		if isAcquire(cmds[0]) {
			f()
		}
		return err
	})
}

func TestGrantToALeavingCallerIsReturned(t *testing.T) {
	for name, n := range map[string]int{"one key": 1, "many keys": 50} {
		t.Run(name, func(t *testing.T) {
			server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
			client, admin := server.Client(), server.Client()
			var leave func()
			client.AddHook(afterAcquires(func() {
				if leave != nil {
					leave()
				}
			}))
			s := opened(t, client, redisstore.Options{RedisTimeout: 5 * time.Second})
			granted(t, s, "first") // its subscription is live
			for i := range 100 {
				requests, leases := make([]store.Request, n), make([]string, n)
				for j := range requests {
					key := fmt.Sprintf("k%d:%d", i, j)
					requests[j], leases[j] = lasting(key), "test:{"+key+"}:lease"
				}
				ctx, cancel := context.WithCancel(t.Context())
				leave = cancel
				var back []store.Return
				for _, a := range s.Acquire(ctx, requests) {
					if a.Err == nil && a.Verdict == store.Granted {
						back = append(back, store.Return{Lease: a.Lease})
					}
				}
				cancel()
				s.Return(context.Background(), back)
				eventually(t, func() bool { return admin.Exists(t.Context(), leases...).Val() == 0 })
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if tries, err := admin.Keys(t.Context(), "test:*:tries").Result(); err != nil || len(tries) > 0 {
				t.Errorf("attempts are left: %v, %v", tries, err)
			}
		})
	}
}

func TestCloseReleasesAGrantUnderWay(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client, g := server.Client(), newGate(isAcquire)
	client.AddHook(g)
	s := opened(t, client, redisstore.Options{RedisTimeout: 5 * time.Second})
	t.Cleanup(g.open)
	granted(t, s, "first")
	answer := g.shut(&g.ret)
	done := make(chan store.Answer, 1)
	go func() { done <- acquire(context.Background(), s, lasting("k")) }()
	g.isHeld(t)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	a := <-done // Close ends it
	if !errors.Is(a.Err, store.ErrClosed) && !errors.Is(a.Err, store.ErrUnavailable) {
		t.Errorf("%v, %v, want that the store is closed", a.Verdict, a.Err)
	}
	answer()
	if err := <-closed; err != nil {
		t.Log("Close:", err)
	}
	eventually(t, func() bool { return server.Client().Exists(t.Context(), "test:{k}:lease").Val() == 0 })
}

// A change that was sent and not answered may still be carried out, and its error says so.
func TestUnansweredChangeMayStillBeCarriedOut(t *testing.T) {
	g := newGate(isScript)
	bubble(t, redisstore.Options{}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		mustSet(t, s, "k", "v")
		open := g.shut(&g.ret)
		err := remove(t.Context(), s, "k")
		if !errors.Is(err, store.ErrUnavailable) || !contains(err, "may still be carried out") {
			t.Errorf("error %v", err)
		}
		open()
	})
}
