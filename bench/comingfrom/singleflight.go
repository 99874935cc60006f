package comingfrom

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

type withSingleflight struct {
	rdb   *redis.Client
	group singleflight.Group
}

func (c *withSingleflight) User(ctx context.Context, id string) (string, error) {
	v, err, _ := c.group.Do(id, func() (any, error) {
		name, err := c.rdb.Get(ctx, "user:"+id).Result()
		if !errors.Is(err, redis.Nil) {
			return name, err
		}
		if name, err = loadUser(ctx, id); err != nil {
			return "", err
		}
		return name, c.rdb.Set(ctx, "user:"+id, name, ttl).Err()
	})
	if err != nil {
		return "", err
	}
	return v.(string), nil
}

func (c *withSingleflight) Changed(ctx context.Context, id string) error {
	return c.rdb.Del(ctx, "user:"+id).Err()
}
