package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

var _ store.Locks = (*Store)(nil)

var (
	lockScript       = newScript("lock")
	lockExtendScript = newScript("lockextend")
	unlockScript     = newScript("unlock")
	lockStateScript  = newScript("lockstate")
)

const (
	// fenceKept is how long a fence is kept after the last grant. A counter that is missing
	// starts at Redis's time in microseconds, so it is larger than it ever was.
	fenceKept = 7 * 24 * time.Hour
	// attemptsKept is how long the attempts at a lock without a job are remembered.
	attemptsKept = time.Hour
)

// lockNames are the names of one lock. All lie in one slot.
type lockNames struct {
	fence, job, pause, wake any
	places                  []any
}

func (s keyspace) lock(key string, places int) lockNames {
	e := s.entry(key)
	n := lockNames{fence: e + ":fence", job: e + ":job", pause: e + ":pause", wake: e + ":wake", places: make([]any, places)}
	for i := range n.places {
		n.places[i] = e + ":lock"
		if i > 0 {
			n.places[i] = e + ":lock:" + strconv.Itoa(i)
		}
	}
	return n
}

// Lock implements [store.Locks].
func (s *Store) Lock(ctx context.Context, op *store.LockOp) (store.LockAnswer, error) {
	if err := s.ready(ctx); err != nil {
		return store.LockAnswer{}, err
	}
	names := s.names.lock(op.Key, op.Places)
	switch op.Kind {
	case store.AcquireLock:
		return s.acquireLock(ctx, op, &names)
	case store.ExtendLock:
		inv := lockExtendScript.invokeOn(names.places, []any{names.fence, names.job},
			op.ID[:], ttlArg(op.TTL), op.Fence, op.Keep.Milliseconds(), fenceKept.Milliseconds())
		value, err := s.lockCall(ctx, op, inv, nil)
		return store.LockAnswer{OK: value == int64(1)}, err
	case store.ReleaseLock:
		return s.releaseLock(ctx, op, &names)
	}
	forget := flag(op.Kind == store.ForgetJob)
	inv := lockStateScript.invokeOn(names.places, []any{names.fence, names.job, names.pause}, s.alive, forget)
	value, err := s.lockCall(ctx, op, inv, nil)
	if err != nil {
		return store.LockAnswer{}, err
	}
	if op.Kind == store.ForgetJob {
		f := fields{reply: value}
		return store.LockAnswer{OK: f.number(0) == 1}, f.err
	}
	return parseLockState(value)
}

// invokeOn calls the script with some names, places after them, and arguments.
func (sc *script) invokeOn(places, names []any, args ...any) invocation {
	words := make([]any, 0, len(names)+len(places)+len(args))
	words = append(append(append(words, names...), places...), args...)
	return sc.invoke(len(names)+len(places), words...)
}

// lockCall carries a script out. On a single server that is done by this goroutine, without
// the queue: a lock is seldom asked for together with others, and two goroutines that wake
// each other take longer than Redis does. ctx is not heeded then, but RedisTimeout.
func (s *Store) lockCall(ctx context.Context, op *store.LockOp, inv invocation, late func([]reply)) (any, error) {
	timed, ok := s.client.(interface {
		WithTimeout(time.Duration) *redis.Client
	})
	if !ok {
		value, _, err := s.call(ctx, op.Kind.String(), inv, late)
		return value, err
	}
	n, err := s.topo.node(inv.key())
	if err != nil {
		return nil, err
	}
	if !n.breaker.allow() {
		return nil, n.away()
	}
	s.locking.Do(func() { s.lone = timed.WithTimeout(s.opts.RedisTimeout) })
	after := n.breaker.sent()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.RedisTimeout)
	defer cancel()
	cmd := inv.command(bounded, false)
	if err = s.lone.Process(bounded, cmd); isUnknownScript(err) {
		cmd = inv.command(bounded, true)
		err = s.lone.Process(bounded, cmd)
	}
	err = classify(op.Kind.String(), err)
	n.noteOutcome(err)
	n.breaker.count(after, err)
	if err != nil {
		return nil, n.explain(err)
	}
	return cmd.Val(), nil
}

// acquireLock asks until Redis sees this process's subscription, for RedisTimeout. Then it
// asks without liveness: the holder is not watched.
func (s *Store) acquireLock(ctx context.Context, op *store.LockOp, names *lockNames) (store.LockAnswer, error) {
	liveness := s.livenessArg()
	process := s.minter.Process()
	for deadline := time.Now().Add(s.opts.RedisTimeout); ; {
		inv := lockScript.invokeOn(names.places, []any{names.fence, names.job, names.pause},
			op.ID[:], ttlArg(op.TTL), optional(op.Suspect), s.alive, liveness, process[:],
			fenceKept.Milliseconds(), op.Keep.Milliseconds(), op.MaxAttempts, flag(op.Vote), attemptsKept.Milliseconds())
		asked := time.Now()
		value, err := s.lockCall(ctx, op, inv, func(late []reply) { s.lockedLate(op, names, late[0]) })
		if err != nil {
			return store.LockAnswer{}, err
		}
		a, err := parseLock(value)
		if !errors.Is(err, errUnsubscribed) {
			return a, err
		}
		if err := s.awaitSubscription(ctx, op.Key, asked, deadline); err != nil {
			if ctx.Err() != nil {
				return store.LockAnswer{}, err
			}
			liveness = 0
			continue
		}
		liveness = s.livenessArg()
	}
}

