package sim

import (
	"context"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// steady lies between a guard and its store. It notes what leases are granted,
// and keeps out of the guard what can't be seeded. It bounds the time until a
// waiter's next look, which would otherwise be jittered. And where callers ask
// for several keys, and so what several flights wait for runs out at the same
// instant, it lets them go on one after the other: a few nanoseconds apart. So it
// does where Gets ask for the lease unread: the read that follows an acquire
// without an answer would run out at the instant that the wait for a flight does.
type steady struct {
	cache.Store
	poll  time.Duration
	apart bool
}

func (s steady) Read(ctx context.Context, key string) (*cache.Reading, error) {
	r, err := s.Store.Read(ctx, key)
	s.lag(ctx, key, err)
	return r, err
}

func (s steady) ReadMany(ctx context.Context, prefix string, keys []string, each func(int, *cache.Reading, error)) {
	var first error
	s.Store.ReadMany(ctx, prefix, keys, func(i int, r *cache.Reading, err error) {
		if i == 0 {
			first = err
		}
		each(i, r, err)
	})
	s.lag(ctx, prefix+keys[0], first)
}

func (s steady) Acquire(ctx context.Context, key string, ask cache.Ask) (cache.Answer, error) {
	a, err := s.Store.Acquire(ctx, key, ask)
	s.bound(&a)
	caller(ctx).answered(key, a, err)
	s.lag(ctx, key, err)
	return a, err
}

func (s steady) AcquireMany(ctx context.Context, requests []cache.Request) []cache.Acquired {
	all := s.Store.AcquireMany(ctx, requests)
	for i := range all {
		s.bound(&all[i].Answer)
		caller(ctx).answered(requests[i].Key, all[i].Answer, all[i].Err)
	}
	s.lag(ctx, requests[0].Key, all[0].Err)
	return all
}

func (s steady) bound(a *cache.Answer) {
	if a.Verdict == cache.Held {
		a.TTL = min(a.TTL, s.poll)
	}
}

// caller is the op whose call, or whose flight, the context is of; nil: none.
func caller(ctx context.Context) *op {
	o, _ := ctx.Value(opKey{}).(*op)
	return o
}

// lag waits for a time of the caller's and the key's own, if there was an
// error: no answer within a time, most likely.
func (s steady) lag(ctx context.Context, key string, err error) {
	o := caller(ctx)
	if !s.apart || o == nil || err == nil || ctx.Err() != nil {
		return
	}
	n := time.Duration(8 * o.id)
	if i := strings.LastIndexByte(key, 'k'); i >= 0 {
		n += time.Duration(key[i+1] - '0')
	}
	timer := time.NewTimer(2 * n) // even, which the scheduler's are not
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
