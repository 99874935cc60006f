package store

import "time"

// An EventKind names an event of a store.
type EventKind string

// The reports of a store. The names are stable: logs and metrics may use them.
const (
	BreakerOpened    EventKind = "breaker_opened"
	BreakerClosed    EventKind = "breaker_closed"
	SubscriptionUp   EventKind = "subscription_up"
	SubscriptionLost EventKind = "subscription_lost"
	LivenessOff      EventKind = "liveness_off"
	LivenessOn       EventKind = "liveness_on"
	MessageDamaged   EventKind = "message_damaged"
	ProcessLate      EventKind = "process_late"
)

// An Event is something that happened to a store, on one of its nodes.
type Event struct {
	Kind     EventKind
	Node     string
	Duration time.Duration
	Err      error
}
