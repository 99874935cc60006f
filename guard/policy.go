package guard

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/store"
)

// Off turns off a feature that a zero value leaves at its default: [Policy.Negative],
// [Policy.ErrorPause], [Policy.Beta], [Policy.MaxAttempts], [Policy.MaxQueued],
// [Reserve.MaxBytes], [Fill.StaleFor].
const Off = -1

// OnWaitTimeout selects the result of a call that has waited for Policy.WaitTimeout.
type OnWaitTimeout byte

const (
	// StaleOrError serves the stale value if StaleIfError allows it, else returns
	// ErrWaitTimeout.
	StaleOrError OnWaitTimeout = iota
	// ErrorAlways returns ErrWaitTimeout.
	ErrorAlways
	// StaleOrFetch serves the stale value if StaleIfError allows it. Otherwise the caller
	// fetches for itself without a lease, and the value is not stored. At most
	// Policy.MaxUnguarded such fetches run at once in the process; a caller that waits
	// another Policy.WaitTimeout for its slot gets ErrWaitTimeout. One call's fetch function
	// never runs twice at once for one key: the other callers of the key then wait for a
	// fetch of their own.
	StaleOrFetch
)

// A Policy sets how long values are good and how a guard behaves when they are missing.
// The zero value of each field but TTL means its default. Durations are honoured to the
// millisecond; none may exceed 49 days.
type Policy struct {
	// Lifetime.

	// TTL is how long a value is fresh: at least 1 ms, required.
	TTL time.Duration

	// Stale is how long a value is still served after its TTL. It is served at once, while
	// one process of the fleet refreshes it in the background, and also while that refresh
	// fails. Default 0: callers wait while an expired value is fetched.
	Stale time.Duration

	// StaleIfError is how long after its TTL a value may replace an error, for callers that
	// waited for a fetch that failed. Defaults to Stale, and may not be less.
	StaleIfError time.Duration

	// Jitter spreads the expiry of values that were fetched together: each is fresh for a
	// random time between TTL*(1-Jitter) and TTL. From 0 to less than 1. Default 0.
	Jitter float64

	// Beta scales the early refresh. A value in use is refreshed in the background before
	// its TTL ends, by about one and a half times the duration of its last fetch, times
	// Beta. Default 1; Off refreshes after the TTL only.
	Beta float64

	// Negative is how long ErrNotFound is cached, at most TTL. Default 5 s; Off does not
	// cache it.
	Negative time.Duration

	// NotFound reports whether a fetch's error means that the key does not exist:
	// sql.ErrNoRows, for example. Such errors count as ErrNotFound and are cached like it.
	// Callers in this process get an error that wraps both. The function is called from
	// several goroutines, and by GetMany for each key that failed. If it panics, the fetch
	// has failed with a [*PanicError]. Default none.
	NotFound func(error) bool `json:"-"`

	// Bypass is how long the callers of a key fetch for themselves, without queueing for a
	// lease, after its value was private ([Fill.Private]) or larger than MaxBytes.
	// Default 2 min.
	Bypass time.Duration

	// Tags are carried by all values of the guard: see [Guard.DeleteTag]. A fetch may add
	// others ([Fill.Tags]), and so may Set. A value has at most 16 tags of 1 to 256 bytes.
	// Default none.
	Tags []string

	// Near is the near cache. Default none.
	Near Near

	// Reserve is served while Redis does not answer. Default on.
	Reserve Reserve

	// Failures.

	// ErrorPause is how long the fleet does not repeat a failed refresh while callers have
	// a stale value, or one that is still fresh. It doubles with each failure in a row, up to
	// MaxErrorPause. Default 1 s; Off repeats it at once.
	ErrorPause time.Duration

	// MaxErrorPause bounds the doubling. Defaults to the larger of 30 s and ErrorPause.
	MaxErrorPause time.Duration

	// StaleOn reports whether a stale value may replace an error (StaleIfError). It is not
	// asked about ErrNotFound, ErrClosed and the end of the caller's context, which are never
	// replaced, and about SoftTimeout, which always is. Default: all other errors.
	StaleOn func(error) bool `json:"-"` // a policy may come from a file, a function does not

	// MaxAttempts is how many processes may die fetching a key before the key is
	// quarantined. Default 3; Off never quarantines.
	MaxAttempts int

	// Quarantine is how long attempts are remembered, and so how long a quarantine lasts
	// after the last attempt. It must exceed FetchTimeout plus MaxBudgetWait plus Lease.
	// Defaults to the larger of 1 min and twice that sum.
	Quarantine time.Duration

	// Errors are sentinels that errors.Is still finds in another process. The names must
	// mean the same in every process.
	Errors map[string]error

	// Waiting.

	// FetchTimeout bounds a fetch. Its context ends then, and callers get ErrFetchTimeout
	// whether the fetch heeds its context or not. Default 30 s.
	FetchTimeout time.Duration

	// SoftTimeout is how long a call waits for a fetch before it is served a stale value, if
	// StaleIfError allows one. The fetch goes on and is stored. Default 0: the call waits.
	SoftTimeout time.Duration

	// WaitTimeout bounds the wait of one call for another caller's fetch or, while Redis is
	// away, for a slot among MaxUnguarded. The caller's context may end the wait sooner.
	// Defaults to FetchTimeout plus MaxBudgetWait plus Lease, when a holder must have given
	// up.
	WaitTimeout time.Duration

	// OnWaitTimeout selects the result of such a call. Default StaleOrError.
	OnWaitTimeout OnWaitTimeout

	// Lease is the TTL of the lease, which is renewed while the fetch runs. It bounds the
	// wait for a holder that vanished without breaking its connection, and for any holder
	// while Redis is away. At least 10 ms. Default 5 s.
	Lease time.Duration

	// FailClosed makes calls return ErrUnavailable while Redis is away. Without it each process
	// serves its reserve, and fetches for itself: callers of one key in a process share a
	// fetch, at most MaxUnguarded fetches run at once, and fetched values are not stored.
	// Callers that wait for another process's fetch wait until its lease must be over, Lease at
	// most.
	FailClosed bool

	// MaxUnguarded bounds the fetches of this process that run at once without a lease:
	// while Redis is away, and for StaleOrFetch. Others queue while a caller waits
	// for them. Default 32.
	MaxUnguarded int

	// MaxUnguardedWait is how long a fetch queues for that. Its callers then get the stale
	// value that StaleIfError allows, or ErrWaitTimeout. Defaults to WaitTimeout.
	MaxUnguardedWait time.Duration

	// MaxQueued bounds the invalidations that this process keeps because Redis did not
	// acknowledge them, to carry them out when it answers again (ErrQueued). A change beyond
	// the bound is not kept, and its error does not wrap ErrQueued. Default 65,536 keys and
	// tags; Off keeps none.
	MaxQueued int

	// MaxBatch bounds the keys of one call of GetMany's fetch. More keys take several calls,
	// one after the other. Default 1000.
	MaxBatch int

	// Budget.

	// Budget pays for fetches before they are made, for the whole fleet. Once it is
	// exhausted, callers are served the stale value that StaleIfError allows; other callers
	// wait for MaxBudgetWait and then get an [*ExhaustedError]. Default none.
	Budget Budget `json:"-"`

	// Cost is the estimated cost of one call of the fetch, in the budget's units, for one key
	// or for many (GetMany). A fetch of Load corrects it ([Fill.Cost]). Default 1.
	Cost int

	// MaxBudgetWait is how long a fetch waits for its budget if its callers have no stale
	// value; no longer than the caller's deadline allows, if there is one caller. Default 0:
	// it does not wait.
	MaxBudgetWait time.Duration

	// Priority is that of fetches that callers wait for. Default Normal. Refreshes in the
	// background are always Background.
	Priority Priority

	// Encoding.

	// MaxBytes bounds an encoded value before compression, and the size to which a
	// compressed one may expand. A larger value is handed to its callers, reported, and not
	// stored. Default 16 MiB.
	MaxBytes int

	// Codec encodes values. New asks a codec with a method CheckType(reflect.Type) error
	// whether it can store the guard's values. Default: []byte and string as they are, all others as
	// MessagePack.
	Codec cache.Codec

	// CompressAbove is the encoded size in bytes above which values are compressed. Default
	// 0: never.
	CompressAbove int

	// Reporting.

	// Observer receives the guard's events. Default none. See [LogObserver]. If it also has a
	// method ObserveHit(ctx context.Context, source Source, age time.Duration), it is told of
	// each call that is served from the store.
	Observer cache.Observer

	// HideKeys keeps keys out of events and error texts.
	HideKeys bool
}

