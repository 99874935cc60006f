package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Set implements [Store].
func (s *Redis) Set(ctx context.Context, key string, e *Entry) error {
	names := s.keys.names(key)
	e.Version = s.minter.Token()
	if len(e.Tags) > 0 {
		if s.closing.Load() {
			return ErrClosed
		}
		if err := errors.Join(storableTags(e), ended(ctx)); err != nil {
			return err
		}
		if err := s.stampAndTie(ctx, e); err != nil {
			return err
		}
	}
	wake := Message{Signal: Filled, Token: e.Version}
	bytes := e.Encode()
	err := s.change(ctx, key, "set", setScript.invoke(5,
		names.entry, names.lease, names.tries, names.pause, names.failures,
		bytes, ttlArg(e.TTL), names.wake, wake.Encode(), rides(bytes), s.publish(), s.keys.invalidations(), key))
	if err == nil {
		s.stored(names.entry)
	}
	return err
}

// Delete implements [Store].
func (s *Redis) Delete(ctx context.Context, key string) error {
	names := s.keys.names(key)
	return s.change(ctx, key, "delete", deleteScript.invoke(2,
		names.entry, names.lease, names.wake, s.deleted(), s.publish(), s.keys.invalidations(), key))
}

// Expire implements [Store].
func (s *Redis) Expire(ctx context.Context, key string) error {
	names := s.keys.names(key)
	return s.change(ctx, key, "expire", expireScript.invoke(2,
		names.entry, names.lease, names.wake, s.deleted(), s.publish(), s.keys.invalidations(), key))
}

// Reset implements [Store].
func (s *Redis) Reset(ctx context.Context, key string) error {
	if s.closing.Load() {
		return ErrClosed
	}
	names := s.keys.names(key)
	wake := Message{Signal: Released, Token: s.minter.Token()}
	return s.orLater("reset", s.carryOut(ctx, "reset", resetScript.invoke(3,
		names.tries, names.pause, names.failures, names.wake, wake.Encode(), s.publish())))
}

func (s *Redis) deleted() []byte {
	m := Message{Signal: Deleted, Token: s.minter.Token()}
	return m.Encode()
}

// change runs a script that ends whatever lease the key has.
func (s *Redis) change(ctx context.Context, key, op string, inv invocation) error {
	if s.closing.Load() {
		return ErrClosed
	}
	// A lease that this process is granted between the script and its answer is
	// not the one that ended.
	holder := s.ledger.holder(key)
	err := s.carryOut(ctx, op, inv)
	s.feeds.forget(Invalidation{Key: key}) // who follows here need not wait to hear of it
	if err != nil {
		return s.orLater(op, err)
	}
	// A fetch in this process need not wait for its next renewal to hear of it.
	s.ledger.lose(holder)
	return nil
}

// orLater says of a change that was sent and not answered that it may still be
// carried out. Of an error reply nothing is to come.
func (s *Redis) orLater(op string, err error) error {
	if answered := redis.Error(nil); errors.As(err, &answered) {
		return err
	}
	for _, unsent := range []error{ErrRefused, ErrClosed, errBreakerOpen, errBusy, errNotLoaded, errEndedBefore} {
		if err == nil || errors.Is(err, unsent) {
			return err
		}
	}
	return fmt.Errorf("%w (the %s may still be carried out)", err, op)
}
