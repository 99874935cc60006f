package sim

import (
	"context"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A steady store lies between a guard and its store. It notes which leases are granted,
// and keeps out of the guard all chance that can't be seeded. It bounds the time until a waiter's
// next look, which would otherwise be jittered. Where callers ask for several keys, the
// waits of several flights end at the same instant: it lets the flights go on one after
// the other, a few nanoseconds apart. It does so too where Gets ask for the lease unread:
// the read that follows an acquire without an answer would end at the instant at which
// the wait for a flight does.
type steady struct {
	store.Store
	poll  time.Duration
	apart bool
}

// Unwrap makes it a cache.Store.
func (s steady) Unwrap() store.Store { return s }

// Read implements [store.Store].
func (s steady) Read(ctx context.Context, prefix, key string, to store.Reader) {
	if s.apart && caller(ctx) != nil {
		to = &laggingReader{to, func(err error) { s.lag(context.WithoutCancel(ctx), prefix+key, err) }}
	}
	s.Store.Read(ctx, prefix, key, to)
}

// A laggingReader is told of an error a little later.
type laggingReader struct {
	store.Reader
	lag func(error)
}

// Answered implements [store.Reader].
func (r *laggingReader) Answered(reading *store.Reading, err error) {
	if err == nil {
		r.Reader.Answered(reading, nil)
		return
	}
	go func() { // ends after the lag
		r.lag(err)
		r.Reader.Answered(reading, err)
	}()
}

// ReadMany implements [store.Store].
func (s steady) ReadMany(ctx context.Context, prefix string, keys []string, each func(int, *store.Reading, error)) {
	var first error
	s.Store.ReadMany(ctx, prefix, keys, func(i int, r *store.Reading, err error) {
		if i == 0 {
			first = err
		}
		each(i, r, err)
	})
	s.lag(ctx, prefix+keys[0], first)
}

// Acquire implements [store.Store].
func (s steady) Acquire(ctx context.Context, requests []store.Request) []store.Answer {
	all := s.Store.Acquire(ctx, requests)
	for i := range all {
		if all[i].Verdict == store.Held {
			all[i].TTL = min(all[i].TTL, s.poll)
		}
		caller(ctx).answered(requests[i].Key, &all[i])
	}
	s.lag(ctx, requests[0].Key, all[0].Err)
	return all
}

// caller is the op of the context, which is that of its call or flight; nil: none.
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
