package lock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/store"
)

// A WorkerPolicy says how jobs are done. The zero value of each field means its default. All
// processes that do the same jobs need the same policy.
type WorkerPolicy struct {
	// MaxAttempts ends a job: it is given up after so many attempts that failed or died. At
	// least 1. Default 5.
	MaxAttempts int
	// Lease is how long a job outlives a worker that dies unseen. It is renewed every third of
	// that. At least 10 ms. Default 5 s.
	Lease time.Duration
	// Keep is how long it is remembered that a job is done or was given up, or how often it
	// failed. After that it is a new job. Default 24 h.
	Keep time.Duration
	// Backoff is how long no worker starts another attempt after so many have failed. Default
	// 1 s, doubled with each further failure, at most 1 min.
	Backoff func(failures int) time.Duration
	// NoTakeOver waits for the end of a dead worker's Lease. Otherwise it is replaced as soon
	// as its process was not seen at two looks, 50 ms apart; see Options.TakeOver.
	NoTakeOver bool
	// Observer is told the events of Options.Observer, and JobDone, JobFailed, JobGaveUp. Key
	// is the job. Default none.
	Observer cache.Observer
}

func (p *WorkerPolicy) fill() {
	if p.MaxAttempts == 0 {
		p.MaxAttempts = 5
	}
	if p.Lease == 0 {
		p.Lease = 5 * time.Second
	}
	if p.Keep == 0 {
		p.Keep = 24 * time.Hour
	}
	if p.Backoff == nil {
		p.Backoff = func(failures int) time.Duration {
			return min(time.Second<<min(failures-1, 6), time.Minute)
		}
	}
}

func (p *WorkerPolicy) validate() error {
	var errs []error
	if p.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("lock: WorkerPolicy.MaxAttempts is %d, must be at least 1", p.MaxAttempts))
	}
	if p.Lease < minTTL {
		errs = append(errs, fmt.Errorf("lock: WorkerPolicy.Lease is %v, must be at least %v", p.Lease, minTTL))
	}
	if p.Keep < p.Lease {
		errs = append(errs, fmt.Errorf("lock: WorkerPolicy.Keep is %v, must be at least Lease (%v)", p.Keep, p.Lease))
	}
	return errors.Join(errs...)
}

// A Worker does jobs: each is done by one worker of the fleet at a time. When an attempt
// fails, or its process dies, another worker goes on. Attempts are capped, and the outcome
// stays known for WorkerPolicy.Keep. It is safe for concurrent use.
//
// An attempt counts when it failed or its process died. A slow worker that lives costs none,
// nor does one whose context ended. Where processes can't be watched (see
// [cache.Redis.Liveness]) each attempt that ended without a word counts.
type Worker struct {
	name   string
	policy WorkerPolicy
	jobs   on
	l      *Locker
}

