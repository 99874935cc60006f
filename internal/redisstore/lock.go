package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

var (
	lockScript       = newScript("lock")
	lockExtendScript = newScript("lockextend")
	unlockScript     = newScript("unlock")
	lockStateScript  = newScript("lockstate")
)

// lockNames are the names of one lock, and the place's value of one call. All names lie in
// one slot and share their memory.
type lockNames struct {
	record, job, pause, wake keyArg
	places                   []keyArg
	value, message           keyArg
}

func (s keyspace) lock(key string, places int) *lockNames {
	e := s.entry(key)
	all := e + ":fence" + e + ":job" + e + ":pause" + e + ":wake" + e + ":lock"
	next := func(suffix string) (name keyArg) {
		end := len(e) + len(suffix)
		name, all = keyArg(all[:end]), all[end:]
		return name
	}
	n := &lockNames{
		record: next(":fence"), job: next(":job"), pause: next(":pause"), wake: next(":wake"),
		places: make([]keyArg, places),
	}
	for i := range n.places {
		n.places[i] = keyArg(all)
		if i > 0 {
			n.places[i] += keyArg(":" + strconv.Itoa(i))
		}
	}
	return n
}

// words begin a call of a script: with the record, the places and, if there is one, the job.
func (n *lockNames) words(sc *script, jobs bool) []any {
	keys := 1 + len(n.places)
	if jobs {
		keys += 2
	}
	const args = 8
	words := append(make([]any, 0, firstKey+keys+args), "evalsha", sc.sha, keys, &n.record)
	for i := range n.places {
		words = append(words, &n.places[i])
	}
	if jobs {
		words = append(words, &n.job, &n.pause)
	}
	return words
}

// Lock implements [store.Locks].
func (s *locks) Lock(ctx context.Context, op *store.LockOp) (store.LockAnswer, error) {
	if err := s.ready(ctx); err != nil {
		return store.LockAnswer{}, err
	}
	names := s.names.lock(op.Key, op.Places)
	switch op.Kind {
	case store.AcquireLock:
		return s.acquireLock(ctx, op, names)
	case store.ExtendLock:
		words := append(names.words(lockExtendScript, op.Keep > 0), op.ID[:], ttlArg(op.TTL), op.Fence)
		if op.Keep > 0 {
			words = append(words, op.Keep.Milliseconds())
		}
		value, err := s.lockCall(ctx, op, invocation{lockExtendScript, words}, nil)
		return store.LockAnswer{OK: value == int64(1)}, err
	case store.ReleaseLock:
		return s.releaseLock(ctx, op, names)
	}
	words := []any{&names.record, &names.job, &names.pause}
	for i := range names.places {
		words = append(words, &names.places[i])
	}
	words = append(words, s.alive, flag(op.Kind == store.ForgetJob))
	value, err := s.lockCall(ctx, op, lockStateScript.invoke(3+op.Places, words...), nil)
	if err != nil {
		return store.LockAnswer{}, err
	}
	if op.Kind == store.ForgetJob {
		f := fields{reply: value}
		return store.LockAnswer{OK: f.number(0) == 1}, f.err
	}
	return parseLockState(value)
}

// acquireLock asks until Redis sees this process's subscription, for RedisTimeout. Then it
// asks without liveness: the holder is not watched.
func (s *locks) acquireLock(ctx context.Context, op *store.LockOp, names *lockNames) (store.LockAnswer, error) {
	liveness := s.watches.livenessArg()
	process := s.minter.Process()
	for deadline := time.Now().Add(s.opts.RedisTimeout); ; {
		names.value = keyArg(string(op.ID[:]) + string(process[:]) + strconv.Itoa(liveness))
		words := append(names.words(lockScript, op.Keep > 0), &names.value, ttlArg(op.TTL), s.alive)
		if op.Vote || op.Keep > 0 || !op.Suspect.IsZero() {
			words = append(words, optional(op.Suspect), flag(op.Vote))
		}
		if op.Keep > 0 {
			words = append(words, op.Keep.Milliseconds(), op.MaxAttempts)
		}
		inv := invocation{lockScript, words}
		asked := time.Now()
		value, err := s.lockCall(ctx, op, inv, lateFunc(func(late []reply) { s.lockedLate(op, names, late[0]) }))
		if err != nil {
			return store.LockAnswer{}, err
		}
		a, err := parseLock(value)
		if !errors.Is(err, errUnsubscribed) {
			return a, err
		}
		if err := s.watches.awaitSubscription(ctx, op.Key, asked, deadline); err != nil {
			if ctx.Err() != nil {
				return store.LockAnswer{}, err
			}
			liveness = 0
			continue
		}
		liveness = s.watches.livenessArg()
	}
}

// lockedLate gives a lock back that was granted after its caller had left.
func (s *locks) lockedLate(op *store.LockOp, names *lockNames, r reply) {
	if a, err := parseLock(r.value); r.err != nil || err != nil || a.Verdict != store.LockGranted {
		return
	}
	release := *op
	release.Outcome = store.NoOutcome
	s.spawnCall(func() { _, _ = s.releaseLock(context.Background(), &release, names) })
}

func (s *locks) releaseLock(ctx context.Context, op *store.LockOp, names *lockNames) (store.LockAnswer, error) {
	wake := store.Message{Signal: store.Released, Token: op.ID}
	names.message = keyArg(wake.Encode())
	jobs := op.Keep > 0
	words := append(names.words(unlockScript, jobs), &names.message, &names.wake, s.publish())
	if jobs {
		outcome := ""
		switch op.Outcome {
		case store.AttemptFailed:
			outcome = "f"
		case store.JobDone:
			outcome = "d"
		}
		words = append(words, op.Keep.Milliseconds(), outcome, op.Cause, op.Pause.Milliseconds(), op.MaxAttempts)
	}
	value, err := s.lockCall(ctx, op, invocation{unlockScript, words}, nil)
	if err != nil {
		return store.LockAnswer{}, err
	}
	if !jobs {
		return store.LockAnswer{OK: value == int64(1)}, nil
	}
	f := fields{reply: value}
	a := store.LockAnswer{OK: f.number(0) == 1, Job: store.Job{Attempts: int(f.number(1)), State: jobState(f.text(2))}}
	return a, f.err
}

func jobState(s string) store.JobState {
	switch s {
	case "f":
		return store.JobFailed
	case "d":
		return store.JobOver
	case "g":
		return store.JobGaveUp
	}
	return store.JobFree
}

// parseLock reads the replies that lock.lua lists.
func parseLock(value any) (store.LockAnswer, error) {
	var a store.LockAnswer
	if fence, ok := value.(int64); ok {
		a.Verdict, a.Fence = store.LockGranted, uint64(fence)
		return a, nil
	}
	f := fields{reply: value}
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
