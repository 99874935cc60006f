package cache

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

// Acquire implements [Store].
func (m *Memory) Acquire(ctx context.Context, key string, ask Ask) (Answer, error) {
	d := m.data
	d.mu.Lock()
	if err := m.ready(ctx); err != nil {
		d.mu.Unlock()
		return Answer{}, err
	}
	if ask.TTL < time.Millisecond {
		d.mu.Unlock()
		return Answer{}, fmt.Errorf("%w: a lease's TTL of %v is below 1ms", ErrRefused, ask.TTL)
	}
	now := time.Now()
	k := d.make(key, now)
	answer := k.verdict(&ask, d.alive, now)
	var stored []byte
	var pttl int64
	switch answer.Verdict {
	case 0:
		answer = Answer{Verdict: Granted, Lease: m.grant(k, &ask, now)}
	case HasEntry:
		stored, pttl = k.entry, pttlAt(k.entryEnds, now)
		d.lru.Get(key) // it was used
	}
	d.tidy(k)
	d.mu.Unlock()
	if answer.Verdict == HasEntry {
		answer.Reading = m.checked(readingOf(stored, pttl))
	}
	return answer, nil
}

// grant makes a lease of k, in place of a dead holder's if there is one.
// data.mu is held.
func (m *Memory) grant(k *memoryKey, ask *Ask, now time.Time) *Lease {
	takenOver := k.lease != nil
	k.endLease(now)

	lease := NewLease(k.name, m.minter.Token())
	if k.tries == nil {
		k.tries = map[Token]struct{}{}
	}
	k.tries[lease.Token] = struct{}{}
	k.triesEnd = now.Add(ask.Window)
	lease.TakenOver, lease.Attempt, lease.Failures = takenOver, len(k.tries), k.failures

	ml := &memoryLease{
		lease: lease, owner: m, ttl: ask.TTL, window: ask.Window,
		renewed: now.Add(max(0, ask.RenewFor)),
	}
	m.timers.Add(1)
	ml.timer = time.AfterFunc(ml.ends().Sub(now), func() {
		defer m.timers.Done()
		m.data.mu.Lock()
		defer m.data.mu.Unlock()
		m.data.find(lease.Key, time.Now()) // ends it, so that its holder hears of it
	})
	k.lease = ml
	m.leases[lease.Token] = ml
	return lease
}

// Fill implements [Store].
func (m *Memory) Fill(ctx context.Context, l *Lease, e *Entry) (bool, error) {
	e.Version = l.Token
	return m.giveBack(ctx, l, func(k *memoryKey, now time.Time) error {
		if err := storableTags(e); err != nil {
			return err
		}
		if err := m.data.tags.tie(e, now); err != nil {
			return err
		}
		b := e.Encode()
		if err := m.data.storable(l.Key, e, b); err != nil {
			return err
		}
		k.forgive()
		m.data.put(k, b, now.Add(entryTTL(e)))
		k.publishFilled(l.Token, b)
		return nil
	})
}

// Fail implements [Store].
func (m *Memory) Fail(ctx context.Context, l *Lease, failure []byte, pause time.Duration) (bool, error) {
	return m.fail(ctx, l, failure, pause, false)
}

// Decline implements [Store].
func (m *Memory) Decline(ctx context.Context, l *Lease, failure []byte, pause time.Duration) (bool, error) {
	return m.fail(ctx, l, failure, pause, true)
}

func (m *Memory) fail(ctx context.Context, l *Lease, failure []byte, pause time.Duration, declined bool) (bool, error) {
	return m.giveBack(ctx, l, func(k *memoryKey, now time.Time) error {
		failure := bytes.Clone(failure)
		if k.failed == nil {
			k.failed = map[Token]memoryFailure{}
		}
		k.failed[l.Token] = memoryFailure{failure, now.Add(failureKept)}
		if declined {
			delete(k.tries, l.Token)
		} else {
			k.tries = nil
		}
		if pause > 0 {
			k.pause, k.pauseEnds = failure, now.Add(pause)
			k.failures++
			k.failEnds = now.Add(2*pause + time.Minute)
		}
		k.publish(Message{Signal: FailedSignal, Token: l.Token, Body: bytes.Clone(failure)})
		return nil
	})
}

// giveBack ends the lease and runs f, with data.mu held, or answers false where
// the lease is gone. If it can't be carried out the lease is released: nothing
// was left under way here that could still need it.
func (m *Memory) giveBack(ctx context.Context, l *Lease, f func(*memoryKey, time.Time) error) (bool, error) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.closed {
		return false, ErrClosed
	}
	now := time.Now()
	if err := ended(ctx); err != nil {
		m.giveUp(l.Key, l.Token, now)
		return false, err
	}
	k := d.make(l.Key, now)
	defer d.tidy(k)
	if !k.heldBy(l.Token) {
		m.giveUp(l.Key, l.Token, now)
		return false, nil
	}
	if err := f(k, now); err != nil {
		m.giveUp(l.Key, l.Token, now)
		return false, err
	}
	k.dropLease(now)
	delete(m.leases, l.Token)
	return true, nil
}

// Release implements [Store]. It is carried out even if ctx has ended.
func (m *Memory) Release(_ context.Context, l *Lease) error {
	m.data.mu.Lock()
	defer m.data.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.giveUp(l.Key, l.Token, time.Now())
	return nil
}

// giveUp gives a lease back without any outcome; its attempt is accounted for,
// whether it is still held or not. data.mu is held.
func (m *Memory) giveUp(key string, t Token, now time.Time) {
	delete(m.leases, t)
	k := m.data.find(key, now)
	if k == nil {
		return
	}
	delete(k.tries, t)
	if k.heldBy(t) {
		k.dropLease(now)
		k.publish(Message{Signal: Released, Token: t})
	}
	m.data.tidy(k)
}
