package cache_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// A wall is a hook that keeps all commands of a process back while it is up.
type wall struct {
	up atomic.Bool
}

var errWall = errors.New("wall")

func (*wall) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *wall) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.up.Load() {
			return errWall
		}
		return next(ctx, cmd)
	}
}

func (h *wall) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.up.Load() {
			return errWall
		}
		return next(ctx, cmds)
	}
}

// behindAWall runs the test with a store behind a wall, and one that is not.
func behindAWall(t *testing.T, test func(t *testing.T, s, other *cache.Redis, h *wall)) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		open := func(h *wall) *cache.Redis {
			client := server.Client()
			if h != nil {
				client.AddHook(h)
			}
			s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
		h := &wall{}
		s, other := open(h), open(nil)
		time.Sleep(time.Second) // until the subscriptions are live
		test(t, s, other, h)
	})
}

// The waiters of other processes wait for that lease.
func TestUnansweredReturnIsSentAgain(t *testing.T) {
	const stall = 2 * time.Second
	tagged := entryOf("v", time.Minute)
	tagged.Tags = []string{"t"}
	returns := map[string]cache.Return{
		"fill":          {Entry: entryOf("v", time.Minute)},
		"fill of a tag": {Entry: tagged},
		"fail":          {Failed: true, Failure: []byte("why")},
		"decline":       {Failed: true, Declined: true, Failure: []byte("why")},
		"release":       {},
	}
	singly := func(s *cache.Redis, r cache.Return) error {
		switch {
		case r.Entry != nil:
			_, err := s.Fill(context.Background(), r.Lease, r.Entry)
			return err
		case r.Declined:
			_, err := s.Decline(context.Background(), r.Lease, r.Failure, r.Pause)
			return err
		case r.Failed:
			_, err := s.Fail(context.Background(), r.Lease, r.Failure, r.Pause)
			return err
		}
		return s.Release(context.Background(), r.Lease)
	}
	many := func(s *cache.Redis, r cache.Return) error {
		return s.ReturnMany(context.Background(), []cache.Return{r})[0].Err
	}
	for name, r := range returns {
		for how, send := range map[string]func(*cache.Redis, cache.Return) error{"": singly, ", one of many": many} {
			t.Run(name+how, func(t *testing.T) {
				behindAWall(t, func(t *testing.T, s, other *cache.Redis, h *wall) {
					ctx := t.Context()
					if r.Entry != nil {
						e := *r.Entry
						var err error
						if e.Stamp, err = s.Stamp(ctx); err != nil {
							t.Fatal(err)
						}
						r.Entry = &e
					}
					granted, err := s.Acquire(ctx, "k", lasting())
					if err != nil || granted.Verdict != cache.Granted {
						t.Fatalf("%v, %v, want granted", granted.Verdict, err)
					}
					r.Lease = granted.Lease
					held, err := other.Acquire(ctx, "k", lasting())
					if err != nil || held.Verdict != cache.Held {
						t.Fatalf("%v, %v, want held", held.Verdict, err)
					}
					h.up.Store(true)
					if err := send(s, r); !errors.Is(err, cache.ErrUnavailable) {
						t.Fatalf("%v, want ErrUnavailable", err)
					}
					time.Sleep(stall)
					h.up.Store(false)
					time.Sleep(1500 * time.Millisecond) // until the breaker has closed
					ask := lasting()
					ask.LastHeld = held.Holder
					got, err := other.Acquire(ctx, "k", ask)
					if err != nil {
						t.Fatal(err)
					}
					switch {
					case r.Entry != nil:
						if got.Verdict != cache.HasEntry || !got.Reading.Found {
							t.Fatalf("%v, want the entry", got.Verdict)
						}
						// It is as old as if it had been stored at once.
						if left := got.Reading.Left; left > time.Minute-stall || left < time.Minute-stall-2*time.Second {
							t.Errorf("%v of a minute are left, %v after the fill", left, stall)
						}
					case r.Failed:
						if got.Verdict != cache.Failed || string(got.Failure) != "why" {
							t.Errorf("%v %q, want the failure", got.Verdict, got.Failure)
						}
					default:
						if got.Verdict != cache.Granted {
							t.Errorf("%v, want granted", got.Verdict)
						}
					}
				})
			})
		}
	}
}

