package guard

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// Decide is the decision of a policy about a reading, by name.
func Decide(r *store.Reading, p Policy) string {
	p = p.withDefaults()
	return map[action]string{
		serve: "serve", serveStale: "serve stale", notFound: "not found",
		fetch: "fetch", fetchAlone: "fetch alone", fetchLocal: "fetch locally",
	}[decide(r, &p)]
}

// EncodeFailure and DecodeFailure are how an error travels.
func EncodeFailure(err error, p Policy) []byte { return encodeFailure(err, 0, &p) }

func DecodeFailure(b []byte, p Policy) *RemoteError { return decodeFailure(b, &p) }

// DueAt is the age from which a value is refreshed early.
func DueAt(e *store.Entry, beta float64) time.Duration { return dueAt(e, beta) }

// LookAfter is how long a waiting flight leaves its holder alone.
func LookAfter(waiting int, first bool, left time.Duration, draw float64) time.Duration {
	return lookAfter(waiting, first, left, draw)
}

// MissesInARow make a guard foresee the next.
const MissesInARow = missesInARow

// ErrNotWanted is the cause of the end of a context of WhileWanted.
var ErrNotWanted = errNotWanted

// WhileWanted returns the context of a wait that ends when no caller is left.
func WhileWanted(ctx context.Context, unwanted <-chan struct{}, deserted func() bool) (context.Context, func()) {
	return whileWanted(ctx, unwanted, deserted)
}
