package memstore

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

var _ store.Locks = (*Store)(nil)

// attemptsKept is how long the attempts at a lock without a job are remembered.
const attemptsKept = time.Hour

// A lock is all that is stored about one lock. It follows lock.lua and unlock.lua.
type lock struct {
	places    []place
	job       *job
	pauseEnds time.Time
}

type place struct {
	id      store.Token // zero: free
	process store.Process
	ends    time.Time
}

type job struct {
	state    store.JobState
	attempts int
	cause    []byte
	changed  time.Time
	ends     time.Time
	running  place // the attempt that is not accounted for; zero: none
}

// Lock implements [store.Locks].
func (m *Store) Lock(ctx context.Context, op *store.LockOp) (store.LockAnswer, error) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.readyLocked(ctx); err != nil {
		return store.LockAnswer{}, err
	}
	now := time.Now()
	d.sweepLocks(now)
	l := d.lock(op, now)
	switch op.Kind {
	case store.AcquireLock:
		if op.TTL < time.Millisecond {
			return store.LockAnswer{}, fmt.Errorf("%w: a lock's TTL of %v is below 1ms", store.ErrRefused, op.TTL)
		}
		a := m.acquireLock(l, op, now)
		if op.Vote {
			a.Server = fmt.Sprintf("%p", d)
		}
		return a, nil
	case store.ExtendLock:
		return store.LockAnswer{OK: d.extendLock(l, op, now)}, nil
	case store.ReleaseLock:
		a := l.release(op, now)
		if a.OK {
			d.publishLock(op)
		}
		return a, nil
	case store.ForgetJob:
		for i := range l.places {
			if !l.places[i].id.IsZero() {
				return store.LockAnswer{}, nil
			}
		}
		l.job, l.pauseEnds = nil, time.Time{}
		return store.LockAnswer{OK: true}, nil
	}
	return m.inspectLock(l, now), nil
}

func (d *data) publishLock(op *store.LockOp) {
	if k := d.keys[op.Key]; k != nil {
		k.publish(store.Message{Signal: store.Released, Token: op.ID})
	}
}

// lock returns the lock without its expired parts.
func (d *data) lock(op *store.LockOp, now time.Time) *lock {
	l := d.locks[op.Key]
	if l == nil {
		l = &lock{}
		d.locks[op.Key] = l
	}
	for len(l.places) < op.Places {
		l.places = append(l.places, place{})
	}
	l.purge(now)
	return l
}

// sweepLocks forgets a few locks that hold nothing any more. There are more of them than
// new ones come with each operation.
func (d *data) sweepLocks(now time.Time) {
	n := 0
	for key, l := range d.locks {
		if l.purge(now); l.isEmpty(now) {
			delete(d.locks, key)
		}
		if n++; n == sweepKeys {
			return
		}
	}
}

func (l *lock) isEmpty(now time.Time) bool {
	for i := range l.places {
		if !l.places[i].id.IsZero() {
			return false
		}
	}
	return l.job == nil && !now.Before(l.pauseEnds)
}

func (l *lock) purge(now time.Time) {
	for i := range l.places {
		if passed(l.places[i].ends, now) {
			l.places[i] = place{}
		}
	}
	if l.job != nil && passed(l.job.ends, now) {
		l.job = nil
	}
}

// keep is how long the job is kept; zero where attempts are not counted.
func keep(op *store.LockOp) time.Duration {
	switch {
	case op.Keep > 0:
		return op.Keep
	case op.Places == 1:
		return max(attemptsKept, 2*op.TTL)
	}
	return 0
}

func (m *Store) isAlive(p store.Process) bool {
	_, ok := m.data.alive[p]
	return ok
}

