package cache

import (
	"context"
	"errors"
	"time"
)

// This file gives leases back: with an entry, with a failure, or without an outcome.

// Fill implements [Store].
func (s *Redis) Fill(ctx context.Context, l *Lease, e *Entry) (bool, error) {
	return s.giveBack(ctx, &Return{Lease: l, Entry: e})
}

// Fail implements [Store].
func (s *Redis) Fail(ctx context.Context, l *Lease, failure []byte, pause time.Duration) (bool, error) {
	return s.giveBack(ctx, &Return{Lease: l, Failed: true, Failure: failure, Pause: pause})
}

// Decline implements [Store].
func (s *Redis) Decline(ctx context.Context, l *Lease, failure []byte, pause time.Duration) (bool, error) {
	return s.giveBack(ctx, &Return{Lease: l, Failed: true, Declined: true, Failure: failure, Pause: pause})
}

// Release implements [Store].
func (s *Redis) Release(ctx context.Context, l *Lease) error {
	_, err := s.giveBack(ctx, &Return{Lease: l})
	return err
}

// giveBack gives a lease back, and goes on trying in the background if Redis does not
// answer.
func (s *Redis) giveBack(ctx context.Context, r *Return) (bool, error) {
	if s.closing.Load() && !r.releases() {
		return false, ErrClosed // Close releases it
	}
	start, ttl := time.Now(), s.ledger.give(r.Lease.Token)
	ok, err := s.giveBackOnce(ctx, r)
	s.gaveBack(r, err, start, ttl)
	return ok, err
}

// giveBackOnce ties the entry, if there is one, and sends the lease's script.
func (s *Redis) giveBackOnce(ctx context.Context, r *Return) (bool, error) {
	if r.Entry != nil && len(r.Entry.Tags) > 0 {
		if err := s.tie(ctx, r.Entry)[0]; err != nil {
			if !s.unanswered(err) {
				_ = s.release(context.WithoutCancel(ctx), r.Lease.Key, r.Lease.Token)
			}
			return false, err
		}
	}
	token := r.Lease.Token
	reply, _, err := s.order(ctx, r.op(), s.returning(r), func(late reply) {
		if late.err == nil {
			s.ledger.forget(token)
		}
	})
	ok := reply == int64(1)
	if ok && r.Entry != nil {
		s.stored(s.namesOf(r.Lease).entry.(string))
	}
	return ok, err
}

// stored ends the pause of a miss under the entry name.
func (s *Redis) stored(name string) {
	if n, err := s.topo.node(name); err == nil {
		n.reads.stored(name)
	}
}

// gaveBack takes in what became of an attempt to give a lease back. If Redis has not
// answered, others follow.
func (s *Redis) gaveBack(r *Return, err error, start time.Time, ttl time.Duration) {
	switch {
	case err == nil, errors.Is(err, ErrRefused) && !r.releases():
		s.ledger.forget(r.Lease.Token)
	case s.unanswered(err) && ttl > 0:
		later := *r
		if !s.spawn(func() { s.giveBackLater(&later, start, ttl) }) {
			s.ledger.leave(r.Lease.Token)
		}
	default:
		s.ledger.leave(r.Lease.Token)
	}
}

// unanswered reports whether an error says that no answer came, and that the store is
// at work.
func (s *Redis) unanswered(err error) bool {
	return errors.Is(err, ErrUnavailable) && !s.closing.Load()
}

// A lease is given back again after these times, each twice the one before.
const (
	firstAgain = 50 * time.Millisecond
	lastAgain  = 500 * time.Millisecond
)

