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
	// Guarded by lane.mu.
	misses misses
	bytes  int               // the size of a value, about
	closed map[string]*batch // the batches of the queue but the last, by name
}

const (
	// maxReads batches may be under way at once, but for one that is overdue. Of those
	// that aren't full, smallReads, while all in all they ask for fewer than fewNames:
	// one batch has too little in it then to keep both Redis and the process busy.
	maxReads   = 6
	smallReads = 4
	fewNames   = 8
	// maxBatch keys go in one batch, and so many that their values may be expected to
	// have maxBatchBytes: of what is larger, Redis writes some while the process reads
	// others, and the caches of their processors hold it.
	maxBatch      = 256
	maxBatchBytes = 256 << 10
)

// A batch is a load of reads.
type batch struct {
	load
	b       *batcher
	opened  time.Time
	entries nameSet // names of entries
	records nameSet // names of tags' records, and of their clock
	results []readResult
	found   []foundRecord
	closed  bool      // another collects behind it
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

func (bt *batch) full() bool {
	return bt.closed || bt.size() >= maxBatch || len(bt.entries.names)*bt.b.bytes >= maxBatchBytes
}

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
	b := &batcher{misses: newMisses(), closed: map[string]*batch{}}
	b.lane = newLane(s, n, func() *batch { return &batch{load: newLoad(), b: b, opened: time.Now()} }, b.mayGo)
	b.lane.took = b.took
	return b
}

// collecting is the batch that a read of the name joins, or nil for a new one: the batch
// of the queue that has the name, or the one that waits if the name was just missed, or
// the last of the queue if that is not full. The queue is not searched, as it may hold
// thousands of batches. b.mu is held.
func (b *batcher) collecting(name string) *batch {
	if bt := b.closed[name]; bt != nil {
		return bt
	}
	var last *batch
	if n := len(b.queue); n > 0 {
		last = b.queue[n-1]
	}
	if last != nil && last.entries.has(name) {
		return last
	}
	if bt := b.waitingFor(name); bt != nil {
		return bt
	}
	if last == nil || !last.full() {
		return last
	}
	b.close(last)
	return nil
}

// close ends the collecting of a batch that is in the queue. b.mu is held.
func (b *batcher) close(bt *batch) {
	bt.closed = true
	for _, name := range bt.entries.names {
		b.closed[name] = bt
	}
}

// took forgets where the names of a batch waited. b.mu is held.
func (b *batcher) took(bt *batch) {
	if bt.closed {
		for _, name := range bt.entries.names {
			delete(b.closed, name)
		}
	}
}

// mayGo answers false for a batch that asks for what is being read already: its
// callers wait for the others who will want that too, so that neither a cold key's
// commands nor a large value's copies grow with its callers. A full one goes if it
// asks for anything else, or is of many. b.mu is held.
func (b *batcher) mayGo(bt *batch, busy int) bool {
	slots := cap(b.n.slots) // who waits for a slot uses up the batch's time
	names := bt.entries.names
	if bt.full() {
		room := busy < maxReads || b.overdue(bt)
		isNew := func(name string) bool { return !b.reading(name) }
		return room && busy < slots && (bt.size() > 2*fewNames || slices.ContainsFunc(names, isNew))
	}
	few := fewNames
	for _, u := range b.under {
		few -= len(u.entries.names)
	}
	return busy < min(smallReads, slots) && few > 0 && b.coming == 0 && !slices.ContainsFunc(names, b.reading)
}

// overdue reports whether a batch has waited long for others: its callers count on
// an answer in about twice RedisTimeout, however long the queue.
func (b *batcher) overdue(bt *batch) bool { return time.Since(bt.opened) > b.s.opts.RedisTimeout/2 }

// reading reports whether a batch under way asks for the name. b.mu is held.
func (b *batcher) reading(name string) bool {
	return slices.ContainsFunc(b.under, func(u *batch) bool { return u.entries.has(name) })
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
	bt := b.join(func() *batch { return b.collecting(name) }, func(bt *batch) { i = bt.entries.add(name) })
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

func (s *nameSet) has(name string) bool { return s.place(name) >= 0 }

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

// note learns from the results of a batch how large values are, and which names were
// missed. The misses of a large batch are not remembered: it takes its time by itself.
func (b *batcher) note(names []string, results []readResult) {
	const small = 16
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes, found := 0, 0
	for i, r := range results {
		switch {
		case r.err != nil:
		case r.reading.Found:
			bytes += min(len(r.reading.Entry.Payload), 5*maxBatchBytes/4) // more fills a batch no fuller
			found++
			b.misses.forget(names[i])
		case len(results) <= small:
			b.missed(names[i])
		}
	}
	if found > 0 {
		b.bytes += (bytes/found - b.bytes) / 4
	}
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
