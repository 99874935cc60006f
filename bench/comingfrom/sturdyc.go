package comingfrom

import (
	"context"

	"github.com/viccon/sturdyc"
)

type withSturdyc struct{ client *sturdyc.Client[string] }

func (c *withSturdyc) User(ctx context.Context, id string) (string, error) {
	return c.client.GetOrFetch(ctx, "user:"+id, func(ctx context.Context) (string, error) {
		return loadUser(ctx, id)
	})
}

func (c *withSturdyc) Changed(_ context.Context, id string) error {
	c.client.Delete("user:" + id)
	return nil
}
