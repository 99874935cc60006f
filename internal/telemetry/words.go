package telemetry

import "errors"

// ErrNotWanted ends a fetch, or the wait before it, that no caller has a use for.
var ErrNotWanted = errors.New("guard: no caller waits for the fetch any more")

// ErrJobEnded ends the wait of a worker for a job that another worker has done or given up.
var ErrJobEnded = errors.New("lock: the job has ended")

// Triggers of fetches.
const (
	TriggerMiss    = "miss"    // no usable entry
	TriggerEarly   = "early"   // in the background, before the entry's TTL ends
	TriggerStale   = "stale"   // in the background, while a stale entry is served
	TriggerRefresh = "refresh" // a call with guard.MaxAge
)

// Outcomes of fetches and of waits.
const (
	OutcomeValue       = "value"
	OutcomeNotFound    = "not_found"
	OutcomeNotModified = "not_modified"
	OutcomePrivate     = "private"
	OutcomeError       = "error"
	OutcomeFailure     = "failure"
	OutcomeTakeover    = "takeover"
	OutcomeTimeout     = "timeout"
	OutcomeCanceled    = "canceled"
)

// Reasons of StaleServed and FillRefused.
const (
	ReasonRefreshing = "refreshing"
	ReasonError      = "error"
	ReasonTimeout    = "timeout"
	ReasonAway       = "away"

	ReasonLeaseGone = "lease_gone"
	ReasonTag       = "tag"
	ReasonStore     = "store"
	ReasonNoAnswer  = "unavailable"
)
