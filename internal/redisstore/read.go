package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// reads are names to be read on one node: entries, and records of tags. When their request
// is answered they hold what was found.
type reads struct {
	entries []string
	records []string
	readers []store.Reader // told when the command is sent

	values []value // by place in entries
	found  []found // by place in records
	asOf   time.Time
}

// A value is the bytes under a name; none are an empty string.
type value struct {
	bytes string
	err   error // the client's
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
	return &queue{
		n: n, send: n.sendReads, side: 4, few: 8, full: 6, weight: fullNames, bytes: fullReadBytes,
		wake: make(chan struct{}, maxParked),
	}
}

// sendReads reads the names of all requests: in one pipeline, with the node's TIME at its
// end where that is due.
func (n *node) sendReads(ctx context.Context, pipe redis.Pipeliner, rs []*request) error {
	all := reads{}
	for _, r := range rs {
		all.entries = append(all.entries, r.reads.entries...)
		all.records = append(all.records, r.reads.records...)
		for _, to := range r.reads.readers {
			to.Sending()
		}
	}
	if err := n.read(ctx, pipe, &all); err != nil {
		return classify("read", err)
	}
	n.noteSizes(all.values)
	for _, r := range rs {
		i, j := len(r.reads.entries), len(r.reads.records)
		r.reads.values, all.values = all.values[:i:i], all.values[i:]
		r.reads.found, all.found = all.found[:j:j], all.found[j:]
		r.reads.asOf = all.asOf
	}
	return nil
}

// read carries the commands out.
func (n *node) read(ctx context.Context, pipe redis.Pipeliner, q *reads) error {
	together := n.single && !n.s.noMGET.Load()
	gets, mgets := q.commands(ctx, pipe, together)
	var now *redis.TimeCmd
	sent := time.Now()
	if n.clock.due(sent) {
		now = redis.NewTimeCmd(ctx, "time")
		_ = pipe.Process(ctx, now)
	}
	records := q.recordCommands(ctx, pipe)
	_, err := pipe.Exec(ctx)
	q.asOf = time.Now()
	if now != nil {
		if now.Err() == nil {
			n.clock.set(store.Instant(now.Val().UnixMicro()), sent, q.asOf)
		} else if err == nil || n.clock.now(q.asOf) == 0 {
			return now.Err() // nothing can be dated without it
		}
	}
	if err != nil && !answers(gets, mgets, records) {
		return err
	}
	if together && slices.ContainsFunc(mgets, func(c *redis.StringSliceCmd) bool {
		return errors.Is(n.classify("read", c.Err()), store.ErrRefused)
	}) {
		n.s.noMGET.Store(true)
		return n.read(ctx, pipe, q)
	}
	q.values = make([]value, len(q.entries))
	for i := range q.values {
		q.values[i] = valueAt(i, gets, mgets)
	}
	q.found = foundRecords(n, records)
	return nil
}

// commands adds those that read the entries: several by MGET where they may go together,
// otherwise each by a GET.
func (q *reads) commands(ctx context.Context, pipe redis.Pipeliner, together bool) (gets []*getCmd, mgets []*redis.StringSliceCmd) {
	n := len(q.entries)
	if together && n > 1 {
		args := make([]any, 0, n+n/mgetNames+1)
		for names := range slices.Chunk(q.entries, mgetNames) {
			from := len(args)
			args = append(args, "mget")
			for i := range names {
				args = append(args, (*keyArg)(&names[i]))
			}
			c := redis.NewStringSliceCmd(ctx, args[from:len(args):len(args)]...)
			c.SetFirstKeyPos(1)
			mgets = append(mgets, c)
			_ = pipe.Process(ctx, c)
		}
		return nil, mgets
	}
	gets = make([]*getCmd, n)
	for i := range q.entries {
		gets[i] = newGet(ctx, &q.entries[i])
		_ = pipe.Process(ctx, gets[i])
	}
	return gets, nil
}

func valueAt(i int, gets []*getCmd, mgets []*redis.StringSliceCmd) value {
	if gets != nil {
		bytes, err := gets[i].Result()
		return value{bytes, err}
	}
	values, err := mgets[i/mgetNames].Result()
	i %= mgetNames
	if err == nil && i >= len(values) {
		err = fmt.Errorf("%w: MGET answered %d values", store.ErrDamaged, len(values))
	}
	if err != nil {
		return value{err: err}
	}
	return value{bytes: values[i]}
}