// P2: the lease that it compares is gone.
func TestReturnThatIsSentAgainIsFenced(t *testing.T) {
	behindAWall(t, func(t *testing.T, s, other *cache.Redis, h *wall) {
		a, err := s.Acquire(t.Context(), "k", lasting())
		if err != nil || a.Verdict != cache.Granted {
			t.Fatalf("%v, %v, want granted", a.Verdict, err)
		}
		h.up.Store(true)
		if _, err := s.Fill(t.Context(), a.Lease, entryOf("old", time.Minute)); err == nil {
			t.Fatal("the wall is not up")
		}
		if err := other.Delete(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		h.up.Store(false)
		time.Sleep(5 * time.Second)
		if r, err := other.Read(t.Context(), "k"); err != nil || r.Found {
			t.Errorf("found %v, %v, want nothing: it was deleted", r.Found, err)
		}
	})
}

func TestReturnIsSentAgainWhileTheLeaseMayLive(t *testing.T) {
	behindAWall(t, func(t *testing.T, s, other *cache.Redis, h *wall) {
		ask := lasting()
		ask.TTL = 3 * time.Second
		a, err := s.Acquire(t.Context(), "k", ask)
		if err != nil || a.Verdict != cache.Granted {
			t.Fatalf("%v, %v, want granted", a.Verdict, err)
		}
		h.up.Store(true)
		if _, err := s.Fill(t.Context(), a.Lease, entryOf("v", time.Minute)); err == nil {
			t.Fatal("the wall is not up")
		}
		time.Sleep(4 * time.Second)
		h.up.Store(false)
		time.Sleep(5 * time.Second)
		if r, err := other.Read(t.Context(), "k"); err != nil || r.Found {
			t.Errorf("found %v, %v, want nothing: the lease was over", r.Found, err)
		}
	})
}

func TestEntryThatWouldHaveExpiredIsNotSentAgain(t *testing.T) {
	behindAWall(t, func(t *testing.T, s, other *cache.Redis, h *wall) {
		a, err := s.Acquire(t.Context(), "k", lasting())
		if err != nil || a.Verdict != cache.Granted {
			t.Fatalf("%v, %v, want granted", a.Verdict, err)
		}
		h.up.Store(true)
		if _, err := s.Fill(t.Context(), a.Lease, entryOf("v", time.Second)); err == nil {
			t.Fatal("the wall is not up")
		}
		time.Sleep(2 * time.Second)
		h.up.Store(false)
		time.Sleep(1500 * time.Millisecond)
		if a, err := other.Acquire(t.Context(), "k", lasting()); err != nil || a.Verdict != cache.Granted {
			t.Errorf("%v, %v, want the lease that was given back", a.Verdict, err)
		}
	})
}

func TestCloseEndsReturnsThatAreSentAgain(t *testing.T) {
	behindAWall(t, func(t *testing.T, s, other *cache.Redis, h *wall) {
		a, err := s.Acquire(t.Context(), "k", lasting())
		if err != nil || a.Verdict != cache.Granted {
			t.Fatalf("%v, %v, want granted", a.Verdict, err)
		}
		h.up.Store(true)
		if _, err := s.Fill(t.Context(), a.Lease, entryOf("v", time.Minute)); err == nil {
			t.Fatal("the wall is not up")
		}
		h.up.Store(false)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if a, err := other.Acquire(t.Context(), "k", lasting()); err != nil || a.Verdict != cache.Granted || a.Lease.TakenOver {
			t.Errorf("%v, %v, want the lease that Close gave back", a.Verdict, err)
		}
	})
}
