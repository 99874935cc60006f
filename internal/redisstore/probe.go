package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// This file finds out, when a store is made, whether Redis lets it do its work.

// probe runs each command that the store needs once, so that a missing permission shows
// at the start. A Redis that can't be reached is no error.
func (s *Store) probe() error {
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
	n, err := s.topo.node(string(s.names.names(key).wake))
	if err != nil {
		return s.probeFailed(err)
	}
	n.sub.look() // whether scripts can tell at all; the subscription comes later
	return nil
}

// rehearse does once all that will be done to keys, to one that nothing else uses.
func (s *Store) rehearse(ctx context.Context, key string) error {
	var err error
	s.ReadMany(ctx, "", []string{key}, func(_ int, _ *store.Reading, e error) { err = e })
	if err != nil {
		return err
	}
	entry := &store.Entry{Kind: store.Value, TTL: time.Second, Tags: []string{key}}
	change := func(kind store.ChangeKind) func() error {
		return func() error {
			c := store.Change{Kind: kind, Key: key}
			if kind == store.Set {
				c.Entry = entry
			}
			return s.Change(ctx, []store.Change{c})[0]
		}
	}
	steps := []func() error{
		func() error { return s.rehearseLease(ctx, key, store.Return{Failed: true, Pause: time.Millisecond}) },
		change(store.Reset),
		func() error { return s.rehearseLease(ctx, key, store.Return{}) },
		change(store.Set),
		func() error { return s.ChangeTags(ctx, store.ExpireTag, []string{key}) },
		change(store.Expire),
		change(store.Delete),
		func() error { return s.forgetTag(ctx, key) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// rehearseLease is granted the lease, without liveness as nothing is subscribed yet, and
// gives it back.
func (s *Store) rehearseLease(ctx context.Context, key string, r store.Return) error {
	q := s.ask(&store.Request{Key: key, TTL: time.Second, MaxAttempts: 1, Window: time.Minute}, store.Token{})
	defer s.leases.ledger.forget(q.token)
	q.inv.words[livenessWord] = 0
	if _, _, err := s.call(ctx, "acquire", q.inv, nil); err != nil {
		return err
	}
	r.Lease = &store.Lease{Key: key, Token: q.token}
	_, _, err := s.call(ctx, "giving back", s.returning(&handBack{}, &r), nil)
	return err
}

// forgetTag removes a tag's record.
func (s *Store) forgetTag(ctx context.Context, tag string) error {
	return s.bounded(ctx, "DEL", func(ctx context.Context) error {
		return s.client.Process(ctx, once{redis.NewCmd(ctx, "del", s.names.tag(tag))})
	})
}

// probeFailed is the error of NewRedis for a failed probe, or nil. A Redis that is full or
// can't save can still be read, and will take writes again: the store starts on it.
func (s *Store) probeFailed(err error) error {
	says := func(words ...string) bool { // in a script it is within another error
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(err.Error(), word) })
	}
	lacking := &lackingError{}
	switch {
	case errors.Is(err, store.ErrUnavailable):
		for _, n := range s.topo.all() {
			n.silent() // so that the first callers are told why
		}
		return nil
	case !errors.Is(err, store.ErrRefused), says("OOM ", "MISCONF "):
		return nil
	case says("NOAUTH ", "WRONGPASS ", "DB index"):
		return fmt.Errorf("cache: NewRedis: Redis turns the client away: check its Username, Password and DB: %w", err)
	case errors.As(err, &lacking):
		return fmt.Errorf("cache: NewRedis: %w", err)
	}
	if rule := s.names.toGrant("CLUSTER", err); rule != "" {
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
func (s *Store) tryCommands(ctx context.Context, key string) error {
	names := s.names.names(key)
	str, set, hash, counter := &names.pause, &names.tries, s.names.tag(key), &names.failures
	commands := [][]any{
		{"PING"},
		{"GET", str},
		{"PTTL", str},
		{"TIME"},
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
		{s.publish(), &names.wake, ""},
		{"PUBLISH", s.names.invalidations(), keyChanged + key},
		{"DEL", str, counter, set, hash},
	}
	answered := make(chan []once, 1)
	err := s.bounded(ctx, "probe", func(ctx context.Context) error {
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
			lacking.add(command, s.names.toGrant(command, err), err)
		}
	}
	switch {
	case lacking.first != nil:
		return lacking
	case errors.Is(err, store.ErrUnavailable):
		return err
	}
	return nil // the rehearsal meets whatever else is wrong
}
