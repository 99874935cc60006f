package guard

import (
	"errors"
	"fmt"
	"time"
)

// Answers of a fetch besides a value and errors of its own.
var (
	// ErrNotFound, returned by a fetch, is cached for [Policy.Negative]. Get, Load, Begin
	// and Peek return it in every process, unless the fetch set [Fill.Private].
	// [Policy.NotFound] makes other errors count as it.
	ErrNotFound = errors.New("guard: not found")
	// ErrNotModified, returned by a fetch that was given a stale value
	// ([Fill.Stale]), says that this value is good for another TTL. The value keeps
	// its tags.
	ErrNotModified = errors.New("guard: not modified")
)

// Errors of calls besides those of fetches.
var (
	// ErrMiss: nothing is stored. Returned by Peek.
	ErrMiss = errors.New("guard: nothing stored")
	// ErrUnavailable: the store can't be reached, or refuses. It wraps
	// cache.ErrUnavailable or cache.ErrRefused, which tell the two apart. Returned by
	// Peek, by all calls that change something and, with [Policy.FailClosed], by all
	// calls that fetch.
	ErrUnavailable = errors.New("guard: store unavailable")
	// ErrQueued: Redis did not acknowledge a Set, Delete, Expire, DeleteTag or ExpireTag, and
	// the guard keeps the invalidation and carries it out when Redis answers again
	// ([Policy.MaxQueued]). A Set is then carried out as a Delete. The error wraps
	// ErrUnavailable too, or the cause of the context's end.
	ErrQueued = errors.New("guard: invalidation queued")
	// ErrQuarantined: [Policy.MaxAttempts] processes died fetching this key. It is not
	// fetched for [Policy.Quarantine].
	ErrQuarantined = errors.New("guard: key quarantined")
	// ErrWaitTimeout: the outcome of another caller's fetch, or a slot for a fetch without
	// a lease, did not come within [Policy.WaitTimeout] or [Policy.MaxUnguardedWait].
	ErrWaitTimeout = errors.New("guard: waited too long for the fetch of another caller")
	// ErrFetchTimeout: the fetch did not end within [Policy.FetchTimeout].
	ErrFetchTimeout = errors.New("guard: fetch timed out")
	// ErrReentrant: a fetch asked for its own key, or for a key that is fetched in this
	// process by a fetch that waits for this one. It would have waited for itself. Calls
	// made with a fetch's context count as the fetch's. Fetches of different processes
	// that ask for each other's keys are not detected: FetchTimeout ends them.
	ErrReentrant = errors.New("guard: fetch would wait for itself")
	// ErrTooLarge: Set was given a value over [Policy.MaxBytes].
	ErrTooLarge = errors.New("guard: value too large")
	// ErrClosed: the guard, which the error names, or its store was closed. If it was the
	// store, the error also wraps cache.ErrClosed.
	ErrClosed = errors.New("guard: closed")
	// ErrGoexit: the fetch ended its goroutine with runtime.Goexit.
	ErrGoexit = errors.New("guard: fetch called runtime.Goexit")

	errNilFetch   = errors.New("guard: nil fetch function (use Peek to read without fetching)")
	errNilContext = errors.New("guard: nil context (use context.Background())")
)

// A PanicError is returned to the callers of this process if a fetch panicked. Callers in
// other processes get a [RemoteError] with Panicked set.
type PanicError struct {
	Value any    // the argument of panic
	Stack []byte // of the goroutine that panicked
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("guard: fetch panicked: %v", e.Value)
}

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// A retryAfterError pauses the fetches of a key in the whole fleet until After has passed.
type retryAfterError struct {
	err   error
	after time.Duration
}

func (e *retryAfterError) Error() string {
	return fmt.Sprintf("%v (retry after %v)", e.err, e.after)
}

func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter is for a fetch to return: it wraps err, and the fleet does not fetch this key
// again for d. Callers get err until then, or the stale value if the policy has one. A d
// of zero or less is no pause, not even that of Policy.ErrorPause.
func RetryAfter(err error, d time.Duration) error {
	return &retryAfterError{err: err, after: d}
}

// A RemoteError is the failure of a fetch that ran in another process or, while a pause
// lasts, of an earlier fetch in any process. It unwraps to the sentinels that it wrapped
// there, as far as [Policy.Errors] registers them: errors.Is works across machines.
type RemoteError struct {
	Text       string        // the error's text
	Sentinels  []error       // registered errors that it wrapped
	Panicked   bool          // the fetch panicked
	RetryAfter time.Duration // the key is not fetched before this has passed; 0: no pause
}

func (e *RemoteError) Error() string { return "guard: a remote or earlier fetch failed: " + e.Text }

// Unwrap returns the sentinels.
func (e *RemoteError) Unwrap() []error { return e.Sentinels }

// PauseOf returns how long the key of err will not be fetched, as far as err tells.
func PauseOf(err error) (time.Duration, bool) {
	var remote *RemoteError
	if errors.As(err, &remote) && remote.RetryAfter > 0 {
		return remote.RetryAfter, true
	}
	var local *retryAfterError
	if errors.As(err, &local) && local.after > 0 {
		return local.after, true
	}
	return 0, false
}

const (
	reservedPrefix = "guard:"
	notFoundName   = reservedPrefix + "not_found"
	timeoutName    = reservedPrefix + "fetch_timeout"
	exhaustedName  = reservedPrefix + "exhausted"

	// maxFailureText bounds the text of an error that travels.
	maxFailureText = 4 << 10
)

// errSoftTimeout is never returned: it is masked, or the wait goes on.
var errSoftTimeout = errors.New("guard: the fetch takes longer than Policy.SoftTimeout")
