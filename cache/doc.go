// Package cache owns what is stored in Redis: the names of keys and channels,
// the entry's header, the lease and its scripts, the wake-ups, and the codecs
// of values. It does not know why a value is wanted; package guard decides
// that.
//
// Two stores keep one contract ([Store]):
//
//   - [NewRedis] shares entries and leases between all processes of a fleet, on
//     a standalone Redis, a Redis Cluster or a master behind Sentinel.
//   - [NewMemory] keeps the same leases and wake-ups inside one process, for
//     tests, tools and services that run as a single process.
//
// Package cachetest has the suite that any implementation of [Store] passes.
//
// The protocol is described for readers who must trust it, and for writers of
// clients in other languages, in docs/protocol.md.
package cache
