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
	r      *request
	places []int // of its keys in the call
}

// exchange starts the requests for names, which stand for the keys of a call: those of one
// node together, in parts of manyKeys and, by size, of manyBytes. Names whose node is
// unknown are given to failed. The requests run side by side; await each.
func (s *Store) exchange(ctx context.Context, names []string, size func(i int) int, failed func(i int, err error), build func(n *node, places []int) (*queue, *request)) []exchanged {
	var xs []exchanged
	for n, places := range s.byNode(names, failed) {
		for _, part := range parts(places, size) {
			q, r := build(n, part)
			n.start(ctx, q, r)
			xs = append(xs, exchanged{n, r, part})
		}
	}
	return xs
}

// byNode groups the places of names by the node that serves each.
func (s *Store) byNode(names []string, failed func(i int, err error)) map[*node][]int {
	groups := map[*node][]int{}
	if t, ok := s.topo.(*single); ok {
		all := make([]int, len(names))
		for i := range all {
			all[i] = i
		}
		groups[t.n] = all
		return groups
	}
	for i, name := range names {
		n, err := s.topo.node(name)
		if err != nil {
			failed(i, err)
			continue
		}
		groups[n] = append(groups[n], i)
	}
	return groups
}

// parts cuts places into parts that may go together.
func parts(places []int, size func(i int) int) [][]int {
	var all [][]int
	for len(places) > 0 {
		n, bytes := 0, 0
		for n < len(places) && n < manyKeys {
			if size != nil {
				bytes += size(places[n])
			}
			if n > 0 && bytes > manyBytes {
				break
			}
			n++
		}
		all = append(all, places[:n:n])
		places = places[n:]
	}
	return all
}
