package middleware

import (
	"context"
)

// Variants is how many variants are counted of a page that is asked for without
// credentials.
func (m *Middleware) Variants(ctx context.Context, url string) int {
	res, err := m.pages.guard.Peek(ctx, keyShared+url)
	if err != nil || res.Value.Index == nil {
		return 0
	}
	return len(res.Value.Index.Variants)
}
