// Package cache has the stores that a guard keeps its values in, the codecs of values, and
// the events that stores and guards report.
//
//   - [NewRedis] shares values and leases between all processes of a fleet, on a standalone
//     Redis, a Redis Cluster or a master behind Sentinel.
//   - [NewMemory] keeps the same inside one process, for tests, tools and services that run
//     as a single process.
//
// The protocol is described for readers who must trust it, and for writers of clients in
// other languages, in docs/protocol.md.
package cache