func (p Policy) withDefaults() Policy {
	def(&p.StaleIfError, p.Stale)
	if p.Near.on() {
		def(&p.Near.TTL, 10*time.Second)
	}
	def(&p.Reserve.MaxBytes, defaultReserve)
	def(&p.Beta, 1)
	def(&p.Negative, 5*time.Second)
	if p.TTL >= time.Millisecond { // else validate reports TTL
		p.Negative = min(p.Negative, p.TTL)
	}
	def(&p.Bypass, 2*time.Minute)
	def(&p.ErrorPause, time.Second)
	def(&p.MaxErrorPause, max(30*time.Second, p.ErrorPause))
	def(&p.FetchTimeout, 30*time.Second)
	def(&p.Lease, 5*time.Second)
	def(&p.MaxAttempts, 3)
	def(&p.Cost, 1)
	def(&p.Quarantine, max(time.Minute, 2*(p.FetchTimeout+p.MaxBudgetWait+p.Lease)))
	def(&p.WaitTimeout, p.FetchTimeout+p.MaxBudgetWait+p.Lease)
	def(&p.MaxUnguarded, 32)
	def(&p.MaxUnguardedWait, p.WaitTimeout)
	def(&p.MaxQueued, 1<<16)
	def(&p.MaxBatch, 1000)
	def(&p.MaxBytes, 16<<20)
	return p
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate returns all errors of a policy with its defaults filled in, joined.
func (p Policy) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("guard: Policy."+format, args...))
	}
	p.validateTimes(bad)
	if err := checkTags(p.Tags); err != nil {
		bad("Tags: %w", err)
	}
	if err := errors.Join(p.Near.validate(), p.Reserve.validate()); err != nil {
		errs = append(errs, err)
	}
	if !(p.Beta > 0 || p.Beta == Off) || math.IsInf(p.Beta, 0) {
		bad("Beta is %v, must be above 0, or Off", p.Beta)
	}
	if !(p.Jitter >= 0 && p.Jitter < 1) {
		bad("Jitter is %v, must be from 0 to less than 1", p.Jitter)
	}
	if p.MaxAttempts < 1 && p.MaxAttempts != Off {
		bad("MaxAttempts is %d, must be at least 1, or Off", p.MaxAttempts)
	}
	if p.MaxUnguarded < 1 {
		bad("MaxUnguarded is %d, must be at least 1", p.MaxUnguarded)
	}
	if p.MaxQueued < 1 && p.MaxQueued != Off {
		bad("MaxQueued is %d, must be at least 1, or Off", p.MaxQueued)
	}
	if p.MaxBatch < 1 {
		bad("MaxBatch is %d, must be at least 1", p.MaxBatch)
	}
	if p.MaxBytes < 1 {
		bad("MaxBytes is %d, must be at least 1", p.MaxBytes)
	}
	if p.CompressAbove < 0 {
		bad("CompressAbove is %d, must not be negative", p.CompressAbove)
	}
	if p.Cost < 0 {
		bad("Cost is %d, must not be negative", p.Cost)
	}
	if p.Budget != nil && nils.Is(p.Budget) {
		bad("Budget is a nil %T (check the error of the call that made it)", p.Budget)
	}
	if p.Priority > Critical {
		bad("Priority is %d, must be Normal, Background or Critical", p.Priority)
	}
	if p.OnWaitTimeout > StaleOrFetch {
		bad("OnWaitTimeout is %d, must be StaleOrError, ErrorAlways or StaleOrFetch", p.OnWaitTimeout)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Errors)) {
		if name == "" || strings.HasPrefix(name, reservedPrefix) {
			bad("Errors has the name %q: empty names and those starting with %q are not allowed", name, reservedPrefix)
		}
		if p.Errors[name] == nil {
			bad("Errors[%q] is nil", name)
		}
	}
	return errors.Join(errs...)
}

