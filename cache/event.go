package cache

import (
	"slices"
	"time"
)

// EventKind names a kind of event. The names are stable: logs and metrics may use them.
type EventKind string

// Events of guards.
const (
	LeaseGranted   EventKind = "lease_granted"   // Token, Attempt, Trigger
	LeaseHeld      EventKind = "lease_held"      // Token is the holder's
	LeaseTakenOver EventKind = "lease_takenover" // Token, Attempt: granted, from a holder that died
	LeaseLost      EventKind = "lease_lost"      // Token
	LeaseReleased  EventKind = "lease_released"  // Token
	FetchStarted   EventKind = "fetch_started"   // Token, Attempt, Trigger; no Token without a lease
	FetchDone      EventKind = "fetch_done"      // as FetchStarted, and Duration, Outcome
	FetchFailed    EventKind = "fetch_failed"    // as FetchDone, and Err
	FillStored     EventKind = "fill_stored"     // Token, Size
	FillRefused    EventKind = "fill_refused"    // Token, Reason; Err if the store gave one
	FillTooLarge   EventKind = "fill_too_large"  // Token, Size
	WaitBegan      EventKind = "wait_began"      // Token is the holder's
	WaitEnded      EventKind = "wait_ended"      // Token is the holder's, Duration, Err, Trace
	KeyQuarantined EventKind = "quarantined"     // Duration until it ends
	KeyPaused      EventKind = "paused"          // Duration until it ends, Err
	RefreshFailed  EventKind = "refresh_failed"  // Err of a fetch in the background, or of Redis, which grants it no lease
	StaleServed    EventKind = "stale_served"    // Duration is the value's age, Reason; Err why, if a fetch failed
	// Err: the store does not answer, and values of the reserve are served
	ReserveEntered EventKind = "reserve_entered"
	ReserveLeft    EventKind = "reserve_left"  // Duration since then: the store answers again
	ChangeQueued   EventKind = "change_queued" // Key, Err: an invalidation that Redis did not acknowledge is kept
	// QueueCarriedOut: Size invalidations of the queue were carried out, Duration after the
	// first was queued.
	QueueCarriedOut EventKind = "queue_carried_out"
	Unguarded       EventKind = "unguarded"     // Err: a fetch without a lease, the store is away
	EntryDamaged    EventKind = "entry_damaged" // Err: the entry cannot be read

	FetchNotFound    EventKind = "fetch_not_found"    // as FetchFailed: the fetch answered ErrNotFound
	FetchNotModified EventKind = "fetch_not_modified" // as FetchFailed: the fetch answered ErrNotModified

	// CallWaited: a call has waited for a fetch that another caller made. Waits of a flight
	// are WaitBegan and WaitEnded; a flight has many callers. Duration, Outcome, Err, Trace.
	CallWaited EventKind = "call_waited"
	// KeyChanged: a Set, Delete, Expire or Reset of a key, or DeleteTag or ExpireTag of a
	// tag, which is the Key. Operation, Err.
	KeyChanged EventKind = "changed"

	BudgetWaited    EventKind = "budget_waited"    // Duration a fetch waited for its budget; Budget, Priority
	BudgetExhausted EventKind = "budget_exhausted" // Duration until there may be something again, Err; Budget, Priority
)

// Events of a worker of package lock, besides those of its locks' leases. Key is the job.
const (
	JobDone   EventKind = "job_done"    // Token, Attempt
	JobFailed EventKind = "job_failed"  // Token, Attempt, Err
	JobGaveUp EventKind = "job_gave_up" // Token, Attempt, Err
)

// Events of budgets, with the budget's name in Guard. A budget also reports LivenessOff
// and LivenessOn.
const (
	BudgetPaused EventKind = "budget_paused" // Duration of the pause that the upstream asked for
	BudgetAway   EventKind = "budget_away"   // Err: Redis is away, and the process lives on its share
	BudgetBack   EventKind = "budget_back"   // Duration it was away
)

// Events of stores.
const (
	BreakerOpened    EventKind = "breaker_opened"    // Node, Err; Duration if it is open and its probes are refused now
	BreakerClosed    EventKind = "breaker_closed"    // Node, Duration it was open
	SubscriptionUp   EventKind = "subscription_up"   // Node
	SubscriptionLost EventKind = "subscription_lost" // Node, Err
	LivenessOff      EventKind = "liveness_off"      // Node, Err: the reason for not watching holders, and its remedy; see Redis.Liveness
	LivenessOn       EventKind = "liveness_on"       // Node: the cause of that is gone
	MessageDamaged   EventKind = "message_damaged"   // Node, Err
	ProcessLate      EventKind = "process_late"      // Node, Duration: a RedisTimeout ended that late, as the process lacked processor time
)

// An Event reports one change. Fields that do not apply are zero. It never has a value of
// the cache, and no key if the user turned keys off.
type Event struct {
	Kind     EventKind
	Guard    string // the guard's name; empty for a store's events
	Key      string
	Node     string // address of the Redis node, for a store's events
	Token    Token
	Attempt  int
	Size     int // bytes
	Duration time.Duration
	Err      error

	// Trigger is the cause of a fetch: "miss" (no usable entry), "early" (in the background,
	// before the TTL ends), "stale" (in the background, while a stale entry is served) or
	// "refresh" (a call with guard.MaxAge).
	Trigger string
	// Outcome of a fetch: "value", "not_found", "not_modified", "private" (a value that is not
	// shared) or "error". Of a wait: "value", "failure" (the fetch failed), "takeover" (the
	// holder died, and the call fetched instead), "timeout" (SoftTimeout or WaitTimeout) or
	// "canceled" (the caller's context has ended).
	Outcome string
	// Reason of StaleServed: "refreshing" (while the value is refreshed), "error" (in place of
	// the fetch's error), "timeout" (SoftTimeout or WaitTimeout) or "away" (the store does not
	// answer). Of FillRefused: "lease_gone", "tag" (a tag was deleted, or its clock could not be
	// read), "store" (it is full, or refuses) or "unavailable".
	Reason string

	Operation string       // of a change: "set", "delete", "expire", "reset", "delete_tag" or "expire_tag"
	Budget    string       // the budget's name
	Priority  string       // of the fetch that a budget made wait, or refused
	TakenOver bool         // of a fetch: its lease was taken over from a holder that died
	Count     int          // of CallWaited: the call's keys, in the event of the first; of Tracer.StartFetch: the fetch's keys
	Trace     TraceContext // of the fetch that a call or a flight has waited for, if its process has a [Tracer]
}

// An Observer receives events, from many goroutines at once, on the path of the reported
// work and sometimes with a lock held: Observe must be quick, must not panic, and must not
// call the store or the guard.
type Observer interface {
	Observe(Event)
}

// Observers returns an Observer that tells each of the given ones, in their order:
// one for logs and one for metrics, say. Nil ones are left out. If no other is given
// it returns nil, which is no Observer.
func Observers(all ...Observer) Observer {
	all = slices.DeleteFunc(slices.Clone(all), func(o Observer) bool { return o == nil })
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return observers(all)
}

type observers []Observer

// Unwrap returns the joined observers.
func (all observers) Unwrap() []Observer { return all }

// Observe implements [Observer].
func (all observers) Observe(e Event) {
	for _, o := range all {
		o.Observe(e)
	}
}
