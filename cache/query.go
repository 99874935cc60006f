package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
)

// A query reads names by one pipeline: with GET and PTTL, or, where the age of
// what is there is taken to be known from an earlier reading (see ages), by a GET
// or together with others by an MGET.
//
// It is sent, settled, and then gives its readings. Whose version turns out to be
// another than the one whose age is known has to be read again, by a query that
// asks for all ages.
type query struct {
	s       *Redis
	ask     askAge
	names   []string
	records []string // of tags, which are read after the names

	cmds  []readCmd
	mgets []*redis.StringSliceCmd
	found []*redis.SliceCmd // the records
	sent  time.Time
	took  time.Duration // until it was settled
	slips int           // of the clocks, before it was sent
}

// askAge says for which names a query asks for the PTTL.
type askAge byte

const (
	askAll     askAge = iota
	askUnknown        // under whose names no age is known
	askNone           // for none: it is for ages that are unknown to be read again
)

// A readCmd is how one name is read.
type readCmd struct {
	get   getCmd        // or, if it has none, as the place-th of an MGET
	pttl  *redis.IntCmd // nil: it isn't asked for
	mget  int32
	place int32
	age   time.Duration // once settled, if it wasn't asked for
}

// A getCmd is a GET to which it is no error to find nothing: the client would look
// at length whether it ought to be repeated.
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

// A keyArg is a name as an argument, which as a pointer needs no allocation. Who
// prints the command sees the name.
type keyArg string

func (k *keyArg) String() string { return string(*k) }

// MarshalBinary implements [encoding.BinaryMarshaler].
func (k *keyArg) MarshalBinary() ([]byte, error) { return unshared(string(*k)), nil }

// mgetKeys go in one MGET. More are several: Redis can look the next ones up while
// the client takes in the values of the first.
const mgetKeys = 256

// send sends the query, by a pipeline of the caller's. An error is that of all
// names.
func (q *query) send(ctx context.Context, pipe redis.Pipeliner) error {
	_ = pipe.BatchProcess(ctx, q.commands(ctx)...)
	q.sent = time.Now()
	q.slips = q.s.ages.check(q.sent)
	if _, err := pipe.Exec(ctx); err != nil && !q.answered() {
		return err
	}
	return nil
}

// commands are those that read the names, and the records.
func (q *query) commands(ctx context.Context) []redis.Cmder {
	n := len(q.names)
	q.cmds = make([]readCmd, n)
	_, single := q.s.topo.(*single)
	together := single && !q.s.noMGET.Load()
	var known []bool
	if q.ask == askUnknown {
		known = q.s.ages.expects(q.names)
	}
	args, cmds := 4*n, 2*n
	if q.ask == askNone {
		args, cmds = 2*n, n
	}
	l := cmdList{ctx, make([]any, 0, args), make([]redis.Cmder, 0, cmds+len(q.records))}
	var group []int
	for i := range q.names {
		if q.ask == askAll || q.ask == askUnknown && (known == nil || !known[i]) {
			l.get(&q.cmds[i].get, &q.names[i])
			q.cmds[i].pttl = l.pttl(&q.names[i])
		} else if !together {
			l.get(&q.cmds[i].get, &q.names[i])
		} else if group = append(group, i); len(group) == mgetKeys {
			q.mget(&l, group)
			group = group[:0]
		}
	}
	q.mget(&l, group)
	q.found = recordCmds(ctx, q.records)
	for _, c := range q.found {
		l.all = append(l.all, c)
	}
	return l.all
}

// mget reads the names of some places together.
func (q *query) mget(l *cmdList, places []int) {
	switch len(places) {
	case 0:
		return
	case 1:
		l.get(&q.cmds[places[0]].get, &q.names[places[0]])
		return
	}
	l.args = append(l.args, "mget")
	for place, i := range places {
		q.cmds[i].mget, q.cmds[i].place = int32(len(q.mgets)), int32(place)
		l.args = append(l.args, (*keyArg)(&q.names[i]))
	}
	q.mgets = append(q.mgets, l.mget(1+len(places)))
}

// A cmdList makes commands, whose arguments share their memory.
type cmdList struct {
	ctx  context.Context
	args []any
	all  []redis.Cmder
}

// last are the last n arguments.
func (l *cmdList) last(n int) []any { return l.args[len(l.args)-n : len(l.args) : len(l.args)] }

func (l *cmdList) get(c *getCmd, name *string) {
	l.args = append(l.args, "get", (*keyArg)(name))
	c.StringCmd = redis.NewStringCmd(l.ctx, l.last(2)...)
	c.SetFirstKeyPos(1)
	l.all = append(l.all, c)
}

func (l *cmdList) pttl(name *string) *redis.IntCmd {
	l.args = append(l.args, "pttl", (*keyArg)(name))
	c := redis.NewIntCmd(l.ctx, l.last(2)...)
	c.SetFirstKeyPos(1)
	l.all = append(l.all, c)
	return c
}

