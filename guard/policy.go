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

// Off turns off what a zero would give a default: Policy.Negative,
// Policy.ErrorPause.
const Off = time.Duration(-1)

// Unlimited turns off what a zero would give a default: Policy.MaxAttempts.
const Unlimited = -1

// WhenUnavailable says what callers get while Redis can't be reached.
type WhenUnavailable byte

const (
	// FailOpen lets each process fetch for itself, callers of one key sharing a
	// fetch, at most Policy.MaxUnguarded fetches at once. What is fetched so is
	// not stored. Callers who wait for another process's fetch wait until its lease
	// must be over, Policy.Lease at most.
	FailOpen WhenUnavailable = iota
	// FailClosed gives callers ErrUnavailable.
	FailClosed
)

// OnWaitTimeout says what callers get who have waited for Policy.WaitTimeout.
type OnWaitTimeout byte

const (
	// StaleOrError gives the stale value if StaleIfError allows it, else
	// ErrWaitTimeout.
	StaleOrError OnWaitTimeout = iota
	// ErrorAlways gives ErrWaitTimeout.
	ErrorAlways
	// StaleOrFetch gives the stale value if StaleIfError allows it, else lets the
	// caller fetch for itself, without a lease: at most Policy.MaxUnguarded such
	// fetches run at once in the process. A caller that has waited for
	// Policy.WaitTimeout once more, for its turn among them, gets ErrWaitTimeout. A
	// value that was fetched like this is not stored. A call's fetch never runs twice
	// at once for one key: the other callers of the key wait for a fetch of their own.
	StaleOrFetch
)

