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
	entries nameSet // names of entries
	records nameSet // names of tags' records, and of their clock
	settled atomic.Bool
	results []readResult
	found   []foundRecord
	err     error // of all
	done    chan struct{}
}

type readResult struct {
	reading *Reading
	err     error
	// checked is closed when the entry's tags have been looked up and reading and
	// err are final; nil: they are.
	checked *tagCheck
}

// size is how many names are asked for.
func (bt *batch) size() int { return len(bt.entries.names) + len(bt.records.names) }

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
	var i int
	bt := b.join(func(bt *batch) { i = bt.entries.add(name) })
	if bt == nil {
		return nil, ErrClosed
	}
	if err := b.await(ctx, away, bt.done); err != nil {
		return nil, err
	}
	if bt.err != nil {
		return nil, bt.err
	}
	r := &bt.results[i]
	if r.checked != nil {
		if err := b.await(ctx, away, r.checked.done); err != nil {
			return nil, err
		}
	}
	return r.reading, r.err
}

// join adds names to the batch that collects, and sees to it that it will be
// sent. It returns nil when the store has been closed.
func (b *batcher) join(add func(*batch)) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = &batch{done: make(chan struct{})}
	}
	bt := b.next
	add(bt)
	if b.senders < maxSenders || bt.size() >= maxBatch { // a full one doesn't wait
		b.senders++
		if !b.s.spawnCall(b.send) {
			return nil
		}
	}
	return bt
}

// await waits for a batch, or the end of ctx or of the store, or until the node
// is known to be away: there is no use then in waiting one's turn.
func (b *batcher) await(ctx context.Context, away, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-away:
		return errBreakerOpen
	case <-ctx.Done():
		return ended(ctx)
	case <-b.s.ctx.Done():
		return ErrClosed
	}
}

// A nameSet is a list of names without repetitions. A handful are looked
// through, more are indexed.
type nameSet struct {
	names []string
	index map[string]int
}

// place is where the name is, or -1.
func (s *nameSet) place(name string) int {
	if s.index == nil {
		return slices.Index(s.names, name)
	}
	if i, ok := s.index[name]; ok {
		return i
	}
	return -1
}

// add returns the place of name.
func (s *nameSet) add(name string) int {
	const few = 8
	if i := s.place(name); i >= 0 {
		return i
	}
	s.names = append(s.names, name)
	i := len(s.names) - 1
	switch {
	case s.index != nil:
		s.index[name] = i
	case len(s.names) > few:
		s.index = make(map[string]int, 2*few)
		for i, k := range s.names {
			s.index[k] = i
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
		if b.next.entries.place(name) >= 0 {
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

// carryOut sends one batch and settles it, after manyTimeout at the latest. It
// answers false if that came first. What do is for a single call, this is for
// batches, without a goroutine for each.
func (b *batcher) carryOut(bt *batch) bool {
	after := b.n.breaker.sent()
	// Reads of many keys may look up the records of very many tags at once.
	ctx, cancel := context.WithTimeout(b.s.ctx, b.s.manyTimeout(len(bt.records.names)))
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
	tags := b.foresee(bt)
	results, err := b.pipeline(ctx, bt)
	err = classify("read", err)
	b.note(bt.entries.names, results)
	check := tags.begin(bt, results)
	if !bt.settle(results, err) {
		return false
	}
	check.finishLater()
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
func (b *batcher) pipeline(ctx context.Context, bt *batch) ([]readResult, error) {
	cmds := make([]readCmd, len(bt.entries.names))
	pipe := b.s.client.Pipeline()
	for i, name := range bt.entries.names {
		cmds[i].get, cmds[i].pttl = redis.NewStringCmd(ctx, "get", name), redis.NewIntCmd(ctx, "pttl", name)
		_ = pipe.Process(ctx, cmds[i].get)
		_ = pipe.Process(ctx, cmds[i].pttl)
	}
	records := recordCmds(ctx, pipe, bt.records.names)
	if _, err := pipe.Exec(ctx); err != nil && !answeredAny(cmds) && !answeredRecords(records) {
		return nil, err
	}
	results := make([]readResult, len(cmds))
	for i := range cmds {
		r, err := cmds[i].reading()
		results[i] = readResult{reading: r, err: classify("read", err)}
	}
	bt.found = foundRecords(records)
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
