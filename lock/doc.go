// Package lock keeps work apart in a fleet: mutual exclusion, semaphores, elections, and
// jobs that are done once.
//
// A [Locker] grants locks by name. A lock is a lease: it ends by itself when its holder dies,
// and its holder is told by [Lock.Context] before any other process can have it. A
// [Worker] does jobs: each is done by one worker at a time, attempts are counted, and the
// outcome is remembered.
//
// # Efficiency or correctness?
//
// If two holders at a time would only waste work, use [Locker.Do] and forget the rest of
// this page. If they would do damage, a lock alone is not enough, whatever its make: a
// process can be frozen between its last check and its write. Then send [Lock.Fence] with
// each write and let the resource refuse a smaller number than it has seen:
//
//	UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// The rules and their exceptions are in docs/guarantees.md, the guide is docs/guide/lock.md.
package lock