// validateTimes is validate for durations. Redis and the header of an entry bound them.
func (p Policy) validateTimes(bad func(format string, args ...any)) {
	tooLong := func(name string, d time.Duration) bool {
		if d > store.MaxTTL {
			bad("%s is %v, can be at most 49 days (%v)", name, d, store.MaxTTL)
		}
		return d > store.MaxTTL
	}
	span := func(name string, d, least time.Duration) {
		if !tooLong(name, d) && d < least {
			bad("%s is %v, must be at least %v", name, d, least)
		}
	}
	orOff := func(name string, d time.Duration) {
		switch {
		case d < 0 && d != Off:
			bad("%s is %v, must be at least %v, or Off", name, d, time.Millisecond)
		case d != Off:
			span(name, d, time.Millisecond)
		}
	}
	span("TTL", p.TTL, time.Millisecond)
	if p.Stale < 0 {
		bad("Stale is %v, must not be negative", p.Stale)
	}
	if p.StaleIfError < p.Stale {
		bad("StaleIfError is %v, must be at least Stale (%v): a value that is served during its refresh is also served if the refresh fails", p.StaleIfError, p.Stale)
	}
	limit := func(d time.Duration) time.Duration { return min(d, math.MaxInt64/2) } // or the sum overflows
	if p.TTL <= store.MaxTTL && !tooLong("TTL plus Stale", p.TTL+limit(p.Stale)) {
		tooLong("TTL plus StaleIfError", p.TTL+limit(p.StaleIfError))
	}
	orOff("Negative", p.Negative)
	span("Bypass", p.Bypass, time.Millisecond)
	orOff("ErrorPause", p.ErrorPause)
	span("MaxErrorPause", p.MaxErrorPause, max(p.ErrorPause, time.Millisecond))
	if p.SoftTimeout < 0 {
		bad("SoftTimeout is %v, must not be negative", p.SoftTimeout)
	}
	span("FetchTimeout", p.FetchTimeout, time.Millisecond)
	span("Lease", p.Lease, 10*time.Millisecond)
	span("WaitTimeout", p.WaitTimeout, time.Millisecond)
	span("MaxUnguardedWait", p.MaxUnguardedWait, time.Millisecond)
	span("MaxBudgetWait", p.MaxBudgetWait, 0)
	if held := p.FetchTimeout + p.MaxBudgetWait + p.Lease; p.Quarantine <= held {
		bad("Quarantine is %v, must be more than FetchTimeout, MaxBudgetWait and Lease (%v)", p.Quarantine, held)
	}
	tooLong("Quarantine", p.Quarantine)
}

// checkName allows characters that cannot be taken for the separator in a key.
func checkName(name string) error {
	if name == "" || len(name) > 128 {
		return fmt.Errorf("guard: New: the name has %d bytes, must have 1 to 128", len(name))
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("guard: New: the name %q holds %q: only letters, digits and \"._-\" are allowed", name, c)
		}
	}
	return nil
}
