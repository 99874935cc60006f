package cache

import (
	"context"
	"fmt"
	"sync"
	"unsafe"
)

// ReadMany implements [Store]. On each node it is one pipeline of MGETs for every
// 2000 keys (in a cluster, or where MGET is refused, of GETs), and one more for
// entries whose age isn't known from an earlier reading. So a second call for the
// same warm keys is one round trip, and so is a call for keys that aren't there.
// To an MGET a key of a foreign Redis type isn't there either: it is no Damage,
// but the next fill overwrites it all the same.
func (s *Redis) ReadMany(ctx context.Context, prefix string, keys []string, each func(i int, r *Reading, err error)) {
	err := ended(ctx)
	if s.closing.Load() {
		err = ErrClosed
	}
	if err != nil {
		judgement(each).failed(0, len(keys), err)
		return
	}
	var tagged taggedReadings
	judge := func(i int, r *Reading, err error) {
		if err == nil && r.tagged() {
			tagged.add(i, r)
		} else {
			each(i, r, err)
		}
	}
	names := s.keys.entries(prefix, keys)
	swept := 0
	if t, ok := s.topo.(*single); ok {
		swept = s.sweep(ctx, t.n, names, judge)
	}
	if swept < len(names) {
		s.readNodes(ctx, names[swept:], func(i int, r *Reading, err error) { judge(swept+i, r, err) })
	}
	tagged.judge(ctx, s, each)
}

// A judgement takes what was read of the i-th name: a reading, which is only lent,
// or an error.
type judgement func(i int, r *Reading, err error)

// failed says so of the names from one place to another.
func (j judgement) failed(from, to int, err error) {
	for i := from; i < to; i++ {
		j(i, nil, err)
	}
}

// readNodes reads names from where they are: from several nodes at once.
func (s *Redis) readNodes(ctx context.Context, names []string, judge judgement) {
	var mu sync.Mutex
	var parts []*readPart
	s.onNodes(names, func(i int, err error) { judge(i, nil, err) }, func(n *node, places []int) {
		var err error
		for _, some := range chunks(places, nil) {
			p := &readPart{places: some, err: err} // of one that didn't answer: that won't have changed
			if err == nil {
				p.send(ctx, s, n, names)
				err = p.err
			}
			mu.Lock()
			parts = append(parts, p)
			mu.Unlock()
		}
	})
	for _, p := range parts {
		p.judge(judge)
	}
}

// A readPart is what of a ReadMany goes together.
type readPart struct {
	places []int
	first  *query
	again  []int  // places among its names, of those that were read
	second *query // again
	err    error  // of a node that didn't answer
}

func (p *readPart) send(ctx context.Context, s *Redis, n *node, names []string) {
	q := &query{s: s, ask: askNone, names: at(names, p.places)}
	if p.err = q.sendWithin(ctx, n); p.err != nil {
		return
	}
	p.first, p.again = q, q.settle()
	if len(p.again) == 0 {
		return
	}
	q = q.again(p.again)
	if p.err = q.sendWithin(ctx, n); p.err == nil {
		q.settle()
		p.second = q
	}
}

// at are the names of some places.
func at(names []string, places []int) []string {
	some := make([]string, len(places))
	for j, i := range places {
		some[j] = names[i]
	}
	return some
}

// sendWithin sends the query in a goroutine of its own, to which it is left if
// there is an error.
func (q *query) sendWithin(ctx context.Context, n *node) error {
	return q.s.readWithin(ctx, n, q.s.manyTimeout(len(q.names)), func(ctx context.Context) error {
		return q.send(ctx, q.s.client.Pipeline())
	})
}

func (p *readPart) judge(judge judgement) {
	again := p.again
	var r Reading
	for j, i := range p.places {
		switch {
		case p.first == nil:
			judge(i, nil, p.err)
		case len(again) == 0 || again[0] != j:
			p.first.judge(j, i, &r, judge)
		default:
			if p.second == nil {
				judge(i, nil, p.err)
			} else {
				p.second.judge(len(p.again)-len(again), i, &r, judge)
			}
			again = again[1:]
		}
	}
}

// judge calls it for the j-th name, whose place is i, and lends it r.
func (q *query) judge(j, i int, r *Reading, judge judgement) {
	*r = Reading{}
	if err := q.reading(j, r); err != nil {
		judge(i, nil, err)
	} else {
		judge(i, r, nil)
	}
}

// taggedReadings are those whose tags are to be looked up.
type taggedReadings struct {
	places   []int
	readings []*Reading
}

func (t *taggedReadings) add(i int, r *Reading) {
	t.places, t.readings = append(t.places, i), append(t.readings, r.Keep())
}

func (t *taggedReadings) judge(ctx context.Context, s *Redis, each func(i int, r *Reading, err error)) {
	if len(t.places) == 0 {
		return
	}
	errs := s.checkTags(ctx, t.readings)
	for j, i := range t.places {
		if errs != nil && errs[j] != nil {
			each(i, nil, fmt.Errorf("the entry's tags: %w", errs[j]))
		} else {
			each(i, t.readings[j], nil)
		}
	}
}

// entries is entry for many keys, of which each has the prefix in front. Their names
// share their memory.
func (s keyspace) entries(prefix string, keys []string) []string {
	size := 0
	for _, k := range keys {
		size += len(s.namespace) + len(":{}") + min(len(prefix)+len(k), maxKeyInName)
	}
	before, all := s.namespace+":{"+prefix, make([]byte, 0, size)
	names := make([]string, len(keys))
	for i, k := range keys {
		if !plain(prefix, k) {
			names[i] = s.entry(prefix + k)
			continue
		}
		start := len(all)
		all = append(append(append(all, before...), k...), '}')
		// Nothing is written twice: there is room for all.
		names[i] = unsafe.String(&all[start], len(all)-start)
	}
	return names
}

// plain reports whether prefix+k stands in its names as it is: see entry.
func plain(prefix, k string) bool {
	if len(prefix)+len(k) > maxKeyInName {
		return false
	}
	first := prefix
	if prefix == "" {
		first = k
	}
	return first != "" && first[0] != '}' && first[0] != '%'
}
