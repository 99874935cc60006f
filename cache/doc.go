// Package cache has the stores of guards, the codecs of values, and the events that stores
// and guards report. docs/protocol.md describes the protocol.
//
//   - [NewRedis] shares values and leases between all processes of a fleet, on a standalone
//     Redis, a Redis Cluster or a master behind Sentinel.
//   - [NewMemory] keeps the same inside one process, for tests, tools and services that run
//     as a single process.
package cache
