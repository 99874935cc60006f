package peer

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// The limit of reads over go-redis: a GET and nothing else.
func goRedis() System {
	return System{
		Name: "GET (go-redis)", Module: "github.com/redis/go-redis/v9", Limit: true,
		Link: "https://github.com/redis/go-redis#quickstart",
		Note: "a bare GET: never fetches, shares nothing",
		Open: func(o Options) (Cache, error) { return &bareGet{client(o), o}, nil },
	}
}

// A Filler is a cache that is filled from outside, as it never fetches.
type Filler interface {
	Fill(ctx context.Context, key, value string) error
}

type bareGet struct {
	rdb *redis.Client
	o   Options
}

func (c *bareGet) Fill(ctx context.Context, key, value string) error {
	return c.rdb.Set(ctx, key, value, c.o.TTL).Err()
}

func (c *bareGet) Get(ctx context.Context, key string, _ Fetch) (string, error) {
	return c.rdb.Get(ctx, key).Result()
}

func (c *bareGet) Delete(ctx context.Context, key string) error { return c.rdb.Del(ctx, key).Err() }
func (c *bareGet) Close()                                       { _ = c.rdb.Close() }

// Cache-aside as in most programs: GET; if that gives nothing, fetch and SET.
func naive() System {
	return System{
		Name: "naive", Module: "github.com/redis/go-redis/v9",
		Link: "https://redis.io/docs/latest/develop/use-cases/cache-aside/",
		Note: "cache-aside by hand on go-redis; fetches also when Redis gives an error",
		Open: func(o Options) (Cache, error) { return &naiveCache{bareGet{client(o), o}}, nil },
	}
}

type naiveCache struct{ bareGet }

func (c *naiveCache) Get(ctx context.Context, key string, fetch Fetch) (string, error) {
	return aside(ctx, c.rdb, c.o, key, fetch)
}

func aside(ctx context.Context, rdb *redis.Client, o Options, key string, fetch Fetch) (string, error) {
	value, err := rdb.Get(ctx, key).Result()
	if err == nil {
		return value, nil
	}
	redisAway := !errors.Is(err, redis.Nil)
	if value, err = fetch(ctx); err != nil {
		return "", err
	}
	if !redisAway {
		_ = rdb.Set(ctx, key, value, o.TTL).Err() // the value is good, stored or not
	}
	return value, nil
}
