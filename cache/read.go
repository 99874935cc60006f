package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	next    *batch   // collecting
	senders int      // batches under way
	missed  []string // names that the last batch found nothing under
}

const (
	// maxSenders batches may be under way at once, besides full ones. A second
	// was measured to gain nothing, and costs every cold key a command or two.
	maxSenders = 1
	// maxBatch keys go in one batch, so that large values don't hold up the rest
	// for long.
	maxBatch = 256
	// missPause is how long a batch is held back that asks again for what the last
	// one found nothing under. Whoever was told so is about to fetch it, or to
	// wait for it, and those who come meanwhile can do that unread: see
	// docs/decisions.md. So a cold key's commands don't grow with its callers.
	missPause = 2 * time.Millisecond
)

type batch struct {
	keys    []string // names of entries
	index   map[string]int
	settled atomic.Bool
	results []readResult
	err     error // of all
	done    chan struct{}
}

type readResult struct {
	reading *Reading
	err     error
}

// settle gives the batch its results, unless it has some. It answers whether it
// was the first to.
func (bt *batch) settle(results []readResult, err error) bool {
	if !bt.settled.CompareAndSwap(false, true) {
		return false
	}
	bt.results, bt.err = results, err
	close(bt.done)
	return true
}

func newBatcher(s *Redis, n *node) *batcher { return &batcher{s: s, n: n} }

// read returns what is stored under the entry name.
func (b *batcher) read(ctx context.Context, name string) (*Reading, error) {
	if !b.n.breaker.allow() {
		return nil, errBreakerOpen
	}
	away := b.n.breaker.away()
	b.mu.Lock()
	if b.next == nil {
		b.next = &batch{done: make(chan struct{})}
	}
	bt := b.next
	i := bt.add(name)
	spawned := true
	if b.senders < maxSenders || len(bt.keys) >= maxBatch { // a full one doesn't wait
		b.senders++
		spawned = b.s.spawnCall(b.send)
	}
	b.mu.Unlock()
	if !spawned {
		return nil, ErrClosed
	}

	select {
	case <-bt.done:
	case <-away: // no use in waiting one's turn, or for a timeout
		return nil, errBreakerOpen
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

// has reports whether the batch holds the name.
func (bt *batch) has(name string) bool {
	if bt.index != nil {
		_, ok := bt.index[name]
		return ok
	}
	return slices.Contains(bt.keys, name)
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

// send sends batches until none is left, or until one got no answer in time:
// the sender is then still at work in the client, and another takes its place.
func (b *batcher) send() {
	for {
		b.mu.Lock()
		if b.asksAgain() {
			b.mu.Unlock()
			_ = sleep(b.s.ctx, missPause)
			b.mu.Lock()
		}
		bt := b.next
		b.next, b.missed = nil, nil
		if bt == nil {
			b.senders--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		if !b.n.breaker.allow() {
			bt.settle(nil, errBreakerOpen)
			continue
		}
		if !b.carryOut(bt) {
			return
		}
	}
}

// asksAgain reports whether the next batch holds a name that the last one found
// nothing under. b.mu is held.
func (b *batcher) asksAgain() bool {
	if b.next == nil {
		return false
	}
	for _, name := range b.missed {
		if b.next.has(name) {
			return true
		}
	}
	return false
}

// replace starts a sender in place of one that is stuck, if there is a batch.
func (b *batcher) replace() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil || !b.s.spawnCall(b.send) {
		b.senders--
	}
}

// carryOut sends one batch and settles it, after RedisTimeout at the latest. It
// answers false if that came first. What do is for a single call, this is for
// batches, without a goroutine for each.
func (b *batcher) carryOut(bt *batch) bool {
	after := b.n.breaker.sent()
	ctx, cancel := context.WithTimeout(b.s.ctx, b.s.opts.RedisTimeout)
	defer cancel()
	inTime := context.AfterFunc(ctx, func() {
		if bt.settle(nil, errTimeout) {
			b.n.breaker.failed(after, errTimeout)
			b.replace()
		}
	})
	defer inTime()
	select {
	case b.n.slots <- struct{}{}:
		defer func() { <-b.n.slots }()
	case <-ctx.Done():
		return false
	}
	results, err := b.pipeline(ctx, bt.keys)
	err = classify("read", err)
	b.note(bt.keys, results)
	if !bt.settle(results, err) {
		return false
	}
	if err == nil {
		b.n.breaker.succeeded()
	} else if tripsBreaker(err) {
		b.n.breaker.failed(after, err)
	}
	return true
}

// note keeps the names of a small batch that nothing was found under; a large
// one takes its time by itself.
func (b *batcher) note(names []string, results []readResult) {
	const small = 16
	if len(results) > small {
		return
	}
	var missed []string
	for i, r := range results {
		if r.err == nil && !r.reading.Found {
			missed = append(missed, names[i])
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missed = missed
}

// pipeline reads all names in one go.
func (b *batcher) pipeline(ctx context.Context, names []string) ([]readResult, error) {
	cmds := make([]readCmd, len(names))
	pipe := b.s.client.Pipeline()
	for i, name := range names {
		cmds[i].get, cmds[i].pttl = redis.NewStringCmd(ctx, "get", name), redis.NewIntCmd(ctx, "pttl", name)
		_ = pipe.Process(ctx, cmds[i].get)
		_ = pipe.Process(ctx, cmds[i].pttl)
	}
	if _, err := pipe.Exec(ctx); err != nil && !answeredAny(cmds) {
		return nil, err
	}
	results := make([]readResult, len(cmds))
	for i := range cmds {
		r, err := cmds[i].reading()
		results[i] = readResult{r, classify("read", err)}
	}
	return results, nil
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
	case err == nil: // first, as HasErrorPrefix allocates
	case errors.Is(err, redis.Nil):
		return &Reading{}, nil
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return &Reading{Damage: errWrongType}, nil
	default:
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
