// Package sim runs a small fleet of guards against one embedded Redis, in a
// bubble of fake time, and lets a seed decide everything that a network, a
// scheduler, a machine and an upstream decide in reality: the times of deliveries,
// losses, stalls, deaths, and the outcome of each fetch. After
// every step it looks into the server and checks the promises of
// docs/protocol.md. One seed is one history, and replays. FoundationDB's
// simulator is the model (Zhou et al., SIGMOD 2021, section 4).
//
// Each process has a store, a client and a network of its own. Commands are
// held twice, before Redis carries them out and before their answer is
// delivered; the subscription's bytes are held frame by frame, both ways. The
// scheduler lets one thing happen and waits until nothing in the bubble can go
// on by itself (synctest.Wait), so that the order of events is the seed's and
// not the Go runtime's.
//
// Callers Get, Peek and change keys. Some seeds have more, by themselves or together
// ([Features]):
//
//   - many: callers call GetMany, over three or four keys in any order, which is
//     checked as a Get of each key is. Pipelines are torn, so that Redis carries out
//     only the first of their commands, or only the first of their answers arrive.
//   - tags: values carry tags, which are deleted and expired.
//   - unread: each Get foresees a miss, and asks for its lease without reading first.
//   - near: guards have a near cache. A near value is never served after its process
//     has heard of its change, nor while the process cannot hear of changes.
//   - refresh: callers accept no stored entry (guard.MaxAge(0)). They get the outcome of
//     a fetch, or of a Set, that was not over when they called.
//   - soft: a call that has waited for SoftTimeout gets the stale value there is.
//   - breaker: Redis is away often. While a breaker is open nothing is sent but
//     probes, no call waits for Redis, and the breaker closes soon after Redis is
//     back.
//   - budget: fetches are paid from a guard/budget. The fleet never exceeds the limit
//     while Redis is there, and makes no call that was not granted.
//   - turns: callers fetch in steps of their own, as HTTP does (guard.Begin). Some show
//     their value before the end of the turn, and the barrier holds for it as well.
//   - memory: the store is a memory store, and a gate in place of the network holds
//     and loses calls. The gate takes the place of the look into Redis.
//
// Package lock has a play of its own, which is shorter: [RunLocks].
//
// [Run] tells which decisions are left to the runtime, and how far a seed replays in
// spite of it.
package sim
