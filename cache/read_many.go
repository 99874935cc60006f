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
func (s *Redis) ReadMany(ctx context.Context, keys []string, each func(i int, r *Reading, err error)) {
	err := ended(ctx)
	if s.closing.Load() {
		err = ErrClosed
	}
	if err != nil {
		for i := range keys {
			each(i, nil, err)
		}
		return
	}
	var mu sync.Mutex
	var parts []*readPart
	names := s.keys.entries(keys)
	s.onNodes(names, func(i int, err error) { each(i, nil, err) }, func(n *node, places []int) {
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
	var tagged taggedReadings
	for _, p := range parts {
		p.judge(func(i int, r *Reading, err error) {
			if err == nil && r.tagged() {
				tagged.add(i, r)
			} else {
				each(i, r, err)
			}
		})
	}
	tagged.judge(ctx, s, each)
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
	q := &query{s: s, ask: askNone, names: names}
	if len(p.places) < len(names) {
		q.names = make([]string, len(p.places))
		for j, i := range p.places {
			q.names[j] = names[i]
		}
	}
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

// sendWithin sends the query in a goroutine of its own, to which it is left if
// there is an error.
func (q *query) sendWithin(ctx context.Context, n *node) error {
	return q.s.readWithin(ctx, n, q.s.manyTimeout(len(q.names)), func(ctx context.Context) error {
		return q.send(ctx, q.s.client.Pipeline())
	})
}

// judge calls each for all readings, which are only lent.
func (p *readPart) judge(each func(i int, r *Reading, err error)) {
	var r Reading
	again := p.again
	for j, i := range p.places {
		if p.first == nil {
			each(i, nil, p.err)
			continue
		}
		q, at, err := p.first, j, error(nil)
		if len(again) > 0 && again[0] == j {
			q, at, err = p.second, len(p.again)-len(again), p.err
			again = again[1:]
		}
		if err == nil {
			r = Reading{}
			err = q.reading(at, &r)
		}
		if err != nil {
			each(i, nil, err)
		} else {
			each(i, &r, nil)
		}
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
