package comingfrom

import (
	"context"

	"github.com/redis/rueidis/rueidisaside"
)

type withRueidisaside struct{ client rueidisaside.CacheAsideClient }

func (c *withRueidisaside) User(ctx context.Context, id string) (string, error) {
	return c.client.Get(ctx, ttl, "user:"+id, func(ctx context.Context, _ string) (string, error) {
		return loadUser(ctx, id)
	})
}

func (c *withRueidisaside) Changed(ctx context.Context, id string) error {
	return c.client.Del(ctx, "user:"+id)
}
