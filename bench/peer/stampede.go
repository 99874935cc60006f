package peer

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// Configured as the README's complete program: a value may be served stale for
// sixty times its TTL while it is refreshed.
func stampede() System {
	return System{
		Name: "stampede", Ours: true, Fleet: true,
		Link: "https://github.com/stampedeguard/stampede#a-complete-program",
		Note: "values are served stale, for sixty times their TTL, while one process refreshes them, and refreshed early; no near cache",
		Open: func(o Options) (Cache, error) { return openStampede(o, guard.Near{}) },
	}
}

// With the near cache of the README's section on it.
func stampedeNear() System {
	return System{
		Name: "stampede, near", Ours: true, Fleet: true, Near: true,
		Link: "https://github.com/stampedeguard/stampede#near-cache",
		Note: "the same with a near cache of 10,000 entries, as in its README, whatever their size: 640 MB of the 64 KiB",
		Open: func(o Options) (Cache, error) { return openStampede(o, guard.Near{MaxEntries: 10_000}) },
	}
}

type stampedeCache struct {
	rdb   *redis.Client
	store *cache.Redis
	guard *guard.Guard[string]
}

func openStampede(o Options, near guard.Near) (Cache, error) {
	rdb := client(o)
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "bench"})
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	g, err := guard.New[string](store, "values", guard.Policy{TTL: o.TTL, Stale: 60 * o.TTL, Near: near})
	if err != nil {
		return nil, errors.Join(err, store.Close(), rdb.Close())
	}
	return &stampedeCache{rdb, store, g}, nil
}

func (c *stampedeCache) Get(ctx context.Context, key string, fetch Fetch) (string, error) {
	return c.guard.Get(ctx, key, fetch)
}

func (c *stampedeCache) Delete(ctx context.Context, key string) error {
	return c.guard.Delete(ctx, key)
}

func (c *stampedeCache) Close() {
	_ = c.guard.Close()
	_ = c.store.Close()
	_ = c.rdb.Close()
}
