package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// reads are names to be read on one node: entries, and records of tags.
type reads struct {
	entries []string
	records []string
	reader  *entryRead // told when the command is sent; nil: none

	// Once the request is answered: the batch that it went in, and where its entries begin
	// there.
	batch *readBatch
	entry int

	memory *readBatch // of the batch, if the request goes alone; nil: none
}

// A readBatch is the commands of a batch of reads.
type readBatch struct {
	gets    []getCmd
	one     [1]getCmd // the memory of gets and of its words, if it is one
	words   [2]any
	mgets   []*redis.StringSliceCmd // in place of gets
	records []*redis.SliceCmd
	places  map[string]int // of the records, by name, if there are several requests
	now     store.Instant  // the node's time, after the answer
}

const (
	// A batch of reads is full with so many names, or with values of so many bytes: of
	// larger ones, the server writes some while the process reads others.
	fullNames     = 256
	fullReadBytes = 256 << 10
	// mgetNames go in one MGET. The server can look the next ones up while the client takes
	// in the values of the first.
	mgetNames = 256
)

func newReadQueue(n *node) *queue {
	return newQueue(n, batchLimits{weight: fullNames, bytes: fullReadBytes, full: 6, side: 4, few: 8}, n.sendReads)
}

// sendReads reads the names of all requests.
func (n *node) sendReads(ctx context.Context, pipe redis.Pipeliner, rs []*request) error {
	for _, r := range rs {
		if r.reads.reader != nil {
			r.reads.reader.Sending()
		}
	}
	b, err := n.read(ctx, pipe, rs)
	if err != nil {
		return classify("read", err)
	}
	n.noteSizes(b)
	entry := 0
	for _, r := range rs {
		r.reads.batch, r.reads.entry = b, entry
		entry += len(r.reads.entries)
	}
	return nil
}

// read sends one pipeline: the entries, then the node's TIME where that is due, then the
// records, which are so never older than the entries that they judge.
func (n *node) read(ctx context.Context, pipe redis.Pipeliner, rs []*request) (*readBatch, error) {
	entries, records := 0, 0
	for _, r := range rs {
		entries, records = entries+len(r.reads.entries), records+len(r.reads.records)
	}
	b := rs[0].reads.memory
	if b == nil || len(rs) > 1 {
		b = &readBatch{}
	}
	together := n.single && entries > 1 && !n.noMGET.Load()
	if together {
		b.addMGETs(ctx, rs, entries)
	} else {
		b.addGETs(ctx, rs, entries)
	}
	var now *redis.TimeCmd
	sent := time.Now()
	if n.clock.due(sent) {
		now = redis.NewTimeCmd(ctx, "time")
	}
	if records > 0 {
		b.addRecords(ctx, rs, records)
	}
	err := n.exec(ctx, pipe, b, now)
	answered := time.Now()
	if now != nil && now.Err() == nil && !now.Val().IsZero() {
		n.clock.set(store.Instant(now.Val().UnixMicro()), sent)
	}
	if err != nil && !b.isAnswered() {
		return nil, err
	}
	if b.now = n.clock.now(answered); b.now == 0 {
		return nil, cmp.Or(now.Err(), err, errNoTime)
	}
	if together && slices.ContainsFunc(b.mgets, func(c *redis.StringSliceCmd) bool { return isRefusal(c.Err()) }) {
		n.noMGET.Store(true)
		return n.read(ctx, pipe, rs)
	}
	return b, nil
}

// exec sends the commands of a batch and waits for their answers. It returns an error if one
// of them failed.
func (n *node) exec(ctx context.Context, pipe redis.Pipeliner, b *readBatch, now *redis.TimeCmd) error {
	if len(b.gets) == 1 && now == nil && len(b.records) == 0 {
		return n.s.client.Process(ctx, &b.gets[0])
	}
	for i := range b.gets {
		_ = pipe.Process(ctx, &b.gets[i])
	}
	for _, c := range b.mgets {
		_ = pipe.Process(ctx, c)
	}
	if now != nil {
		_ = pipe.Process(ctx, now)
	}
	for _, c := range b.records {
		_ = pipe.Process(ctx, c)
	}
	_, err := pipe.Exec(ctx)
	return err
}

var errNoTime = errors.New("cache: TIME was not answered")