// NewWorker returns a worker for the jobs of the given name: 1 to 128 bytes, no colon and no
// zero byte among them. The store stays the caller's.
func NewWorker(s cache.Store, name string, p WorkerPolicy) (*Worker, error) {
	p.fill()
	errs := []error{p.validate()}
	if name == "" || len(name) > 128 {
		errs = append(errs, fmt.Errorf("lock: NewWorker: the name has %d bytes, must have 1 to 128", len(name)))
	}
	if strings.ContainsAny(name, ":\x00") {
		errs = append(errs, fmt.Errorf("lock: NewWorker: the name %q holds a colon or a zero byte, which end it in keys", name))
	}
	var locks store.Locks
	switch {
	case nils.Is(s):
		errs = append(errs, errors.New("lock: NewWorker: the store is nil"))
	default:
		var ok bool
		if locks, ok = s.Unwrap().(store.Locks); !ok {
			errs = append(errs, fmt.Errorf("lock: NewWorker: a %T keeps no locks (use cache.NewRedis or cache.NewMemory)", s))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	w := &Worker{name: name, policy: p, jobs: on{locks, store.LockMark + "w:" + name + ":"}}
	l, err := New(Options{TTL: p.Lease, TakeOver: !p.NoTakeOver, Observer: p.Observer}, w.jobs)
	if err != nil {
		return nil, err
	}
	w.l = l
	return w, nil
}

// Close ends the worker: attempts under way have their contexts ended and count for nothing.
func (w *Worker) Close() error { return w.l.Close() }

// An Attempt describes an attempt to the job's function.
type Attempt struct {
	// Number is 1, and one more for each attempt that failed or died.
	Number int
	// Last says that the job is given up if this attempt fails.
	Last bool
	// Previous is why the last attempt failed; nil: this is the first one. It wraps ErrDied if
	// the attempt's process died.
	Previous error
	// IdempotencyKey is the same for all attempts at the job: a system that is given it can
	// tell a duplicate.
	IdempotencyKey string
	// Lock is the lock that the attempt holds, with its fence.
	Lock *Lock
}

// A Report says how a job ended.
type Report struct {
	Done     bool
	ByOther  bool // another worker has done it, or an earlier call
	Attempts int  // that have ended
}

// ErrDied says that an attempt's process died. [Attempt.Previous] and [GaveUpError] wrap it.
var ErrDied = errors.New("lock: the process of the attempt died")

// A GaveUpError says that a job was given up.
type GaveUpError struct {
	Job      string
	Attempts int
	Cause    string // the text of the last attempt's error; empty: its process died
}

func (e *GaveUpError) Error() string {
	cause := e.Cause
	if cause == "" {
		cause = ErrDied.Error()
	}
	return fmt.Sprintf("lock: job %q was given up after %d attempts: %s", cut(e.Job), e.Attempts, cause)
}

// Unwrap returns ErrDied if the last attempt's process died.
func (e *GaveUpError) Unwrap() error {
	if e.Cause == "" {
		return ErrDied
	}
	return nil
}

// Do does the job, or waits until another worker has done it. It returns when the job is
// done, was given up ([GaveUpError]), when ctx ends, or with ErrUnavailable if the store does
// not answer. f returns an error to have the attempt count as failed; so it is if f panics,
// and the panic goes on. f's context ends with ctx, and when the lease is lost: then the
// attempt counts for nothing, and Do goes on waiting.
//
// A job may be done twice if a worker lives on after its lease was lost, or if the store can't
// be told that it is done: give IdempotencyKey or Lock.Fence to the systems that f changes.
func (w *Worker) Do(ctx context.Context, job string, f func(context.Context, *Attempt) error) (Report, error) {
	if f == nil {
		return Report{}, errNilFunc
	}
	for {
		r, err := w.attempt(ctx, job, true, f)
		var failed *attemptError
		if err == nil || !errors.As(err, &failed) && (!errors.Is(err, ErrLost) || errors.Is(context.Cause(ctx), ErrLost)) {
			return r, err
		}
	}
}

// TryDo makes one attempt at the job. It returns a [HeldError] if another worker is at it, or
// if the last attempt failed a short time ago; and the error of f if the attempt failed.
func (w *Worker) TryDo(ctx context.Context, job string, f func(context.Context, *Attempt) error) (Report, error) {
	if f == nil {
		return Report{}, errNilFunc
	}
	r, err := w.attempt(ctx, job, false, f)
	if failed := (*attemptError)(nil); errors.As(err, &failed) {
		err = failed.err
	}
	return r, err
}

// An attemptError is of an attempt that failed and was not the last.
type attemptError struct{ err error }

func (e *attemptError) Error() string { return e.err.Error() }
func (e *attemptError) Unwrap() error { return e.err }

// attempt makes one attempt.
func (w *Worker) attempt(ctx context.Context, job string, wait bool, f func(context.Context, *Attempt) error) (Report, error) {
	k, err := w.l.acquire(ctx, job, terms{wait: wait, bound: true, job: &jobTerms{w.policy.Keep, w.policy.MaxAttempts}})
	var ended *jobAnswer
	if errors.As(err, &ended) {
		return w.ended(job, &ended.job)
	}
	if err != nil {
		return Report{}, err
	}
	a := &Attempt{Number: k.attempt, Last: k.attempt >= w.policy.MaxAttempts, IdempotencyKey: w.idempotencyKey(job), Lock: k}
	switch {
	case k.attempt > 1 && len(k.previous) == 0:
		a.Previous = ErrDied
	case k.attempt > 1:
		a.Previous = errors.New(string(k.previous))
	}
	return w.conclude(job, a, run(k.Context(), a, func(err error) { _, _ = w.conclude(job, a, err) }, f))
}

func (w *Worker) ended(job string, j *store.Job) (Report, error) {
	r := Report{Done: j.State == store.JobOver, ByOther: true, Attempts: j.Attempts}
	if r.Done {
		return r, nil
	}
	return r, &GaveUpError{Job: job, Attempts: j.Attempts, Cause: string(j.Cause)}
}

// run calls f. unwinding is told the error if f panics or ends its goroutine.
func run(ctx context.Context, a *Attempt, unwinding func(error), f func(context.Context, *Attempt) error) error {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil {
			unwinding(fmt.Errorf("lock: the job panicked: %v\n%s", p, debug.Stack()))
			panic(p)
		}
		unwinding(errors.New("lock: the job called runtime.Goexit"))
	}()
	err := f(ctx, a)
	returned = true
	return err
}

// maxCause bounds the text of an error that is remembered.
const maxCause = 1024

// conclude tells the store the outcome of an attempt.
func (w *Worker) conclude(job string, a *Attempt, err error) (Report, error) {
	k := a.Lock
	o := &jobOutcome{jobTerms: *k.terms, outcome: store.JobDone}
	stopped := k.Context().Err() != nil // the caller's context ended, or the lease was lost
	switch {
	case err != nil && stopped:
		o.outcome = store.NoOutcome
	case err != nil:
		o.outcome, o.cause, o.pause = store.AttemptFailed, []byte(err.Error()), max(0, w.policy.Backoff(a.Number))
		o.cause = o.cause[:min(len(o.cause), maxCause)]
		if len(o.cause) == 0 {
			o.cause = []byte("(an error without a text)")
		}
	}
	cause := context.Cause(k.Context())
	released := k.report(o)
	r := Report{Attempts: o.answer.Attempts}
	switch {
	case released != nil && o.outcome != store.NoOutcome:
		return r, joined(released, err)
	case o.outcome == store.NoOutcome:
		return r, joined(cause, err)
	case o.outcome == store.JobDone:
		w.l.observe(cache.JobDone, job, cache.Event{Token: cache.Token(k.id), Attempt: a.Number})
		r.Done = true
		return r, nil
	}
	w.l.observe(cache.JobFailed, job, cache.Event{Token: cache.Token(k.id), Attempt: a.Number, Err: err})
	if o.answer.State == store.JobGaveUp {
		w.l.observe(cache.JobGaveUp, job, cache.Event{Token: cache.Token(k.id), Attempt: a.Number, Err: err})
		return r, &GaveUpError{Job: job, Attempts: r.Attempts, Cause: string(o.cause)}
	}
	return r, &attemptError{err}
}

// report gives the lock of an attempt back with its outcome. While the store does not answer
// the lock is still renewed, so that no other worker does the job again; until the lock is
// lost, or the worker is closed.
func (k *Lock) report(o *jobOutcome) error {
	l := k.l
	h := k.hold()
	h.job = o
	for wait := 10 * time.Millisecond; o.outcome != store.NoOutcome; wait = min(2*wait, 500*time.Millisecond) {
		held, err := l.panel.release(context.Background(), h)
		if err == nil {
			k.concluded()
			if !held {
				return ErrLost
			}
			return nil
		}
		if k.Valid() == 0 || sleep(l.ctx, wait) != nil {
			_, _ = k.endWith(errUnlocked, o)
			return joined(ErrLost, err)
		}
	}
	_, err := k.endWith(errUnlocked, o)
	return err
}

// concluded ends a lock that was released already.
func (k *Lock) concluded() {
	k.mu.Lock()
	first := k.state != lockEnded
	k.state, k.cause = lockEnded, errUnlocked
	k.stopLocked()
	k.mu.Unlock()
	if !first {
		return
	}
	k.cancel(errUnlocked)
	k.round.finish()
	k.wasReleased(nil)
}

func (w *Worker) idempotencyKey(job string) string {
	sum := sha256.Sum256([]byte(w.name + "\x00" + job))
	return hex.EncodeToString(sum[:16])
}

// A WorkState is how far a job is.
type WorkState byte

// The states of a job.
const (
	Free    WorkState = iota // no attempt was made, or it is not known any more
	Running                  // a worker is at it
	Failed                   // the last attempt failed, and another may be made
	Done
	GaveUp
)

func (s WorkState) String() string {
	return [...]string{"free", "running", "failed", "done", "gave up"}[s]
}

// A Status describes a job.
type Status struct {
	State    WorkState
	Attempts int           // that failed or died, and the one that succeeded
	Cause    string        // of the last failure
	Since    time.Duration // how long ago it failed, was done or was given up; whole seconds on Redis
	Holder   ID            // Running
	Dead     bool          // Running: the process looks dead
}

// Status tells how far a job is. A job that is not known is Free, and never Done.
func (w *Worker) Status(ctx context.Context, job string) (Status, error) {
	if err := w.l.ready(ctx); err != nil {
		return Status{}, err
	}
	a, err := w.jobs.locks.Lock(ctx, &store.LockOp{Kind: store.InspectLock, Key: w.jobs.key(job), Places: 1})
	if err != nil {
		return Status{}, err
	}
	s := Status{Attempts: a.Job.Attempts, Cause: string(a.Job.Cause), Since: a.Job.Age}
	switch a.Job.State {
	case store.JobOver:
		s.State = Done
	case store.JobGaveUp:
		s.State = GaveUp
	case store.JobFailed:
		s.State = Failed
	}
	if len(a.Holders) > 0 && s.State != Done && s.State != GaveUp {
		s.State, s.Holder, s.Dead = Running, ID(a.Holders[0].ID), a.Holders[0].Unwatched
	}
	return s, nil
}

// Forget makes a job a new one: its attempts and its outcome are forgotten. It returns a
// [HeldError] while a worker is at it.
func (w *Worker) Forget(ctx context.Context, job string) error {
	if err := w.l.ready(ctx); err != nil {
		return err
	}
	a, err := w.jobs.locks.Lock(ctx, &store.LockOp{Kind: store.ForgetJob, Key: w.jobs.key(job), Places: 1})
	if err == nil && !a.OK {
		return &HeldError{Name: job}
	}
	return err
}
