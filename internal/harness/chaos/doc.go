// Package chaos puts a fleet of guards under load, breaks things around it at
// random, and checks from the reports of the processes that the promises of the
// lease protocol held. Command internal/cmd/chaos is its command line.
//
// # Load
//
// [Run] starts a Redis (standalone, behind Sentinel, or a cluster with
// replicas) and real child processes. Each child has a guard for each kind of
// key and calls them all the time:
//
//   - hot: few keys, many callers; large: the same with values too large for a
//     wake-up message.
//   - cold: new keys all the time, asked for by several processes at once.
//   - short: values that live 50 ms, and callers that get an error while Redis
//     is away (FailClosed).
//   - deleted: keys that random processes Delete, Set and Expire at random;
//     stale: the same, with values served stale during a refresh; raced: the
//     same, at the very moment in which a fetch ends; tagged: as raced, and
//     DeleteTag of tags that keys share.
//   - reserve: as deleted, and each process serves its last good values while Redis does not
//     answer it. The other kinds that are changed have no reserve.
//   - slow: fetches that take seconds and don't heed their context, for callers
//     that don't wait that long.
//   - failing: the fetch fails, panics, or asks all callers to wait.
//   - private: each caller must get its own value.
//
// One call in six is a LoadMany of two to eight keys of one kind (but private),
// some of them fetched two at a time; to the checks it is a Get of each key, and
// its fetch a fetch of each.
//
// One caller in ten has a context of 30 to 300 ms, the others one of 5 s.
//
// Every child reaches every server (also the sentinels, and the nodes that a
// cluster names to it) through a TCP proxy of its own, so that its line can be
// broken without those of the others. After a calm phase a nemesis carries out
// one fault after the other, in a seeded random order in which each comes up
// once before any comes up again, and waits for the repaired system to recover
// before the next. [Faults] lists them.
//
// # Checks
//
// Children report each call, fetch and change with its start and end by the wall
// clock, which the processes of one machine share; they do so before a fetch or
// a change begins, so that it is known of when the process is killed in the
// middle. A value says which key it is of, which process made it for which
// caller, and when its fetch started. [Check] is a pure function of these
// reports. These must be zero:
//
//   - Wrong values: a Get that started after a Delete or Set of its key, or a
//     DeleteTag of one of its tags, returned without an error, strictly after by
//     the clock, got a value of a fetch that started before that change, or that a
//     Set before it had stored. Also: a value of another key, a damaged one, or
//     another caller's private one; and from LoadMany neither value nor error.
//     A value of the reserve must not be older than a change that the process itself made,
//     or has queued, nor older than its terms allow with ten seconds more. After a change
//     that Redis refused, the last value may be read again.
//   - Stuck callers: not back a second after the end of their own context. Time
//     in which the whole process did not run does not count: a freeze by the
//     nemesis, or a machine that had no time for it (as the process notices
//     itself, and the report says).
//   - Unexplained duplicates: fetches of one key that overlap anywhere in the
//     fleet, with no Delete, Set or Expire of the key that can have ended the
//     first one's lease, where nothing tells of a lost lease: no event of the
//     guard (lease lost, fill refused, taken over, fetched without a lease) and
//     no fault. In the calm phase, duplicates of any kind, unless the machine had
//     no time for some process just before.
//   - Leaked goroutines: more of them in an idle child at the end than when it
//     was idle before the load.
//
// # Exceptions
//
// A failover loses unreplicated changes, and for a while there may be two
// masters. A Delete, Set or DeleteTag acknowledged around one (from five seconds before a
// server was seen to change its role, or a second before the fault in which it
// did, to five seconds after) is no barrier until the hard TTL has passed since.
// Older values that callers got in spite of it are counted as
// stale_after_lost_invalidation, and the changes concerned as lost_invalidations.
// A change of roles counts, whatever the fault: a busy machine has failovers
// without an order. There is no such allowance on a standalone
// Redis: its append-only file has all acknowledged changes, even when it is killed.
// Nor is there one for evictions (full_lru): an eviction costs a fetch.
//
// A process that is killed takes the last of its reports with it, which may hide
// something but causes no false finding. A duplicate during a fault counts as explained
// by it even if no lease is known to be lost. Errors that callers got while
// something was broken are counted, not judged, as is latency: how long is too
// long depends on the machine. The near cache is off.
//
// The history of a run is kept in memory, about 300 bytes for each call.
package chaos
