package peer

import (
	"context"
	"time"

	"github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
)

func goRedisCache() System {
	return System{
		Name: "go-redis/cache", Module: "github.com/go-redis/cache/v9",
		Link: "https://github.com/go-redis/cache#quickstart",
		Note: "`Once`, without a LocalCache; one fetch for each process",
		Open: func(o Options) (Cache, error) { return openGoRedisCache(o, nil), nil },
	}
}

// With the LocalCache of its README.
func goRedisCacheNear() System {
	return System{
		Name: "go-redis/cache, TinyLFU", Module: "github.com/go-redis/cache/v9", Near: true,
		Link: "https://github.com/go-redis/cache#quickstart",
		Note: "with the LocalCache of its README, 1000 entries for a minute, which hears of no change elsewhere",
		Open: func(o Options) (Cache, error) {
			return openGoRedisCache(o, cache.NewTinyLFU(1000, min(o.TTL, time.Minute))), nil
		},
	}
}

type onceCache struct {
	rdb   *redis.Client
	cache *cache.Cache
	o     Options
}

func openGoRedisCache(o Options, local cache.LocalCache) Cache {
	rdb := client(o)
	return &onceCache{rdb, cache.New(&cache.Options{Redis: rdb, LocalCache: local}), o}
}

func (c *onceCache) Get(ctx context.Context, key string, fetch Fetch) (string, error) {
	var value string
	err := c.cache.Once(&cache.Item{
		Ctx: ctx, Key: key, Value: &value, TTL: c.o.TTL,
		Do: func(item *cache.Item) (any, error) { return fetch(item.Context()) },
	})
	return value, err
}

func (c *onceCache) Delete(ctx context.Context, key string) error { return c.cache.Delete(ctx, key) }
func (c *onceCache) Close()                                       { _ = c.rdb.Close() }