func (m *Store) acquireLock(l *lock, op *store.LockOp, now time.Time) store.LockAnswer {
	if j := l.job; j != nil && (j.state == store.JobOver || j.state == store.JobGaveUp) {
		return j.answer()
	}
	free, replaced, held := l.find(m, op, now)
	if free < 0 {
		return held
	}
	j := l.job
	if j == nil {
		j = &job{}
	}
	if left := l.pauseEnds.Sub(now); j.state == store.JobFailed && left > 0 {
		return store.LockAnswer{Verdict: store.LockPaused, Left: left}
	}
	if before := j.running; !before.id.IsZero() && (before.id == replaced || !m.isAlive(before.process)) {
		j.attempts, j.cause = j.attempts+1, nil
	}
	j.running = place{}
	if op.MaxAttempts > 0 && j.attempts >= op.MaxAttempts {
		l.places[free] = place{}
		j.state, j.changed, j.ends = store.JobGaveUp, now, now.Add(op.Keep)
		l.job = j
		return j.answer()
	}
	m.data.fence++
	l.places[free] = place{op.ID, m.minter.Process(), now.Add(op.TTL)}
	if keep := keep(op); keep > 0 {
		j.running, j.ends = l.places[free], now.Add(keep)
		l.job = j
	}
	return store.LockAnswer{
		Verdict: store.LockGranted, TakenOver: !replaced.IsZero(), Fence: m.data.fence,
		Job: store.Job{Attempts: j.attempts, Cause: bytes.Clone(j.cause)},
	}
}

// find returns a place to take, and the suspect that held it; or -1 and the answer.
func (l *lock) find(m *Store, op *store.LockOp, now time.Time) (free int, replaced store.Token, held store.LockAnswer) {
	for i, p := range l.places[:op.Places] {
		if p.id.IsZero() {
			return i, store.Token{}, held
		}
	}
	for i, p := range l.places[:op.Places] {
		gone, left := !m.isAlive(p.process), p.ends.Sub(now)
		if gone && p.id == op.Suspect {
			return i, p.id, held
		}
		if i == 0 || gone && !held.Unwatched || gone == held.Unwatched && left < held.Left {
			held = store.LockAnswer{Verdict: store.LockHeld, Holder: p.id, Left: left, Unwatched: gone}
		}
	}
	return -1, store.Token{}, held
}

func (j *job) answer() store.LockAnswer {
	return store.LockAnswer{Verdict: store.LockEnded, Job: store.Job{State: j.state, Attempts: j.attempts, Cause: bytes.Clone(j.cause)}}
}

func (d *data) extendLock(l *lock, op *store.LockOp, now time.Time) bool {
	for i := range l.places {
		if l.places[i].id != op.ID {
			continue
		}
		if ends := now.Add(op.TTL); ends.After(l.places[i].ends) {
			l.places[i].ends = ends
		}
		if l.job != nil {
			l.job.ends = now.Add(keep(op))
		}
		d.fence = max(d.fence, op.Fence)
		return true
	}
	return false
}

func (l *lock) release(op *store.LockOp, now time.Time) store.LockAnswer {
	j := l.job
	if j != nil && j.running.id == op.ID {
		j.running = place{}
	}
	for i := range l.places {
		if l.places[i].id != op.ID {
			continue
		}
		l.places[i] = place{}
		switch {
		case op.Keep == 0 && op.Places == 1, j == nil && op.Outcome == store.NoOutcome:
			l.job = nil
			return store.LockAnswer{OK: true}
		case op.Outcome != store.NoOutcome:
			if j == nil {
				j = &job{}
				l.job = j
			}
			j.attempts++
			j.state, j.cause, j.changed = store.JobOver, bytes.Clone(op.Cause), now
			if op.Outcome == store.AttemptFailed {
				j.state = store.JobFailed
				l.pauseEnds = now.Add(op.Pause)
				if op.MaxAttempts > 0 && j.attempts >= op.MaxAttempts {
					j.state = store.JobGaveUp
				}
			}
		}
		if j != nil {
			j.ends = now.Add(keep(op))
			return store.LockAnswer{OK: true, Job: store.Job{State: j.state, Attempts: j.attempts}}
		}
		return store.LockAnswer{OK: true}
	}
	return store.LockAnswer{}
}

func (m *Store) inspectLock(l *lock, now time.Time) store.LockAnswer {
	a := store.LockAnswer{Fence: m.data.fence, Left: max(0, l.pauseEnds.Sub(now))}
	for _, p := range l.places {
		if !p.id.IsZero() {
			a.Holders = append(a.Holders, store.LockHolder{ID: p.id, Left: p.ends.Sub(now), Unwatched: !m.isAlive(p.process)})
		}
	}
	if j := l.job; j != nil {
		a.Job = store.Job{State: j.state, Attempts: j.attempts, Cause: bytes.Clone(j.cause)}
		if !j.changed.IsZero() {
			a.Job.Age = now.Sub(j.changed)
		}
	}
	return a
}
