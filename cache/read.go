package cache

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Reads of one node go in batches: while one is under way, the reads that come
// are collected, and go together when it has ended. A lone read goes at once.
// Reads of one key that are collected together are one read. So every answer
// rests on a command that was sent after it was asked for, which is what
// [Store.Read] promises, and still the reads of any number of callers coalesce.
// Databases call it group commit.
type batcher struct {
	s *Redis
	n *node

	mu      sync.Mutex
	next    *batch // collecting
	senders int    // batches under way
}

const (
	// maxSenders batches may be under way at once: the second keeps the
	// connection busy while the answers of the first are read.
	maxSenders = 2
	// maxBatch keys go in one batch, so that large values don't hold up the rest
	// for long.
	maxBatch = 256
)

type batch struct {
	keys    []string // names of entries
	index   map[string]int
	results []readResult
	err     error // of all
	done    chan struct{}
}

type readResult struct {
	reading *Reading
	err     error
}

func newBatcher(s *Redis, n *node) *batcher { return &batcher{s: s, n: n} }

// read returns what is stored under the entry name.
func (b *batcher) read(ctx context.Context, name string) (*Reading, error) {
	if !b.n.breaker.allow() {
		return nil, errBreakerOpen
	}
	b.mu.Lock()
	if b.next == nil {
		b.next = &batch{done: make(chan struct{})}
	}
	bt := b.next
	i := bt.add(name)
	spawned := true
	if b.senders < maxSenders {
		b.senders++
		spawned = b.s.spawn(b.send)
	} else if len(bt.keys) >= maxBatch {
		// Full: it doesn't wait for a sender, and is sent by one more.
		b.next = nil
		spawned = b.s.spawn(func() { b.carryOut(bt) })
	}
	b.mu.Unlock()
	if !spawned {
		return nil, ErrClosed
	}

	select {
	case <-bt.done:
	case <-ctx.Done():
		return nil, ended(ctx)
	case <-b.s.ctx.Done():
		return nil, ErrClosed
	}
	if bt.err != nil {
		return nil, bt.err
	}
	return bt.results[i].reading, bt.results[i].err
}

// add returns the place of name in the batch. A handful of names are looked
// through, more are indexed.
func (bt *batch) add(name string) int {
	const few = 8
	if bt.index == nil {
		for i, k := range bt.keys {
			if k == name {
				return i
			}
		}
	} else if i, ok := bt.index[name]; ok {
		return i
	}
	bt.keys = append(bt.keys, name)
	i := len(bt.keys) - 1
	switch {
	case bt.index != nil:
		bt.index[name] = i
	case len(bt.keys) > few:
		bt.index = make(map[string]int, 2*few)
		for i, k := range bt.keys {
			bt.index[k] = i
		}
	}
	return i
}

// send sends batches until none is left.
func (b *batcher) send() {
	for {
		b.mu.Lock()
		bt := b.next
		b.next = nil
		if bt == nil {
			b.senders--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.carryOut(bt)
	}
}

// carryOut sends one batch and settles it, after RedisTimeout at the latest.
func (b *batcher) carryOut(bt *batch) {
	cmds := make([]readCmd, len(bt.keys))
	err := b.s.do(b.s.ctx, b.n, "read", func(ctx context.Context) error {
		_, err := b.s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, name := range bt.keys {
				cmds[i].get, cmds[i].pttl = redis.NewStringCmd(ctx, "get", name), redis.NewIntCmd(ctx, "pttl", name)
				_ = p.Process(ctx, cmds[i].get)
				_ = p.Process(ctx, cmds[i].pttl)
			}
			return nil
		})
		if err != nil && answeredAny(cmds) {
			return nil // each key has its own answer
		}
		return err
	})
	if bt.err = err; err == nil {
		bt.results = make([]readResult, len(cmds))
		for i := range cmds {
			r, err := cmds[i].reading()
			bt.results[i] = readResult{r, classify("read", err)}
		}
	}
	close(bt.done)
}

var errWrongType = fmt.Errorf("%w: the key holds a Redis value of another type", ErrDamaged)

type readCmd struct {
	get  *redis.StringCmd
	pttl *redis.IntCmd
}

// answeredAny reports whether the server answered, be it with errors for some
// keys only: a missing key or one of a foreign type.
func answeredAny(cmds []readCmd) bool {
	for _, c := range cmds {
		if err := c.get.Err(); err == nil || err == redis.Nil || redis.HasErrorPrefix(err, "WRONGTYPE") {
			return true
		}
	}
	return false
}

func (c readCmd) reading() (*Reading, error) {
	b, err := c.get.Bytes()
	switch {
	case err == redis.Nil:
		return &Reading{}, nil
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return &Reading{Damage: errWrongType}, nil
	case err != nil:
		return nil, err
	}
	pttl, err := c.pttl.Result()
	if err != nil {
		return nil, err
	}
	return newReading(b, pttl), nil
}

// Read implements [Store]. Concurrent reads share pipelines, and reads of one
// key share a command.
func (s *Redis) Read(ctx context.Context, key string) (*Reading, error) {
	if s.closing.Load() {
		return nil, ErrClosed
	}
	if err := ended(ctx); err != nil {
		return nil, err
	}
	name := s.keys.entry(key)
	n, err := s.topo.node(name)
	if err != nil {
		return nil, err
	}
	return n.reads.read(ctx, name)
}
