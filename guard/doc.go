// Package guard lets one caller in a fleet of processes fetch a value and gives
// everybody else that fetch's outcome.
//
// A [Guard] reads through a [cache.Store]. When a value is missing, the callers
// of one process share a flight; the flights of all processes ask for a lease of
// the key; the one that is granted it fetches, and the others are woken with
// what came of it. A holder that dies is replaced within a fraction of a second.
//
//	quotes, err := guard.New[Quote](store, "quotes", guard.Policy{
//		TTL:   time.Minute, // fresh for
//		Stale: time.Hour,   // then served while one process refreshes it
//	})
//	...
//	q, err := quotes.Get(ctx, "EURUSD", func(ctx context.Context) (Quote, error) {
//		return vendor.Quote(ctx, "EURUSD")
//	})
//
// What the package promises, and what not, is in the README; how it is kept is
// in docs/protocol.md.
package guard
