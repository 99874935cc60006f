package guard

import (
	"context"

	"github.com/stampedeguard/stampede/cache"
)

// Until the store's contract takes n >= 1 requests.

func acquireN(ctx context.Context, s cache.Store, rs []cache.Request) []cache.Acquired {
	if len(rs) == 1 {
		a, err := s.Acquire(ctx, rs[0].Key, rs[0].Ask)
		return []cache.Acquired{{Answer: a, Err: err}}
	}
	return s.AcquireMany(ctx, rs)
}

func returnN(ctx context.Context, s cache.Store, rs []cache.Return) []cache.Returned {
	if len(rs) != 1 {
		return s.ReturnMany(ctx, rs)
	}
	var d cache.Returned
	switch r := rs[0]; {
	case r.Entry != nil:
		d.OK, d.Err = s.Fill(ctx, r.Lease, r.Entry)
	case r.Failed:
		d.OK, d.Err = s.Fail(ctx, r.Lease, r.Failure, r.Pause)
	default:
		d.Err = s.Release(ctx, r.Lease)
		d.OK = d.Err == nil
	}
	return []cache.Returned{d}
}
