package peer

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// Its lock around cache-aside, as one would write it with its examples at hand:
// GET, obtain the lock with the backoff of ExampleClient_Obtain_retry, look
// again, fetch, SET, release. The lock lives for 5 s, as our leases do, and the
// callers of a process share the work by singleflight, or each would poll.
func redisLock() System {
	return System{
		Name: "redislock", Module: "github.com/bsm/redislock", Fleet: true,
		Link: "https://pkg.go.dev/github.com/bsm/redislock#example-Client.Obtain-Retry",
		Note: "a lock of 5 s around cache-aside, retried every 100 ms, within `singleflight.Group.Do`; an error of Redis is the caller's, as in its example: it fetches nothing then",
		Open: func(o Options) (Cache, error) {
			rdb := client(o)
			return &lockedCache{bareGet: bareGet{rdb, o}, locker: redislock.New(rdb)}, nil
		},
	}
}

const lockTTL = 5 * time.Second

type lockedCache struct {
	bareGet
	locker *redislock.Client
	group  singleflight.Group
}

func (c *lockedCache) Get(ctx context.Context, key string, fetch Fetch) (string, error) {
	v, err, _ := c.group.Do(key, func() (any, error) { return c.get(ctx, key, fetch) })
	if err != nil {
		return "", err
	}
	return v.(string), nil
}

func (c *lockedCache) get(ctx context.Context, key string, fetch Fetch) (string, error) {
	value, err := c.rdb.Get(ctx, key).Result()
	if !errors.Is(err, redis.Nil) {
		return value, err
	}
	lock, err := c.locker.Obtain(ctx, "lock:"+key, lockTTL, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond),
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Release(context.WithoutCancel(ctx)) }()
	if value, err = c.rdb.Get(ctx, key).Result(); !errors.Is(err, redis.Nil) {
		return value, err
	}
	if value, err = fetch(ctx); err != nil {
		return "", err
	}
	return value, c.rdb.Set(ctx, key, value, c.o.TTL).Err()
}
