package peer

import (
	"context"

	"github.com/dtm-labs/rockscache"
	"github.com/redis/go-redis/v9"
)

// Its default options, except the random part of the TTL: all systems here keep a
// value equally long. The given expiry includes Options.Delay, which it subtracts: a
// value with 1 s would not be kept at all.
func rocksCache() System {
	return System{
		Name: "rockscache", Module: "github.com/dtm-labs/rockscache", Fleet: true,
		Link: "https://github.com/dtm-labs/rockscache#usage",
		Note: "default options in the eventual mode, in which a deleted value may be served once more while it is fetched anew",
		Open: func(o Options) (Cache, error) {
			rdb := client(o)
			options := rockscache.NewDefaultOptions()
			options.RandomExpireAdjustment = 0
			return &rocks{rdb, rockscache.NewClient(rdb, options), o}, nil
		},
	}
}

type rocks struct {
	rdb    *redis.Client
	client *rockscache.Client
	o      Options
}

func (c *rocks) Get(ctx context.Context, key string, fetch Fetch) (string, error) {
	return c.client.Fetch2(ctx, key, c.o.TTL+c.client.Options.Delay, func() (string, error) { return fetch(ctx) })
}

func (c *rocks) Delete(ctx context.Context, key string) error {
	return c.client.TagAsDeleted2(ctx, key)
}
func (c *rocks) Close() { _ = c.rdb.Close() }
