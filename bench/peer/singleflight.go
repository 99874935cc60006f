package peer

import (
	"context"

	"golang.org/x/sync/singleflight"
)

// Cache-aside in which the callers of one process share a GET and a fetch, by Do
// with the first caller's context, as in most programs.
func singleFlight() System {
	return System{
		Name: "singleflight", Module: "golang.org/x/sync",
		Link: "https://pkg.go.dev/golang.org/x/sync/singleflight",
		Note: "naive within `singleflight.Group.Do`: one fetch for each process",
		Open: func(o Options) (Cache, error) {
			return &singleFlightCache{bareGet: bareGet{client(o), o}}, nil
		},
	}
}

type singleFlightCache struct {
	bareGet
	group singleflight.Group
}

func (c *singleFlightCache) Get(ctx context.Context, key string, fetch Fetch) (string, error) {
	v, err, _ := c.group.Do(key, func() (any, error) { return aside(ctx, c.rdb, c.o, key, fetch) })
	if err != nil {
		return "", err
	}
	return v.(string), nil
}
