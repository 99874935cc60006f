// Package store is the contract of guards and locks with a store: entries, leases,
// invalidations and wake-ups, and the formats in which they are kept. The promises
// behind it are those of docs/protocol.md. [internal/redisstore] and
// [internal/memstore] implement it; [internal/storetest] is the suite both pass.
package store
