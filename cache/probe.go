package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file finds out, when a store is made, whether Redis lets it do its work.

// probe asks Redis once for what the store will need, so that a missing permission shows
// at the start. A Redis that can't be reached is no error.
func (s *Redis) probe() error {
	ctx, cancel := context.WithTimeout(s.ctx, 4*s.opts.RedisTimeout)
	defer cancel()
	// A key of this process alone, so that no two probes meet.
	key := "stampede-probe-" + s.minter.Process().String()
	err := s.topo.load(ctx)
	if err == nil {
		err = s.tryCommands(ctx, key)
	}
	if err == nil {
		err = s.rehearse(ctx, key)
	}
	if err != nil {
		return s.probeFailed(err)
	}
	n, err := s.topo.node(s.keys.names(key).wake)
	if err != nil {
		return s.probeFailed(err)
	}
	n.sub.look() // whether scripts can tell at all; the subscription comes later
	return nil
}

// rehearse does once all that will be done to keys, to one that nothing else uses.
func (s *Redis) rehearse(ctx context.Context, key string) error {
	if _, err := s.Read(ctx, key); err != nil {
		return err
	}
	ask := Ask{TTL: time.Second, MaxAttempts: 1, Window: time.Minute}
	entry := &Entry{Kind: Value, TTL: time.Second, Tags: []string{key}}
	granted := func() (*Lease, error) {
		token := s.minter.Token()
		inv := s.acquiring(s.keys.words(key), token, &ask, Token{})
		inv.words[len(inv.words)-1] = 0 // nobody is subscribed yet
		return NewLease(key, token), s.carryOut(ctx, "acquire", inv)
	}
	steps := []func() error{
		func() error { l, err := granted(); return errors.Join(err, s.fail(ctx, l, time.Millisecond)) },
		func() error { return s.Reset(ctx, key) },
		func() error { l, err := granted(); return errors.Join(err, s.release(ctx, l.Key, l.Token)) },
		func() error { return s.Set(ctx, key, entry) },
		func() error { return s.ExpireTag(ctx, key) },
		func() error { return s.Expire(ctx, key) },
		func() error { return s.Delete(ctx, key) },
		func() error { return s.forgetTag(ctx, key) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// forgetTag removes a tag's record.
func (s *Redis) forgetTag(ctx context.Context, tag string) error {
	name := s.keys.tag(tag)
	n, err := s.topo.node(name)
	if err != nil {
		return err
	}
	return s.do(ctx, n, "DEL", func(ctx context.Context) error {
		return s.client.Process(ctx, once{redis.NewCmd(ctx, "del", name)})
	})
}

func (s *Redis) fail(ctx context.Context, l *Lease, pause time.Duration) error {
	_, err := s.Fail(ctx, l, nil, pause)
	return err
}

// probeFailed is the error of NewRedis for a failed probe, or nil. A Redis that is full or
// can't save can still be read, and will take writes again: the store starts on it.
func (s *Redis) probeFailed(err error) error {
	says := func(words ...string) bool { // in a script it is within another error
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(err.Error(), word) })
	}
	lacking := &lackingError{}
	switch {
	case !errors.Is(err, ErrRefused), says("OOM ", "MISCONF "):
		return nil
	case says("NOAUTH ", "WRONGPASS ", "DB index"):
		return fmt.Errorf("cache: NewRedis: Redis turns the client away: check its Username, Password and DB: %w", err)
	case errors.As(err, &lacking):
		return fmt.Errorf("cache: NewRedis: %w", err)
	}
	if rule := s.keys.toGrant("CLUSTER", err); rule != "" {
		err = &lackingError{rules: []string{rule}, first: err}
	}
	return fmt.Errorf("cache: NewRedis: this Redis can't do what the store needs (ACLRules returns the permissions): %w", err)
}

// A lackingError says which permissions the Redis user lacks, or else which commands the
// server.
type lackingError struct {
	rules, unknown []string
	first          error
}

func (e *lackingError) Error() string {
	if len(e.rules) > 0 {
		return fmt.Sprintf("this Redis user can't do what the store needs: grant it %s (ACLRules returns all that it needs): %v", strings.Join(e.rules, " "), e.first)
	}
	return fmt.Sprintf("the server does not know %s, which the store needs (was it renamed?): %v", strings.Join(e.unknown, ", "), e.first)
}

func (e *lackingError) Unwrap() error { return e.first }

// add takes in that a command was answered with an error.
func (e *lackingError) add(command, rule string, err error) {
	switch {
	case rule != "":
		if !slices.Contains(e.rules, rule) {
			e.rules = append(e.rules, rule)
		}
	case redis.HasErrorPrefix(err, "unknown command"):
		if !slices.Contains(e.unknown, command) {
			e.unknown = append(e.unknown, command)
		}
	default:
		return
	}
	if e.first == nil {
		e.first = classify(command, err)
	}
}

// tryCommands sends each command that the store can't do without once, to keys that
// nothing else uses. A refused one shows in no other way for certain: scripts swallow some
// refusals, and Redis does not name the command that it refuses in a script.
func (s *Redis) tryCommands(ctx context.Context, key string) error {
	names := s.keys.names(key)
	n, err := s.topo.node(names.wake)
	if err != nil {
		return err
	}
	str, set, hash, counter := names.pause, names.tries, s.keys.tag(key), names.failures
	commands := [][]any{
		{"PING"},
		{"GET", str},
		{"PTTL", str},
		{"SET", str, "v", "PX", 1000},
		{"GETRANGE", str, 0, 0},
		{"SETRANGE", str, 0, "v"},
		{"PEXPIRE", str, 1000},
		{"INCR", counter},
		{"PEXPIRE", counter, 1000},
		{"SADD", set, "v"},
		{"SREM", set, "w"},
		{"SCARD", set},
		{"SMEMBERS", set},
		{"PEXPIRE", set, 1000},
		{"HSET", hash, "v", 1},
		{"HMGET", hash, "v"},
		{"HINCRBY", hash, "v", 1},
		{"PEXPIRE", hash, 1000},
		{"EVALSHA", seenScript.sha, 1, str},
		{"EVAL", "return 1", 1, str},
		{s.publish(), names.wake, ""},
		{"PUBLISH", s.keys.invalidations(), keyChanged + key},
		{"DEL", str, counter, set, hash},
	}
	answered := make(chan []once, 1)
	err = s.do(ctx, n, "probe", func(ctx context.Context) error {
		cmds := make([]once, len(commands))
		pipe := s.client.Pipeline()
		for i, words := range commands {
			cmds[i] = once{redis.NewCmd(ctx, words...)}
			_ = pipe.Process(ctx, cmds[i])
		}
		_, err := pipe.Exec(ctx)
		answered <- cmds
		return err
	})
	var cmds []once
	select {
	case cmds = <-answered:
	default:
		return err
	}
	lacking := &lackingError{}
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			command := fmt.Sprint(commands[i][0])
			lacking.add(command, s.keys.toGrant(command, err), err)
		}
	}
	switch {
	case lacking.first != nil:
		return lacking
	case errors.Is(err, ErrUnavailable):
		return err
	}
	return nil // the rehearsal meets whatever else is wrong
}
