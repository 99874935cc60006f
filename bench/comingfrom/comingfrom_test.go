package comingfrom

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bsm/redislock"
	rediscache "github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

type users interface {
	User(ctx context.Context, id string) (string, error)
	Changed(ctx context.Context, id string) error
}

// rueidisaside needs client tracking, which the embedded server lacks: it is compiled only.
var _ users = (*withRueidisaside)(nil)

func TestProgramsBeforeAndAfterAgree(t *testing.T) {
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "app"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	g, err := guard.New[string](store, "users", guard.Policy{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for name, c := range map[string]users{
		"singleflight":   &withSingleflight{rdb: rdb},
		"go-redis/cache": &withRedisCache{rediscache.New(&rediscache.Options{Redis: rdb})},
		"redislock":      &withRedislock{rdb, redislock.New(rdb)},
		"sturdyc":        &withSturdyc{sturdyc.New[string](100, 1, time.Minute, 10)},
		"stampede":       &withGuard{g},
	} {
		id := name
		for range 2 {
			if got, err := c.User(t.Context(), id); got != "user "+id || err != nil {
				t.Errorf("%s: got %q, %v", name, got, err)
			}
			if err := c.Changed(t.Context(), id); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