func (b *readBatch) addGETs(ctx context.Context, rs []*request, n int) {
	b.gets = b.one[:0]
	args := b.words[:0]
	if n > 1 {
		b.gets, args = make([]getCmd, 0, n), make([]any, 0, 2*n)
	}
	for _, r := range rs {
		for i := range r.reads.entries {
			args = append(args, "get", (*keyArg)(&r.reads.entries[i]))
			b.gets = append(b.gets, getCmd{StringCmd: redis.NewStringCmd(ctx, args[len(args)-2:len(args):len(args)]...)})
			b.gets[len(b.gets)-1].SetFirstKeyPos(1)
		}
	}
}

func (b *readBatch) addMGETs(ctx context.Context, rs []*request, n int) {
	args := make([]any, 0, n+1+n/mgetNames)
	from := 0
	flush := func() {
		c := redis.NewStringSliceCmd(ctx, args[from:len(args):len(args)]...)
		c.SetFirstKeyPos(1)
		b.mgets = append(b.mgets, c)
		from = len(args)
	}
	for _, r := range rs {
		for i := range r.reads.entries {
			switch len(args) - from {
			case 0:
				args = append(args, "mget")
			case 1 + mgetNames:
				flush()
				args = append(args, "mget")
			}
			args = append(args, (*keyArg)(&r.reads.entries[i]))
		}
	}
	flush()
}

// value is the bytes under a name; none are an empty string. The error is the client's.
func (b *readBatch) value(i int) (string, error) {
	if b.mgets == nil {
		return b.gets[i].Result()
	}
	values, err := b.mgets[i/mgetNames].Result()
	i %= mgetNames
	if err == nil && i >= len(values) {
		err = fmt.Errorf("%w: MGET answered %d values", store.ErrDamaged, len(values))
	}
	if err != nil {
		return "", err
	}
	return values[i], nil
}

// isAnswered reports whether the server answered, be it with errors for some names only: a
// key of a foreign type, or a refused MGET. A command without an error may be one that a
// client's hook has kept back.
func (b *readBatch) isAnswered() bool {
	for i := range b.gets {
		if c := &b.gets[i]; c.replied || redis.HasErrorPrefix(c.Err(), "WRONGTYPE") {
			return true
		}
	}
	return slices.ContainsFunc(b.mgets, func(c *redis.StringSliceCmd) bool {
		return len(c.Val()) > 0 || isRefusal(c.Err())
	}) || slices.ContainsFunc(b.records, func(c *redis.SliceCmd) bool {
		return len(c.Val()) > 0 || redis.HasErrorPrefix(c.Err(), "WRONGTYPE")
	})
}

// noteSizes keeps the mean size of values, by which a batch of reads is full.
func (n *node) noteSizes(b *readBatch) {
	bytes, count := 0, 0
	note := func(v string) {
		if len(v) > 0 {
			bytes, count = bytes+min(len(v), fullReadBytes), count+1
		}
	}
	for i := range b.gets {
		note(b.gets[i].Val())
	}
	for _, c := range b.mgets {
		for _, v := range c.Val() {
			note(v)
		}
	}
	if count > 0 {
		mean := n.valueSize.Load()
		n.valueSize.Store(mean + (int64(bytes/count)-mean)/4)
	}
}

// A getCmd is a GET to which it is no error to find nothing: the client would look at
// length whether to repeat it.
type getCmd struct {
	*redis.StringCmd
	replied bool
}

// SetErr implements [redis.Cmder].
func (c *getCmd) SetErr(err error) {
	if err == redis.Nil {
		err = nil
	}
	c.replied = err == nil
	c.StringCmd.SetErr(err)
}

var errWrongType = fmt.Errorf("%w: the key holds a Redis value of another type", store.ErrDamaged)

// reading makes r, which is zero, the reading of the i-th entry. Its error is classified.
func (q *reads) reading(n *node, i int, r *store.Reading) error {
	value, err := q.batch.value(q.entry + i)
	switch {
	case err == nil:
		r.Parse(bytesOf(value), q.batch.now)
		return nil
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		r.Damage = errWrongType
		return nil
	}
	return n.classify("read", err)
}

// values are read and changed as a caller asks, without a lease.
type values struct {
	*core
	ledger *ledger
	tags   *tags
	feeds  *store.Feeds
}

// An entryRead is the read of one entry and, if the entry carries tags, of their records:
// together, if the entry carried the same tags when it was last read, or else one after the
// other.
type entryRead struct {
	s       *tags
	n       *node
	to      store.Reader
	request request
	reads   reads
	alone   readBatch
	reading store.Reading
	name    [1]string
	known   *carried // the tags that the entry is expected to carry; nil: none
	others  []string // the names of their records on other nodes
	lookUp  *lookUp  // of others, once the read is sent; nil: there are none
}

