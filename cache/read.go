package cache

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Reads of one node go by a lane. Reads of one key that are collected together
// are one read. So every answer rests on a command that was sent after it was
// asked for, which is what [Store.Read] promises, and still the reads of any
// number of callers coalesce.
type batcher struct {
	*lane[*batch]
	missed []string // names that the last batch found nothing under; by lane.mu
}

const (
	// readSenders batches may be under way at once, besides full ones. A second
	// was measured to gain nothing, and costs every cold key a command or two.
	readSenders = 1
	// maxBatch keys go in one batch, so that large values don't hold up the rest
	// for long.
	maxBatch = 256
	// missPause is how long a batch is held back that asks again for what the last
	// one found nothing under. Whoever was told so is about to fetch it, or to
	// wait for it, and those who come meanwhile can do that unread: see
	// docs/decisions.md. So a cold key's commands don't grow with its callers.
	missPause = 2 * time.Millisecond
)

// A batch is a load of reads.
type batch struct {
	load
	b       *batcher
	entries nameSet // names of entries
	records nameSet // names of tags' records, and of their clock
	results []readResult
	found   []foundRecord
	check   *tagCheck // what is left to be done when it has been answered
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

func (bt *batch) full() bool { return bt.size() >= maxBatch }

// keys: reads of many keys may look up the records of very many tags at once.
func (bt *batch) keys() int { return len(bt.records.names) }

// crowded: callers who want the same few keys have nothing to gather.
func (bt *batch) crowded() bool { return bt.size() > maxBatch/4 }

// carryOut reads.
func (bt *batch) carryOut(ctx context.Context, pipe redis.Pipeliner) error {
	tags := bt.b.foresee(bt)
	err := bt.read(ctx, pipe)
	bt.b.note(bt.entries.names, bt.results)
	bt.check = tags.begin(bt, bt.results)
	return err
}

// read reads everything, and once more what has changed since its age was asked
// for: with the records, which are to be no older than what they judge.
func (bt *batch) read(ctx context.Context, pipe redis.Pipeliner) error {
	q := &query{s: bt.b.s, ask: askUnknown, names: bt.entries.names, records: bt.records.names}
	if err := q.send(ctx, pipe); err != nil {
		return classify("read", err)
	}
	places := q.settle()
	bt.results = make([]readResult, len(q.names))
	for i := range bt.results {
		bt.results[i] = q.result(i)
	}
	bt.found = foundRecords(q.found)
	if len(places) == 0 {
		return nil
	}
	q = q.again(places)
	if err := q.send(ctx, pipe); err != nil {
		return classify("read", err)
	}
	q.settle()
	for j, i := range places {
		bt.results[i] = q.result(j)
	}
	bt.found = foundRecords(q.found)
	return nil
}

func (bt *batch) carriedOut() { bt.check.finishLater() }

func newBatcher(s *Redis, n *node) *batcher {
	b := &batcher{}
	b.lane = &lane[*batch]{
		s: s, n: n, limit: readSenders, wake: make(chan struct{}, 1),
		open: func() *batch { return &batch{load: newLoad(), b: b} }, hold: b.hold,
	}
	return b
}

func (q *query) result(i int) readResult {
	r := &Reading{}
	if err := q.reading(i, r); err != nil {
		return readResult{err: err}
	}
	return readResult{reading: r}
}

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

// hold reports whether to hold the batch back a little: it holds a name that the
// last one found nothing under. b.mu is held.
func (b *batcher) hold(next *batch) bool {
	missed := b.missed
	b.missed = nil
	return next != nil && slices.ContainsFunc(missed, func(name string) bool { return next.entries.place(name) >= 0 })
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
