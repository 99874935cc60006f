package comingfrom

import (
	"context"

	rediscache "github.com/go-redis/cache/v9"
)

type withRedisCache struct{ cache *rediscache.Cache }

func (c *withRedisCache) User(ctx context.Context, id string) (string, error) {
	var name string
	err := c.cache.Once(&rediscache.Item{
		Ctx: ctx, Key: "user:" + id, Value: &name, TTL: ttl,
		Do: func(item *rediscache.Item) (any, error) { return loadUser(item.Context(), id) },
	})
	return name, err
}

func (c *withRedisCache) Changed(ctx context.Context, id string) error {
	return c.cache.Delete(ctx, "user:"+id)
}
