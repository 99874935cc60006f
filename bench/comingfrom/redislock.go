package comingfrom

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type withRedislock struct {
	rdb    *redis.Client
	locker *redislock.Client
}

func (c *withRedislock) User(ctx context.Context, id string) (string, error) {
	name, err := c.rdb.Get(ctx, "user:"+id).Result()
	if !errors.Is(err, redis.Nil) {
		return name, err
	}
	lock, err := c.locker.Obtain(ctx, "lock:user:"+id, 5*time.Second, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond),
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Release(context.WithoutCancel(ctx)) }()
	if name, err = c.rdb.Get(ctx, "user:"+id).Result(); !errors.Is(err, redis.Nil) {
		return name, err // another process was faster
	}
	if name, err = loadUser(ctx, id); err != nil {
		return "", err
	}
	return name, c.rdb.Set(ctx, "user:"+id, name, ttl).Err()
}

func (c *withRedislock) Changed(ctx context.Context, id string) error {
	return c.rdb.Del(ctx, "user:"+id).Err()
}
