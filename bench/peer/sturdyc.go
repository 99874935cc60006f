package peer

import (
	"context"

	"github.com/viccon/sturdyc"
)

// The README's capacity, shards and eviction, and its early refreshes. The user
// chooses their times by the TTL: from six to eight tenths of it, and not again for
// half of it. A shorter base of the retries would start a second refresh while a
// slow first one runs.
// A caller waits for the refresh only when the TTL is over.
func sturdyCache() System {
	return System{
		Name: "sturdyc", Module: "github.com/viccon/sturdyc", Near: true,
		Link: "https://github.com/viccon/sturdyc#early-refreshes",
		Note: "in memory only, 10,000 entries in 10 shards, as in its README, with early refreshes: asks no Redis, fetches once for each process",
		Open: func(o Options) (Cache, error) {
			return &sturdy{sturdyc.New[string](10_000, 10, o.TTL, 10,
				sturdyc.WithEarlyRefreshes(o.TTL*6/10, o.TTL*8/10, o.TTL, o.TTL/2))}, nil
		},
	}
}

type sturdy struct{ client *sturdyc.Client[string] }

func (c *sturdy) Get(ctx context.Context, key string, fetch Fetch) (string, error) {
	return c.client.GetOrFetch(ctx, key, sturdyc.FetchFn[string](fetch))
}

func (c *sturdy) Delete(_ context.Context, key string) error {
	c.client.Delete(key)
	return nil
}

func (c *sturdy) Close() {}