// A Policy says for how long values are good and what happens when they are not
// to be had. The zero value of each field but TTL means its default. Durations
// are honoured to the millisecond.
type Policy struct {
	// TTL is how long a value is fresh: at least 1 ms, required. Together with Stale
	// or StaleIfError it is at most [store.MaxTTL], 49 days.
	TTL time.Duration

	// Stale is how long after its TTL a value is still served, at once, while one
	// process in the fleet refreshes it in the background; and while that
	// refresh fails. Default 0: a value that isn't fresh is fetched anew while
	// its callers wait.
	Stale time.Duration

	// StaleIfError is how long after its TTL a value may still be served instead
	// of an error, to callers who have waited for a fetch that failed. Default,
	// and at least, Stale.
	StaleIfError time.Duration

	// Tags are carried by all values of the guard: see [Guard.DeleteTag]. A fetch may
	// add others ([Fill.Tags]), and so may a Set. A value has at most 16, of 1 to 256
	// bytes each. Default none.
	Tags []string

	// Jitter spreads the expiry of values that were fetched together: each is
	// fresh for a random time between TTL*(1-Jitter) and TTL. From 0 to less
	// than 1. Default 0.
	Jitter float64

	// Near is the near cache. Default none.
	Near Near

	// Reserve is what is served while Redis does not answer. Default on.
	Reserve Reserve

	// Beta scales how early, before its TTL ends, a value that is in use is
	// refreshed in the background: by about one and a half times what its last
	// fetch took, times Beta. Default 1; NoEarlyRefresh waits for the TTL.
	Beta float64

	// Negative is how long ErrNotFound is cached; what is longer than TTL is cut to
	// it. Default 5 s, or TTL; Off doesn't cache it.
	Negative time.Duration

	// NotFound says which errors of a fetch mean that the key doesn't exist:
	// sql.ErrNoRows, say. They count as ErrNotFound and are cached like it. Callers in
	// this process get an error that wraps both ErrNotFound and the fetch's. It is
	// called from several goroutines, also for each key that a fetch of GetMany fails
	// for. If it panics, the fetch has failed with a [*PanicError]. Default none.
	NotFound func(error) bool `json:"-"`

	// Bypass is how long a key whose value was private ([Fill.Private]) or over
	// MaxBytes is left alone: its callers fetch for themselves instead of
	// queueing for a lease. Default 2 min.
	Bypass time.Duration

	// ErrorPause is how long a failing refresh isn't tried again, by anybody,
	// while there is a stale value to serve, or one still fresh. It doubles with each
	// failure in a row, up to MaxErrorPause. Default 1 s; Off tries at once.
	ErrorPause time.Duration

	// MaxErrorPause bounds the doubling. Default the larger of 30 s and
	// ErrorPause.
	MaxErrorPause time.Duration

	// StaleOn says which errors a stale value may stand in for (StaleIfError,
	// SoftTimeout aside). ErrNotFound, the guard's own ErrClosed, and the end of the
	// caller's own context are never masked, and are not asked about. Default all
	// others.
	StaleOn func(error) bool `json:"-"` // a policy may come from a file, a function does not

	// SoftTimeout is how long a call waits for a fetch before it is given a stale
	// value instead, if there is one that StaleIfError allows; the fetch goes on
	// and is stored. Default 0: for as long as it takes.
	SoftTimeout time.Duration

	// FetchTimeout bounds a fetch: its context ends then, and callers get
	// ErrFetchTimeout whether it heeds that or not. Default 30 s.
	FetchTimeout time.Duration

	// Lease is the TTL of the lease, which is renewed while the fetch runs. It
	// bounds how long a holder is waited for that vanished without its connection
	// breaking, and any holder while Redis is away. At least 10 ms. Default 5 s.
	Lease time.Duration

	// MaxAttempts is how many processes may die fetching a key before it is
	// quarantined. Default 3; Unlimited never quarantines.
	MaxAttempts int

	// Quarantine is how long attempts are remembered, and so how long a
	// quarantine lasts from the last of them. More than FetchTimeout plus
	// MaxBudgetWait plus Lease. Default the larger of 1 min and twice that sum.
	Quarantine time.Duration

	// WaitTimeout bounds how long one call waits for a fetch that somebody else
	// runs, or, with Redis away, to be among MaxUnguarded; the caller's context may
	// end the wait sooner. Default FetchTimeout plus MaxBudgetWait plus Lease: when
	// a holder must have given up.
	WaitTimeout time.Duration

	// OnWaitTimeout says what a call gets then. Default StaleOrError.
	OnWaitTimeout OnWaitTimeout

	// WhenUnavailable says what callers get while Redis is away. Default
	// FailOpen.
	WhenUnavailable WhenUnavailable

	// MaxUnguarded bounds the fetches that run at once in this process without a
	// lease, while Redis is away (FailOpen) or for StaleOrFetch; further ones queue,
	// while anybody waits for them. Default 32.
	MaxUnguarded int

	// MaxBatch bounds the keys of one call of GetMany's fetch; for more there are
	// several calls, one after the other. Default 1000.
	MaxBatch int

	// Budget is what fetches are paid from, fleet-wide, before they are made. With
	// nothing left callers get the stale value that StaleIfError allows, else wait
	// for MaxBudgetWait, else get an [*ExhaustedError]. Default none.
	Budget Budget `json:"-"`

	// Cost is what a call of the fetch is estimated to cost, in the budget's units,
	// whether it is for one key or for many (GetMany); Load's corrects it
	// ([Fill.Cost]). Default 1.
	Cost int

	// MaxBudgetWait is how long a fetch that callers wait for waits for its budget,
	// where there is nothing stale to serve; no longer than the caller's deadline
	// allows, if there is only one. Default 0: not at all.
	MaxBudgetWait time.Duration

	// Priority is that of the fetches that callers wait for. Default Normal;
	// refreshes in the background are always Background.
	Priority Priority

	// MaxBytes bounds an encoded value, before compression, when it is stored,
	// and what a compressed one may expand to when it is read. A larger one is
	// handed to its callers, reported, and not stored. Default 16 MiB.
	MaxBytes int

	// Codec encodes values. One that is a [cache.TypeChecker] is asked by New
	// whether it can store the guard's values. Default []byte and string as they
	// are, everything else as MessagePack.
	Codec cache.Codec

	// CompressAbove is the encoded size in bytes above which values are
	// compressed. Default 0: never.
	CompressAbove int

	// Errors are the sentinels that callers in other processes can still tell
	// with errors.Is, by a name that means the same in every process.
	Errors map[string]error

	// Observer is told what happens. Default none. See [LogObserver].
	Observer Observer

	// HideKeys keeps keys out of events.
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
	if p.TTL >= time.Millisecond { // else that is what is wrong
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

// validate returns all that is wrong with a policy whose defaults are filled in.
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
	if !(p.Beta > 0 || p.Beta == NoEarlyRefresh) || math.IsInf(p.Beta, 0) {
		bad("Beta is %v, must be above 0, or NoEarlyRefresh", p.Beta)
	}
	if !(p.Jitter >= 0 && p.Jitter < 1) {
		bad("Jitter is %v, must be from 0 to less than 1", p.Jitter)
	}
	if p.MaxAttempts < 1 && p.MaxAttempts != Unlimited {
		bad("MaxAttempts is %d, must be at least 1, or Unlimited", p.MaxAttempts)
	}
	if p.MaxUnguarded < 1 {
		bad("MaxUnguarded is %d, must be at least 1", p.MaxUnguarded)
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
	if p.WhenUnavailable > FailClosed {
		bad("WhenUnavailable is %d, must be FailOpen or FailClosed", p.WhenUnavailable)
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

// validateTimes is validate for durations. None is longer than Redis and the header of
// an entry can keep.
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
		bad("StaleIfError is %v, must be at least Stale (%v): what may be served while it is refreshed may be served if that fails", p.StaleIfError, p.Stale)
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
	span("MaxBudgetWait", p.MaxBudgetWait, 0)
	if held := p.FetchTimeout + p.MaxBudgetWait + p.Lease; p.Quarantine <= held {
		bad("Quarantine is %v, must be more than FetchTimeout, MaxBudgetWait and Lease (%v)", p.Quarantine, held)
	}
	tooLong("Quarantine", p.Quarantine)
}

// checkName allows what can stand in a key without running into the rest of it.
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
