package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

// An onceReader counts the answers to a read.
type onceReader struct {
	t       *testing.T
	answers atomic.Int32
	pending *atomic.Int64
}

// Sending implements [store.Reader].
func (r *onceReader) Sending() {
	if r.answers.Load() > 0 {
		r.t.Error("a read was sent after it was answered")
	}
}

// Answered implements [store.Reader].
func (r *onceReader) Answered(reading *store.Reading, err error) {
	if r.answers.Add(1) != 1 || (reading == nil) == (err == nil) {
		r.t.Errorf("answer %d: %v, %v", r.answers.Load(), reading, err)
	}
	r.pending.Add(-1)
}

// Callers come and leave at random while the server stops and goes on, until the store is
// closed amid all that. Each request ends once, none waits for longer than it may, and no
// lease is left behind that a caller did not get.
func TestEachRequestEndsOnceUnderStress(t *testing.T) {
	const timeout, lasts = 50 * time.Millisecond, 4 * time.Second
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s := opened(t, server.Client(), redisstore.Options{RedisTimeout: timeout, BreakerFailures: 5})
	granted(t, s, "first")
	var (
		wg      sync.WaitGroup
		stop    atomic.Bool
		pending atomic.Int64
		ended   [3]atomic.Int64 // calls that were answered, that left, that failed
	)
	count := func(err error) {
		switch {
		case err == nil:
			ended[0].Add(1)
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
			ended[1].Add(1)
		case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrClosed):
			ended[2].Add(1)
		default:
			t.Error(err)
		}
	}
	for g := range 32 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for i := 0; !stop.Load(); i++ {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(int(2*timeout))))
				began := time.Now()
				switch rng.IntN(4) {
				case 0:
					pending.Add(1)
					s.Read(ctx, "", fmt.Sprint("k", rng.IntN(50)), &onceReader{t: t, pending: &pending})
				case 1:
					keys := make([]string, 1+rng.IntN(400))
					for _, r := range storetest.ReadMany(ctx, s, "", keys) {
						count(r.Err)
					}
				default:
					requests := make([]store.Request, 1+rng.IntN(30))
					for j := range requests {
						requests[j] = store.Request{Key: fmt.Sprint(g, i, j), TTL: time.Minute, RenewFor: time.Minute, Window: 2 * time.Minute}
					}
					var back []store.Return
					for _, a := range s.Acquire(ctx, requests) {
						if count(a.Err); a.Verdict == store.Granted {
							back = append(back, store.Return{Lease: a.Lease, Failed: rng.IntN(2) == 0})
						}
					}
					for _, r := range s.Return(context.Background(), back) { // as fetches do
						count(r.Err)
					}
				}
				if took := time.Since(began); took > time.Minute/2 {
					t.Errorf("a call took %v", took)
				}
				cancel()
			}
		})
	}
	for began := time.Now(); time.Since(began) < lasts; {
		time.Sleep(150 * time.Millisecond)
		if err := server.Pause(); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := server.Resume(); err != nil {
			t.Error(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	eventually(t, func() bool { return pending.Load() == 0 })
	eventually(t, func() bool { r, c := redisstore.Waiting(s); return r == 0 && c == 0 })
	eventually(t, func() bool { return !redisstore.BreakerOpen(s) }) // or Close can give nothing back
	admin := server.Client()
	before := len(admin.Keys(t.Context(), "test:*:lease").Val())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	left, err := admin.Keys(t.Context(), "test:*:lease").Result()
	if err != nil || len(left) > 0 {
		t.Errorf("%d leases are left, %v", len(left), err)
	}
	t.Logf("%d answered, %d left, %d failed; %d leases were left to Close", ended[0].Load(), ended[1].Load(), ended[2].Load(), before)
}

// A store is closed while callers are at work.
func TestCloseEndsEachRequestOnce(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for range 10 {
		s := opened(t, server.Client(), redisstore.Options{RedisTimeout: time.Second})
		var wg sync.WaitGroup
		var pending, calls atomic.Int64
		for g := range 16 {
			wg.Go(func() {
				for i := 0; ; i++ {
					pending.Add(1)
					s.Read(context.Background(), "", "k", &onceReader{t: t, pending: &pending})
					a := acquire(context.Background(), s, lasting(fmt.Sprint(g, ":", i)))
					if errors.Is(a.Err, store.ErrClosed) {
						return
					}
					if a.Err != nil || a.Verdict != store.Granted {
						t.Errorf("%v, %v", a.Verdict, a.Err)
					}
					calls.Add(1)
				}
			})
		}
		eventually(t, func() bool { return calls.Load() > 100 })
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		eventually(t, func() bool { return pending.Load() == 0 })
		for _, pattern := range []string{"test:*:lease", "test:*:tries"} {
			if left, err := server.Client().Keys(t.Context(), pattern).Result(); err != nil || len(left) > 0 {
				t.Errorf("%d keys %s are left, %v", len(left), pattern, err)
			}
		}
	}
}
