package lock

import (
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// jobTerms are what a Worker asks of a lock besides.
type jobTerms struct {
	keep        time.Duration
	maxAttempts int
}

// A jobAnswer is what a refused Worker is told.
type jobAnswer struct {
	ended bool // done, or given up
	job   store.Job
}

func (*jobAnswer) Error() string { return "lock: the job has ended" }

// A jobOutcome is what a release says of an attempt.
type jobOutcome struct {
	jobTerms
	outcome store.Outcome
	cause   []byte
	pause   time.Duration

	answer store.Job // set by Release
}
