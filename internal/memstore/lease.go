package memstore

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// failureKept is how long it is kept why a fetch failed: longer than a waiter's poll.
const failureKept = 5 * time.Second

// Acquire implements [store.Store].
func (m *Store) Acquire(ctx context.Context, requests []store.Request) []store.Answer {
	answers := make([]store.Answer, len(requests))
	for i := range requests {
		answers[i] = m.acquire(ctx, &requests[i])
	}
	return answers
}

func (m *Store) acquire(ctx context.Context, r *store.Request) store.Answer {
	d := m.data
	d.mu.Lock()
	a := m.acquireLocked(ctx, r)
	d.mu.Unlock()
	if a.Reading != nil {
		unshared(a.Reading)
	}
	return a
}

func (m *Store) acquireLocked(ctx context.Context, r *store.Request) store.Answer {
	if err := m.readyLocked(ctx); err != nil {
		return store.Answer{Err: err}
	}
	if r.TTL < time.Millisecond {
		return store.Answer{Err: fmt.Errorf("%w: a lease's TTL of %v is below 1ms", store.ErrRefused, r.TTL)}
	}
	d, now := m.data, time.Now()
	k := d.make(r.Key, now)
	defer d.tidy(k)
	a := k.answer(r, d.alive, now)
	switch a.Verdict {
	case 0:
		a = store.Answer{Verdict: store.Granted, Lease: m.grantLocked(k, r, now)}
	case store.HasEntry:
		d.lru.Get(r.Key) // it was used
		a.Reading = d.readingLocked(k)
	}
	return a
}

// grantLocked makes a lease of k, in place of a dead holder's if there is one.
func (m *Store) grantLocked(k *key, r *store.Request, now time.Time) *store.Lease {
	l := &store.Lease{Key: k.name, Token: m.minter.Token(), TakenOver: k.lease != nil}
	k.endLease(now)
	if k.tries == nil {
		k.tries = map[store.Token]struct{}{}
	}
	k.tries[l.Token] = struct{}{}
	k.triesEnd = now.Add(r.Window)
	l.Attempt, l.Failures = len(k.tries), k.failures

	ml := &lease{lease: l, owner: m, ttl: r.TTL, window: r.Window, renewed: now.Add(max(0, r.RenewFor))}
	m.timers.Add(1)
	ml.timer = time.AfterFunc(ml.ends().Sub(now), func() {
		defer m.timers.Done()
		m.data.mu.Lock()
		defer m.data.mu.Unlock()
		m.data.find(l.Key, time.Now()) // ends it, so that its holder hears of it
	})
	k.lease = ml
	m.leases[l.Token] = ml
	return l
}

// Return implements [store.Store].
func (m *Store) Return(ctx context.Context, returns []store.Return) []store.Returned {
	all := make([]store.Returned, len(returns))
	for i := range returns {
		all[i].OK, all[i].Err = m.giveBack(ctx, &returns[i])
	}
	return all
}

// giveBack ends the lease with its outcome. If that can't be carried out the lease is
// released: nothing was left under way here that could still need it.
func (m *Store) giveBack(ctx context.Context, r *store.Return) (bool, error) {
	d, l := m.data, r.Lease
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if err := m.readyLocked(ctx); err != nil || r.Releases() {
		m.giveUp(l.Key, l.Token, now)
		return err == nil, err
	}
	k := d.make(l.Key, now)
	defer d.tidy(k)
	if !k.heldBy(l.Token) {
		m.giveUp(l.Key, l.Token, now)
		return false, nil
	}
	if r.Trace != nil {
		k.publish(store.Message{Signal: store.Traced, Token: l.Token, Body: bytes.Clone(r.Trace)})
	}
	if r.Entry == nil {
		k.fail(r, now)
	} else if err := m.fillLocked(k, r, now); err != nil {
		m.giveUp(l.Key, l.Token, now)
		return false, err
	}
	k.dropLease(now)
	delete(m.leases, l.Token)
	return true, nil
}

func (m *Store) fillLocked(k *key, r *store.Return, now time.Time) error {
	e := r.Entry
	e.Version = r.Lease.Token
	if err := e.Storable(); err != nil {
		return err
	}
	if err := m.data.tags.tie(e, now); err != nil {
		return err
	}
	b, err := m.data.encode(k.name, e)
	if err != nil {
		return err
	}
	k.forgive()
	m.data.put(k, b, now.Add(entryTTL(e)))
	k.publishFilled(e.Version, b)
	return nil
}

// fail notes why the lease's fetch failed.
func (k *key) fail(r *store.Return, now time.Time) {
	token, bytesOf := r.Lease.Token, bytes.Clone(r.Failure)
	if k.failed == nil {
		k.failed = map[store.Token]failure{}
	}
	k.failed[token] = failure{bytesOf, now.Add(failureKept)}
	if r.Declined {
		delete(k.tries, token)
	} else {
		k.tries = nil
	}
	if r.Pause > 0 {
		k.pause, k.pauseEnds = bytesOf, now.Add(r.Pause)
		k.failures++
		k.failEnds = now.Add(2*r.Pause + time.Minute)
	}
	k.publish(store.Message{Signal: store.FailedSignal, Token: token, Body: bytes.Clone(bytesOf)})
}

// giveUp gives a lease back without any outcome; its attempt is accounted for, whether it
// is still held or not. data.mu is held.
func (m *Store) giveUp(name string, t store.Token, now time.Time) {
	delete(m.leases, t)
	k := m.data.find(name, now)
	if k == nil {
		return
	}
	delete(k.tries, t)
	if k.heldBy(t) {
		k.dropLease(now)
		k.publish(store.Message{Signal: store.Released, Token: t})
	}
	m.data.tidy(k)
}
