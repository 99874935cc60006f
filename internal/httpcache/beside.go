package httpcache

import (
	"context"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// besideWithin bounds the wait for a turn beside a page, which costs the client time.
const besideWithin = 100 * time.Millisecond

// BeginBeside takes the turn of a key beside a page's, for a response that no request waits
// for: a POST's, or a part. It returns nil if another caller has the turn for 100 ms more, or
// if the store does not answer in time.
//
// An invalidation during the response must win, whichever process it comes from. A request
// that no other one waits for can't have the page's turn from its start: requests for the page
// would wait. Invalidations delete the key beside the page before the page itself. At its end
// the response takes the page's turn, too, and ends both with [EndBeside]. An invalidation
// from before the end of the first turn makes that end fail. A later one finds the page's turn,
// or the page.
func BeginBeside(ctx context.Context, g *guard.Guard[*Page], key string, opts ...guard.CallOption) *guard.Turn[*Page] {
	ctx, cancel := context.WithTimeout(ctx, besideWithin)
	defer cancel()
	// Also waits for another caller for 100 ms at most, but needs some turn. No other request has
	// that of a random key.
	kind, _, _ := strings.Cut(key, " ")
	_, door, _ := g.Begin(ctx, kind+" "+RandomName(), nil)
	if door == nil {
		return nil
	}
	defer door.Release()
	door.Fill.Cost = 0 // it fetches nothing
	return door.Also(key, opts...)
}

// EndBeside ends the turn of a key beside a page's, and then that of the page with the page.
// Each Fill has its terms. It reports whether the page was stored.
func EndBeside(beside *guard.Turn[*Page], with *Page, turn *guard.Turn[*Page], page *Page) bool {
	if !beside.Store(with) {
		turn.Release() // an invalidation came meanwhile
		return false
	}
	return turn.Store(page)
}

// Forget returns a page for EndBeside that leaves nothing under the key beside the page's.
func Forget(beside *guard.Turn[*Page]) *Page {
	beside.Fill.TTL, beside.Fill.StaleFor = time.Millisecond, guard.Off
	return &Page{Epoch: "over"}
}