// giveBackLater gives a lease back again until Redis answers, for as long as the lease
// may live: ttl from the start of the first attempt. Waiters in other processes wait for
// that lease meanwhile. Each attempt compares the token, so it does no harm if an earlier
// one was carried out. It ends with the store.
func (s *Redis) giveBackLater(r *Return, start time.Time, ttl time.Duration) {
	token := r.Lease.Token
	for wait := firstAgain; sleep(s.ctx, wait) == nil; wait = min(2*wait, lastAgain) {
		late := time.Since(start)
		switch {
		case !s.ledger.gives(token):
			return // Redis has answered after all, or Close has released it
		case late >= ttl || s.closing.Load():
			s.ledger.leave(token)
			return
		}
		again := r.after(late)
		if _, err := s.giveBackOnce(s.ctx, again); !s.unanswered(err) {
			s.gaveBack(again, err, start, 0)
			return
		}
	}
}

// after is the return when it is late. An entry is fresh, and kept, for so much less. An
// entry that would have expired is not stored.
func (r *Return) after(late time.Duration) *Return {
	if r.Entry == nil {
		return r
	}
	aged := *r.Entry
	if aged.TTL -= late; aged.TTL < time.Millisecond {
		return &Return{Lease: r.Lease}
	}
	if aged.FreshFor > 0 {
		aged.FreshFor = max(aged.FreshFor-late, time.Millisecond)
	}
	return &Return{Lease: r.Lease, Entry: &aged}
}

func (r *Return) releases() bool { return r.Entry == nil && !r.Failed }

func (r *Return) op() string {
	switch {
	case r.Entry != nil:
		return "fill"
	case r.Failed:
		return "fail"
	}
	return "release"
}

// returning is one fill, fail or release, to be sent.
func (s *Redis) returning(r *Return) invocation {
	switch {
	case r.Entry != nil:
		return s.filling(r.Lease, r.Entry)
	case r.Failed:
		return s.failing(r)
	}
	return s.releasing(r.Lease.Key, r.Lease.Token)
}

// filling is one fill, to be sent.
func (s *Redis) filling(l *Lease, e *Entry) invocation {
	names := s.namesOf(l)
	e.Version = l.Token
	wake := Message{Signal: Filled, Token: l.Token}
	bytes := e.Encode()
	return fillScript.invoke(5,
		names.entry, names.lease, names.tries, names.pause, names.failures,
		l.Token[:], bytes, ttlArg(e.TTL), names.wake, wake.Encode(), rides(bytes), s.publish())
}

// namesOf are the names of a lease's key, which its acquire has put together.
func (s *Redis) namesOf(l *Lease) *nameWords {
	if l.names != nil {
		return l.names
	}
	return s.keys.words(l.Key)
}

// ttlArg keeps an expiry positive: Redis refuses zero.
func ttlArg(d time.Duration) int64 { return max(1, d.Milliseconds()) }

func rides(entry []byte) int {
	if len(entry) <= MaxMessageBody {
		return 1
	}
	return 0
}

// failing is one fail, to be sent.
func (s *Redis) failing(r *Return) invocation {
	names, token, pause, declined := s.namesOf(r.Lease), r.Lease.Token, r.Pause, 0
	wake := Message{Signal: FailedSignal, Token: token}
	if pause > 0 {
		pause = max(pause, time.Millisecond)
	}
	if r.Declined {
		declined = 1
	}
	return failScript.invoke(5,
		names.lease, names.tries, names.pause, names.failed(token), names.failures,
		token[:], r.Failure, failureKept.Milliseconds(), pause.Milliseconds(), names.wake, wake.Encode(), s.publish(), declined)
}

// release gives a token back that no lease is known of, or that is not to be given back
// in any other way.
func (s *Redis) release(ctx context.Context, key string, token Token) error {
	s.ledger.give(token)
	_, _, err := s.order(ctx, "release", s.releasing(key, token), nil)
	if err == nil {
		s.ledger.forget(token)
	} else {
		s.ledger.leave(token)
	}
	return err
}

// releasing is one release, to be sent.
func (s *Redis) releasing(key string, token Token) invocation {
	names := s.keys.names(key)
	wake := Message{Signal: Released, Token: token}
	return releaseScript.invoke(2, names.lease, names.tries, token[:], names.wake, wake.Encode(), s.publish())
}
