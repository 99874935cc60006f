package redisstore

import "context"

const (
	// manyKeys go in one pipeline. A call for more takes several on a node.
	manyKeys = 2000
	// manyBytes of entries to be stored go in one pipeline.
	manyBytes = 4 << 20
)

// An exchanged is one of the requests that a call for many keys was split into.
type exchanged struct {
	n      *node
	q      *queue
	r      *request
	places []int // of its keys in the call
}

func (x *exchanged) await(ctx context.Context) (fate, error) { return x.q.await(ctx, x.r) }

// exchange starts the requests for names, which stand for the keys of a call: those of one
// node together, in parts of manyKeys and, by size, of manyBytes. Names without a known
// node are given to failed. The requests run side by side; await each.
func (s *core) exchange(ctx context.Context, names []string, size func(i int) int, failed func(i int, err error), build func(n *node, places []int) (*queue, *request)) []exchanged {
	var xs []exchanged
	for _, g := range s.byNode(names, failed) {
		for places := g.places; len(places) > 0; {
			k := fitting(places, size)
			part := places[:k:k]
			places = places[k:]
			q, r := build(g.n, part)
			q.start(ctx, r)
			xs = append(xs, exchanged{g.n, q, r, part})
		}
	}
	return xs
}

// A group is the places of the names that one node serves.
type group struct {
	n      *node
	places []int
}

func (s *core) byNode(names []string, failed func(i int, err error)) (groups []group) {
	if t, ok := s.topo.(*single); ok {
		all := make([]int, len(names))
		for i := range all {
			all[i] = i
		}
		return []group{{t.n, all}}
	}
	at := map[*node]int{}
	for i, name := range names {
		n, err := s.topo.node(name)
		if err != nil {
			failed(i, err)
			continue
		}
		g, known := at[n]
		if !known {
			g = len(groups)
			at[n], groups = g, append(groups, group{n: n})
		}
		groups[g].places = append(groups[g].places, i)
	}
	return groups
}

// fitting is how many of the places, one at least, may go together.
func fitting(places []int, size func(i int) int) (n int) {
	bytes := 0
	for n < len(places) && n < manyKeys {
		if size != nil {
			bytes += size(places[n])
		}
		if n > 0 && bytes > manyBytes {
			break
		}
		n++
	}
	return n
}

// at returns the elements of some places.
func at[T any](all []T, places []int) []T {
	if len(places) == len(all) {
		return all
	}
	some := make([]T, len(places))
	for j, i := range places {
		some[j] = all[i]
	}
	return some
}

// An answeredCall is the answer to one of several scripts.
type answeredCall struct {
	value any
	fate  fate
	err   error // classified
}

// runAll carries scripts out: those of one node in a pipeline, the nodes side by side.
func (s *core) runAll(ctx context.Context, op string, calls []invocation) []answeredCall {
	answers := make([]answeredCall, len(calls))
	names := make([]string, len(calls))
	for i := range calls {
		names[i] = calls[i].key()
	}
	xs := s.exchange(ctx, names, nil, func(i int, err error) { answers[i].err = err }, func(n *node, places []int) (*queue, *request) {
		return n.scripts, scriptRequest(nil, at(calls, places)...)
	})
	for _, x := range xs {
		fate, err := x.await(ctx)
		for j, i := range x.places {
			if fate != gotAnswer || err != nil {
				answers[i] = answeredCall{nil, fate, err}
				continue
			}
			a := s.settled(ctx, x.n, calls[i], x.r.scripts.replies[j], nil)
			answers[i] = answeredCall{a.value, fate, x.n.classify(op, a.err)}
		}
	}
	return answers
}