// answers reports whether the server answered, be it with errors for some names only: a
// key of a foreign type, or a refused MGET. A command without an error may be one that a
// client's hook has kept back.
func answers(gets []*getCmd, mgets []*redis.StringSliceCmd, records []*redis.SliceCmd) bool {
	return slices.ContainsFunc(gets, func(c *getCmd) bool {
		return c.replied || redis.HasErrorPrefix(c.Err(), "WRONGTYPE")
	}) || slices.ContainsFunc(mgets, func(c *redis.StringSliceCmd) bool {
		return len(c.Val()) > 0 || isRefusal(c.Err())
	}) || slices.ContainsFunc(records, func(c *redis.SliceCmd) bool {
		return len(c.Val()) > 0 || redis.HasErrorPrefix(c.Err(), "WRONGTYPE")
	})
}

// noteSizes keeps the mean size of values, by which a batch of reads is full.
func (n *node) noteSizes(values []value) {
	bytes, count := 0, 0
	for _, v := range values {
		if len(v.bytes) > 0 {
			bytes, count = bytes+min(len(v.bytes), fullReadBytes), count+1
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

func newGet(ctx context.Context, name *string) *getCmd {
	c := &getCmd{StringCmd: redis.NewStringCmd(ctx, "get", (*keyArg)(name))}
	c.SetFirstKeyPos(1)
	return c
}

// SetErr implements [redis.Cmder].
func (c *getCmd) SetErr(err error) {
	if err == redis.Nil {
		err = nil
	}
	c.replied = err == nil
	c.StringCmd.SetErr(err)
}

// A keyArg is a name as an argument: a pointer needs no allocation. A printed command
// shows the name.
type keyArg string

func (k *keyArg) String() string { return string(*k) }

// MarshalBinary implements [encoding.BinaryMarshaler].
func (k *keyArg) MarshalBinary() ([]byte, error) { return bytesOf(string(*k)), nil }

// bytesOf is a string's bytes without a copy. The client made the strings of replies of
// bytes that nothing else refers to; names are only read.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

var errWrongType = fmt.Errorf("%w: the key holds a Redis value of another type", store.ErrDamaged)

// reading makes r, which is zero, the reading of the i-th entry. Its error is classified.
func (q *reads) reading(n *node, i int, r *store.Reading) error {
	v := q.values[i]
	switch {
	case v.err == nil:
		r.Parse(bytesOf(v.bytes), n.clock.now(q.asOf))
		return nil
	case redis.HasErrorPrefix(v.err, "WRONGTYPE"):
		r.Damage = errWrongType
		return nil
	}
	return n.classify("read", v.err)
}

// Read implements [store.Store].
func (s *Store) Read(ctx context.Context, key string, to store.Reader) {
	name := s.names.entry(key)
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
	t := &taggedRead{s: s, n: n, to: to, name: name, known: s.carried.of(name)}
	t.send(ctx)
}

// ReadMany implements [store.Store]. On each node it is one pipeline for every 2000 keys:
// of MGETs on a single server, of GETs in a cluster or where MGET is refused. To an MGET a
// key of a foreign type is absent: it is no Damage, and the next fill overwrites it all the
// same.
func (s *Store) ReadMany(ctx context.Context, prefix string, keys []string, each func(i int, r *store.Reading, err error)) {
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
		_, err := x.n.await(ctx, x.r)
		for j, i := range x.places {
			if lent = (store.Reading{}); err == nil {
				err := x.r.reads.reading(x.n, j, &lent)
				switch {
				case err != nil:
					each(i, nil, err)
				case lent.Tagged():
					tagged, readings = append(tagged, i), append(readings, lent.Keep())
				default:
					each(i, &lent, nil)
				}
				continue
			}
			each(i, nil, err)
		}
	}
	errs := s.checkTags(ctx, readings)
	for j, i := range tagged {
		if errs[j] != nil {
			each(i, nil, errs[j])
		} else {
			each(i, readings[j], nil)
		}
	}
}

// at returns the names of some places.
func at(names []string, places []int) []string {
	if len(places) == len(names) {
		return names
	}
	some := make([]string, len(places))
	for j, i := range places {
		some[j] = names[i]
	}
	return some
}