// lockedLate gives a lock back that was granted after its caller had left.
func (s *Store) lockedLate(op *store.LockOp, names *lockNames, r reply) {
	if a, err := parseLock(r.value); r.err != nil || err != nil || a.Verdict != store.LockGranted {
		return
	}
	release := *op
	release.Outcome = store.NoOutcome
	s.spawnCall(func() { _, _ = s.releaseLock(context.Background(), &release, names) })
}

func (s *Store) releaseLock(ctx context.Context, op *store.LockOp, names *lockNames) (store.LockAnswer, error) {
	outcome := map[store.Outcome]string{store.AttemptFailed: "f", store.JobDone: "d"}[op.Outcome]
	var counted time.Duration // how long the fence of this release is kept, which the next attempts are counted from
	if op.Keep == 0 && op.Places == 1 {
		counted = attemptsKept
	}
	wake := store.Message{Signal: store.Released, Token: op.ID}
	inv := unlockScript.invokeOn(names.places, []any{names.fence, names.job, names.pause},
		op.ID[:], names.wake, wake.Encode(), s.publish(), op.Keep.Milliseconds(), counted.Milliseconds(),
		outcome, op.Cause, op.Pause.Milliseconds(), op.MaxAttempts)
	value, err := s.lockCall(ctx, op, inv, nil)
	if err != nil {
		return store.LockAnswer{}, err
	}
	f := fields{reply: value}
	a := store.LockAnswer{OK: f.number(0) == 1, Job: store.Job{Attempts: int(f.number(1)), State: jobState(f.text(2))}}
	return a, f.err
}

func jobState(s string) store.JobState {
	return map[string]store.JobState{"f": store.JobFailed, "d": store.JobOver, "g": store.JobGaveUp}[s]
}

// parseLock reads the replies that lock.lua lists.
func parseLock(value any) (store.LockAnswer, error) {
	f := fields{reply: value}
	var a store.LockAnswer
	switch word := f.text(0); word {
	case "granted":
		a.Verdict, a.TakenOver, a.Fence = store.LockGranted, f.number(1) == 1, uint64(f.number(2))
		a.Job = store.Job{Attempts: int(f.number(3)), Cause: []byte(f.text(4))}
		a.Server = f.text(5)
	case "held":
		a.Verdict, a.Holder, a.Left, a.Unwatched = store.LockHeld, f.token(1), f.millis(2), f.number(3) == 1
	case "ended":
		a.Verdict = store.LockEnded
		a.Job = store.Job{State: jobState(f.text(1)), Attempts: int(f.number(2)), Cause: []byte(f.text(3))}
	case "paused":
		a.Verdict, a.Left = store.LockPaused, f.millis(1)
	case "abstains":
		a.Verdict, a.Left, a.Server = store.LockAbstained, f.millis(1), f.text(2)
	case "unsubscribed":
		return a, errUnsubscribed
	case "foreign":
		return a, foreign(f.text(1))
	default:
		f.err = errors.Join(f.err, fmt.Errorf("%w: lock answered %q", store.ErrDamaged, word))
	}
	if f.err != nil {
		return store.LockAnswer{}, fmt.Errorf("%w: %w", store.ErrRefused, f.err)
	}
	return a, nil
}

func foreign(key string) error {
	return fmt.Errorf("%w: %q (delete it, or give the lock another name)", store.ErrForeign, key)
}

// parseLockState reads the reply of lockstate.lua.
func parseLockState(value any) (store.LockAnswer, error) {
	f := fields{reply: value}
	if f.text(0) == "foreign" {
		return store.LockAnswer{}, foreign(f.text(1))
	}
	a := store.LockAnswer{Fence: uint64(f.number(1)), Left: f.millis(6)}
	a.Job = store.Job{State: jobState(f.text(2)), Attempts: int(f.number(3)), Cause: []byte(f.text(4)), Age: time.Duration(f.number(5)) * time.Second}
	all, _ := value.([]any)
	for i := 7; i+2 < len(all); i += 3 {
		a.Holders = append(a.Holders, store.LockHolder{ID: f.token(i), Left: f.millis(i + 1), Unwatched: f.number(i+2) == 1})
	}
	if f.err != nil {
		return store.LockAnswer{}, fmt.Errorf("%w: %w", store.ErrRefused, f.err)
	}
	return a, nil
}