// Sending implements [store.Reader]. The look-up of the records on other nodes begins now: a
// caller that joins the read before may come after the deletion of a tag.
func (t *entryRead) Sending() {
	t.to.Sending()
	if len(t.others) > 0 {
		t.lookUp = t.s.startLookUp(context.WithoutCancel(t.request.values), t.others)
	}
}

// Read implements [store.Store].
func (s *values) Read(ctx context.Context, prefix, key string, to store.Reader) {
	name := s.names.entryOf(prefix, key)
	n, err := s.topo.node(name)
	switch {
	case s.closing.Load():
		err = store.ErrClosed
	case err == nil && !n.breaker.allow():
		err = n.away()
	}
	if err != nil {
		to.Answered(nil, err)
		return
	}
	t := &entryRead{s: s.tags, n: n, to: to, name: [1]string{name}, known: s.tags.carried.of(name)}
	t.reads.entries, t.reads.reader, t.reads.memory = t.name[:], t, &t.alone
	if t.known != nil {
		t.reads.records, t.others = s.tags.split(n, t.known.records)
	}
	t.request.reads, t.request.values, t.request.then = &t.reads, ctx, t
	t.request.weight, t.request.bytes = 1, int(n.valueSize.Load())
	n.reads.submit(&t.request)
}

// ended takes in the entry.
func (t *entryRead) ended(r *request) {
	if r.err != nil {
		t.to.Answered(nil, r.err)
		return
	}
	reading := &t.reading
	if err := t.reads.reading(t.n, 0, reading); err != nil {
		t.to.Answered(nil, err)
		return
	}
	if !reading.Tagged() {
		if t.known != nil && reading.Found {
			t.s.carried.forget(t.known)
		}
		t.to.Answered(reading, nil)
		return
	}
	tags := reading.Entry.Tags
	if t.known == nil || !slices.Equal(t.known.tags, tags) {
		t.known = &carried{t.name[0], tags, t.s.recordsOf(tags)}
		t.s.carried.remember(t.known)
		t.reads.records, t.lookUp = nil, t.s.startLookUp(context.WithoutCancel(r.values), t.known.records)
	}
	if t.lookUp == nil || t.lookUp.hasEnded() {
		t.judge(reading)
	} else if !t.s.spawnCall(func() { t.judge(reading) }) {
		t.to.Answered(nil, store.ErrClosed)
	}
}

// judge answers the read by the records of the entry's tags, for which it may have to wait.
func (t *entryRead) judge(reading *store.Reading) {
	records := make([]found, len(t.reads.records), len(t.known.records))
	for i := range records {
		records[i] = t.reads.found(t.n, i)
	}
	if t.lookUp != nil {
		records = append(records, t.lookUp.await(context.Background())...)
	}
	if err := judge(reading, records); err != nil {
		t.to.Answered(nil, err)
		return
	}
	t.to.Answered(reading, nil)
}

// ReadMany implements [store.Store]. On each node it is one pipeline for every 2000 keys:
// of MGETs on a single server, of GETs in a cluster or where MGET is refused. To an MGET a
// key of a foreign type is absent: it is no Damage, and the next fill overwrites it all the
// same.
func (s *values) ReadMany(ctx context.Context, prefix string, keys []string, each func(i int, r *store.Reading, err error)) {
	if err := s.ready(ctx); err != nil {
		for i := range keys {
			each(i, nil, err)
		}
		return
	}
	var tagged []int
	var readings []*store.Reading
	var lent store.Reading
	names := s.names.entries(prefix, keys)
	xs := s.exchange(ctx, names, nil, func(i int, err error) { each(i, nil, err) }, func(n *node, places []int) (*queue, *request) {
		return n.reads, &request{
			reads: &reads{entries: at(names, places)}, weight: len(places), bytes: int(n.valueSize.Load()) * len(places),
		}
	})
	for _, x := range xs {
		_, failed := x.await(ctx)
		for j, i := range x.places {
			lent = store.Reading{}
			err := failed
			if err == nil {
				err = x.r.reads.reading(x.n, j, &lent)
			}
			switch {
			case err != nil:
				each(i, nil, err)
			case lent.Tagged():
				tagged, readings = append(tagged, i), append(readings, lent.Keep())
			default:
				each(i, &lent, nil)
			}
		}
	}
	errs := s.tags.checkTags(ctx, readings)
	for j, i := range tagged {
		if errs[j] != nil {
			each(i, nil, errs[j])
		} else {
			each(i, readings[j], nil)
		}
	}
}