// mget is a command of the last words, to which a nil is an empty string, which no
// entry is.
func (l *cmdList) mget(words int) *redis.StringSliceCmd {
	c := redis.NewStringSliceCmd(l.ctx, l.last(words)...)
	c.SetFirstKeyPos(1)
	l.all = append(l.all, c)
	return c
}

// answered reports whether the server answered, be it with errors for some keys
// only: a missing key or one of a foreign type, or where MGET is refused. A command
// without an error may be one that a client's hook has kept back.
func (q *query) answered() bool {
	for i := range q.cmds {
		if c := q.cmds[i].get; c.StringCmd != nil && (c.replied || redis.HasErrorPrefix(c.Err(), "WRONGTYPE")) {
			return true
		}
	}
	return slices.ContainsFunc(q.mgets, mgetAnswered) || answeredRecords(q.found)
}

func mgetAnswered(c *redis.StringSliceCmd) bool {
	return len(c.Val()) > 0 || errors.Is(classify("read", c.Err()), ErrRefused)
}

// settle learns the ages that were asked for and finds the others. It returns the
// places of the names that have to be read again.
func (q *query) settle() (again []int) {
	now := time.Now()
	q.took = now.Sub(q.sent)
	ages := &q.s.ages
	ages.check(now)
	asked := 0
	ages.mu.RLock()
	for i := range q.cmds {
		c := &q.cmds[i]
		if c.pttl != nil {
			asked++
		} else if !q.findAge(i, now) {
			again = append(again, i)
		}
	}
	ages.mu.RUnlock()
	if asked > 0 {
		ages.mu.Lock()
		for i := range q.cmds {
			if q.cmds[i].pttl != nil && ages.slips == q.slips {
				q.learnAge(i)
			}
		}
		ages.mu.Unlock()
	}
	return again
}

// findAge answers false if the name's age has to be asked for.
func (q *query) findAge(i int, now time.Time) bool {
	c := &q.cmds[i]
	v, err := q.value(c)
	if err != nil && c.get.StringCmd == nil && errors.Is(classify("read", err), ErrRefused) {
		q.s.noMGET.Store(true)
		return false
	}
	if err != nil || v == "" {
		return true
	}
	if len(v) < HeaderSize {
		return false // damaged: let the other query judge
	}
	version, ttl := versionOf(v)
	age, ok := q.s.ages.find(version, ttl, now)
	c.age = age
	return ok
}

func (q *query) learnAge(i int) {
	c := &q.cmds[i]
	v, err := q.value(c)
	if err != nil || v == "" {
		return
	}
	// An entry whose expiry isn't its own TTL's is left out.
	if len(v) >= HeaderSize {
		version, ttl := versionOf(v)
		if left := c.pttl.Val(); left > 0 && left <= int64(ttl) {
			age := time.Duration(int64(ttl)-left) * time.Millisecond
			q.s.ages.learn(q.names[i], version, ttl, q.sent.Add(-age))
			return
		}
	}
	q.s.ages.unlearn(q.names[i])
}

// versionOf reads the version and the hard TTL, in ms, from an entry's header.
func versionOf(v string) (version Token, ttl uint32) {
	b := unshared(v)
	return Token(b[:TokenSize]), ttlOf(b)
}

// value is what is stored under a name. Nothing is an empty string.
func (q *query) value(c *readCmd) (string, error) {
	if c.get.StringCmd != nil {
		return c.get.Result()
	}
	values, err := q.mgets[c.mget].Result()
	if err == nil && int(c.place) >= len(values) {
		err = fmt.Errorf("%w: MGET answered %d values", ErrDamaged, len(values))
	}
	if err != nil {
		return "", err
	}
	return values[c.place], nil
}

var errWrongType = fmt.Errorf("%w: the key holds a Redis value of another type", ErrDamaged)

// reading makes r, which is zero, the reading of the i-th name. Its error is
// classified.
func (q *query) reading(i int, r *Reading) error {
	c := &q.cmds[i]
	v, err := q.value(c)
	pttl := int64(0)
	if err == nil && c.pttl != nil {
		pttl, err = c.pttl.Result()
	}
	switch {
	case err == nil:
		// -2: the key expired between the GET and the PTTL.
		if v == "" || pttl == -2 || !r.parse(unshared(v)) {
			return nil
		}
		if c.pttl != nil {
			r.setLeft(pttl)
			r.lay(q.took, q.s.manyTimeout(len(q.names)))
		} else {
			r.setAge(c.age)
		}
		return nil
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		r.Damage = errWrongType
		return nil
	}
	return classify("read", err)
}

// unshared is v as bytes. The client made the string of bytes that nobody else
// has: no need to copy them again.
func unshared(v string) []byte { return unsafe.Slice(unsafe.StringData(v), len(v)) }

// again is the query that reads the names of some places, and all records, again.
func (q *query) again(places []int) *query {
	return &query{s: q.s, names: at(q.names, places), records: q.records}
}
