package guard

import (
	"errors"
	"fmt"
	"time"
)

// What a fetch may answer besides a value and errors of its own.
var (
	// ErrNotFound, returned by a fetch, is cached for [Policy.Negative]; callers
	// get it too, in every process, unless the fetch set [Fill.Private].
	// [Policy.NotFound] makes other errors count as it.
	ErrNotFound = errors.New("guard: not found")
	// ErrNotModified, returned by a fetch that was given a stale value
	// ([Fill.Stale]), says that this value is good for another TTL. The value keeps
	// its tags.
	ErrNotModified = errors.New("guard: not modified")
)

// What a caller may get besides the fetch's errors.
var (
	// ErrMiss: Peek found nothing.
	ErrMiss = errors.New("guard: nothing stored")
	// ErrUnavailable: the store can't be reached, or refuses (it wraps
	// store.ErrUnavailable or store.ErrRefused, which tell), and the policy is
	// FailClosed; or a Set, Delete, Expire, DeleteTag, ExpireTag, Reset or Peek failed
	// for that reason.
	ErrUnavailable = errors.New("guard: store unavailable")
	// ErrQuarantined: so many processes died fetching this key that nobody may
	// for a while ([Policy.MaxAttempts], [Policy.Quarantine]).
	ErrQuarantined = errors.New("guard: key quarantined")
	// ErrWaitTimeout: the outcome of somebody else's fetch, or the turn of one's own
	// without a lease, did not come within [Policy.WaitTimeout].
	ErrWaitTimeout = errors.New("guard: waited too long for the fetch of another caller")
	// ErrFetchTimeout: the fetch did not end within [Policy.FetchTimeout].
	ErrFetchTimeout = errors.New("guard: fetch timed out")
	// ErrReentrant: a fetch asked its own guard for its own key, or for a key whose
	// fetch, in this process, waits for this one; it would have waited for itself.
	// Calls made with a fetch's context count as its own. Fetches of different
	// processes that ask for each other's keys are not found out: FetchTimeout ends
	// them.
	ErrReentrant = errors.New("guard: fetch would wait for itself")
	// ErrTooLarge: Set was given a value over [Policy.MaxBytes].
	ErrTooLarge = errors.New("guard: value too large")
	// ErrClosed: the guard, which the error names, or its store was closed. In the
	// latter case the error wraps store.ErrClosed, too.
	ErrClosed = errors.New("guard: closed")
	// ErrGoexit: the fetch ended its goroutine with runtime.Goexit.
	ErrGoexit = errors.New("guard: fetch called runtime.Goexit")

	errNilFetch   = errors.New("guard: nil fetch function (use Peek to read without fetching)")
	errNilContext = errors.New("guard: nil context (use context.Background())")
)

// A PanicError is what callers in the process get whose fetch panicked; those in
// others get a [RemoteError] with Panicked set.
type PanicError struct {
	Value any    // what was given to panic
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

// A RetryAfterError says that nobody in the fleet should fetch this key again
// before After has passed. Make one with [RetryAfter].
type RetryAfterError struct {
	Err   error
	After time.Duration
}

func (e *RetryAfterError) Error() string {
	return fmt.Sprintf("%v (retry after %v)", e.Err, e.After)
}

func (e *RetryAfterError) Unwrap() error { return e.Err }

// RetryAfter is for a fetch to return: err, and nobody in the fleet fetches this
// key again for d. Callers get err (or the stale value, if the policy has one)
// until then. A d of zero or less is no pause.
func RetryAfter(err error, d time.Duration) error {
	return &RetryAfterError{Err: err, After: d}
}

// A RemoteError is the failure of a fetch that ran in another process, or, while
// a pause lasts, of an earlier one in any. It unwraps to the sentinels it wrapped
// there, as far as [Policy.Errors] registers them, so that errors.Is works across
// machines.
type RemoteError struct {
	Text       string        // the error's text
	Sentinels  []error       // registered errors that it wrapped
	Panicked   bool          // the fetch panicked
	RetryAfter time.Duration // nobody fetches before this has passed; 0: no pause
}

func (e *RemoteError) Error() string { return "guard: a remote or earlier fetch failed: " + e.Text }

// Unwrap returns the sentinels.
func (e *RemoteError) Unwrap() []error { return e.Sentinels }

// PauseOf returns how long nobody will fetch again, as far as err tells.
func PauseOf(err error) (time.Duration, bool) {
	var remote *RemoteError
	if errors.As(err, &remote) && remote.RetryAfter > 0 {
		return remote.RetryAfter, true
	}
	var local *RetryAfterError
	if errors.As(err, &local) && local.After > 0 {
		return local.After, true
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
