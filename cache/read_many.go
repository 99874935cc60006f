package cache

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
)

// ReadMany implements [Store]. On each node it is one MGET for every 2000 keys
// (in a cluster, or where MGET is refused, a pipeline of GETs), and one pipeline
// as of Read for entries whose age isn't known from an earlier ReadMany. So a
// second call for the same warm keys is one round trip, and so is a call for keys
// that aren't there. To an MGET a key of a foreign Redis type isn't there either:
// it is no Damage, but the next fill overwrites it all the same.
func (s *Redis) ReadMany(ctx context.Context, keys []string) []ReadResult {
	results := make([]ReadResult, len(keys))
	err := ended(ctx)
	if s.closing.Load() {
		err = ErrClosed
	}
	if err != nil {
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	names := s.keys.entries(keys)
	s.ages.begin(time.Now())
	s.onNodes(names, func(i int, err error) { results[i].Err = err }, func(n *node, places []int) {
		var err error
		for _, part := range chunks(places, nil) {
			if err == nil {
				err = s.readPart(ctx, n, names, part, results)
			} else { // it didn't answer: that won't have changed
				for _, i := range part {
					results[i].Err = err
				}
			}
		}
	})
	s.checkRead(ctx, results)
	return results
}

// checkRead checks the tags of what was read.
func (s *Redis) checkRead(ctx context.Context, results []ReadResult) {
	if !anyTagged(results) {
		return
	}
	readings := make([]*Reading, len(results))
	for i := range results {
		readings[i] = results[i].Reading
	}
	for i, err := range s.checkTags(ctx, readings) {
		if err != nil {
			results[i] = ReadResult{Err: fmt.Errorf("the entry's tags: %w", err)}
		}
	}
}

func anyTagged(results []ReadResult) bool {
	for i := range results {
		if r := results[i].Reading; r != nil && r.tagged() {
			return true
		}
	}
	return false
}

// readPart reads what goes together. It returns the error of a node that didn't
// answer.
func (s *Redis) readPart(ctx context.Context, n *node, names []string, part []int, results []ReadResult) error {
	asked := time.Now()
	found, err := s.values(ctx, n, names, part)
	if err != nil {
		for _, i := range part {
			results[i].Err = err
		}
		return err
	}
	var rest []int
	var slab []Reading
	s.ages.mu.RLock()
	for j, i := range part {
		if len(slab) == 0 {
			// A few at a time are one allocation, and one that is kept keeps few others.
			slab = make([]Reading, min(readingSlab, len(part)-j))
		}
		r := &slab[0]
		switch v := found.values[j]; {
		case found.errs[j] == nil && (v == "" || s.knownReading(r, v, asked)):
			results[i].Reading, slab = r, slab[1:]
		case found.errs[j] == nil:
			rest = append(rest, i)
		case redis.HasErrorPrefix(found.errs[j], "WRONGTYPE"):
			results[i].Reading = &Reading{Damage: errWrongType}
		default:
			results[i].Err = classify("read", found.errs[j])
		}
	}
	s.ages.mu.RUnlock()
	if len(rest) == 0 {
		return nil
	}
	return s.readRest(ctx, n, names, rest, results)
}

const readingSlab = 16

// knownReading makes r the reading of an entry whose age is known, or answers
// false. The table of ages is locked for reading.
func (s *Redis) knownReading(r *Reading, v string, now time.Time) bool {
	if len(v) < HeaderSize {
		return false // damaged: let the other pipeline judge
	}
	// The client made the string of bytes that nobody else has: no need to copy
	// them again.
	b := unsafe.Slice(unsafe.StringData(v), len(v))
	age, ok := s.ages.find(Token(b[:TokenSize]), now)
	if !ok {
		return false
	}
	r.Seen = v[:TokenSize]
	if r.Damage = r.Entry.parse(b); r.Damage != nil {
		r.Entry = Entry{}
		return true
	}
	r.Found = true
	r.Age = max(0, age)
	r.Left = max(0, r.Entry.TTL-r.Age)
	return true
}

// readRest reads as Read does, and learns the ages.
func (s *Redis) readRest(ctx context.Context, n *node, names []string, rest []int, results []ReadResult) error {
	bt := &batch{}
	for _, i := range rest {
		bt.entries.names = append(bt.entries.names, names[i])
	}
	answers := make(chan []readResult, 1)
	sent := time.Now()
	err := s.readWithin(ctx, n, s.manyTimeout(len(rest)), func(ctx context.Context) error {
		read, err := n.reads.pipeline(ctx, s.client.Pipeline(), bt)
		answers <- read
		return err
	})
	var read []readResult
	select {
	case read = <-answers:
	default:
	}
	for j, i := range rest {
		if err != nil || read == nil {
			results[i] = ReadResult{Err: err}
		} else {
			results[i] = ReadResult{read[j].reading, read[j].err}
		}
	}
	if err == nil {
		s.ages.learn(read, sent)
	}
	return err
}

// found is what a part's keys hold.
type found struct {
	values []string // empty: nothing
	errs   map[int]error
}

// values reads without the ages.
func (s *Redis) values(ctx context.Context, n *node, names []string, part []int) (found, error) {
	_, single := s.topo.(*single)
	for {
		read := s.gets
		mget := single && !s.noMGET.Load()
		if mget {
			read = s.mget
		}
		answers := make(chan found, 1)
		err := s.readWithin(ctx, n, s.manyTimeout(len(part)), func(ctx context.Context) error {
			f, err := read(ctx, names, part)
			answers <- f
			return err
		})
		if err == nil {
			return <-answers, nil
		}
		if !mget || !errors.Is(err, ErrRefused) {
			return found{}, err
		}
		s.noMGET.Store(true)
	}
}

func (s *Redis) mget(ctx context.Context, names []string, part []int) (found, error) {
	args := make([]any, 1, 1+len(part))
	args[0] = "mget"
	for _, i := range part {
		args = append(args, &names[i]) // a pointer needs no allocation
	}
	cmd := redis.NewStringSliceCmd(ctx, args...) // a nil is an empty string to it, which no entry is
	cmd.SetFirstKeyPos(1)
	if err := s.client.Process(ctx, cmd); err != nil {
		return found{}, err
	}
	if len(cmd.Val()) != len(part) {
		return found{}, fmt.Errorf("%w: MGET of %d keys answered %d", ErrDamaged, len(part), len(cmd.Val()))
	}
	return found{values: cmd.Val()}, nil
}

// gets is mget for a cluster, where an MGET can't cross slots.
func (s *Redis) gets(ctx context.Context, names []string, part []int) (found, error) {
	cmds := make([]*redis.StringCmd, len(part))
	pipe := s.client.Pipeline()
	for j, i := range part {
		cmds[j] = redis.NewStringCmd(ctx, "get", &names[i])
		cmds[j].SetFirstKeyPos(1)
		_ = pipe.Process(ctx, cmds[j])
	}
	_, err := pipe.Exec(ctx)
	f := found{values: make([]string, len(part)), errs: map[int]error{}}
	answered := false
	for j, cmd := range cmds {
		v, cmdErr := cmd.Result()
		f.values[j] = v
		if cmdErr != nil && !errors.Is(cmdErr, redis.Nil) {
			f.errs[j] = cmdErr
		}
		answered = answered || cmdErr == nil || isReply(cmdErr)
	}
	if answered {
		err = nil
	}
	return f, err
}

// entries is entry for many keys, whose names share their memory.
func (s keyspace) entries(keys []string) []string {
	size := 0
	for _, k := range keys {
		size += len(s.namespace) + len(":{%}") + min(len(k), maxKeyInName)
	}
	prefix, all := s.namespace+":{", make([]byte, 0, size)
	names := make([]string, len(keys))
	for i, k := range keys {
		if !plain(k) {
			names[i] = s.entry(k)
			continue
		}
		start := len(all)
		all = append(append(append(all, prefix...), k...), '}')
		// Nothing is written twice: there is room for all.
		names[i] = unsafe.String(&all[start], len(all)-start)
	}
	return names
}

// plain reports whether a key stands in its names as it is: see entry.
func plain(k string) bool {
	return k != "" && len(k) <= maxKeyInName && k[0] != '}' && k[0] != '%'
}
