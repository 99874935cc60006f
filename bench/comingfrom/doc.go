// Package comingfrom has the programs of docs/guide/coming-from.md: the same lookup with
// other libraries, and with a guard. Its test compares them with the page.
package comingfrom

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// loadUser stands for the query that is cached.
func loadUser(ctx context.Context, id string) (string, error) {
	return "user " + id, ctx.Err()
}

// withGuard is the program after the move, whichever library was used before.
type withGuard struct{ users *guard.Guard[string] }

func (c *withGuard) User(ctx context.Context, id string) (string, error) {
	return c.users.Get(ctx, id, func(ctx context.Context) (string, error) {
		return loadUser(ctx, id)
	})
}

func (c *withGuard) Changed(ctx context.Context, id string) error { return c.users.Delete(ctx, id) }

const ttl = time.Minute
