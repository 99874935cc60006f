package lock

import (
	"time"

	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// jobTerms are the further terms of a Worker's lock.
type jobTerms struct {
	keep        time.Duration
	maxAttempts int
}

// A jobAnswer is the answer to a Worker that is refused.
type jobAnswer struct {
	ended bool // done, or given up
	job   store.Job
}

func (*jobAnswer) Error() string { return telemetry.ErrJobEnded.Error() }

// Is tells package measure about the end of a wait.
func (*jobAnswer) Is(target error) bool { return target == telemetry.ErrJobEnded }

// A jobOutcome is the outcome of an attempt, as its release tells it.
type jobOutcome struct {
	jobTerms
	outcome store.Outcome
	cause   []byte
	pause   time.Duration

	answer store.Job // set by Release
}
