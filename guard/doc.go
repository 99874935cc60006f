// Package guard lets one caller in a fleet of processes fetch a value, and gives all
// other callers the outcome of that fetch.
//
// A [Guard] reads through a [cache.Store]. When a value is missing, the callers
// of one process share a flight. The flights of all processes ask for a lease of
// the key. The holder of the lease fetches, and the other flights are woken with
// its outcome. A holder that dies is replaced within a fraction of a second.
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
// The README lists the guarantees and their limits, docs/protocol.md how they are kept.
package guard
