package cache

import (
	"slices"
	"sync"
	"time"
)

// A Request is one key of [Store.AcquireMany].
type Request struct {
	Key string
	Ask Ask
}

// Acquired is what became of a [Request]: an answer, or an error.
type Acquired struct {
	Answer Answer
	Err    error
}

// A Return gives one of many leases back: by Fill if it has an Entry, by Fail if
// it is Failed, or by Decline if it is also Declined, else by Release.
type Return struct {
	Lease *Lease

	Entry *Entry // Fill

	Failed   bool          // Fail or Decline
	Declined bool          // Decline
	Failure  []byte        // of either
	Pause    time.Duration // of either
}

// Returned is what became of a [Return]: what Fill, Fail or Decline would have answered,
// and true for a Release that was carried out.
type Returned struct {
	OK  bool
	Err error
}

const (
	// manyKeys go in one pipeline, or one MGET. A call for more takes several, one
	// after the other on each node.
	manyKeys = 2000
	// manyBytes of entries to be stored go in one pipeline.
	manyBytes = 4 << 20
	// timeoutKeys is how many keys of a call have RedisTimeout between them.
	timeoutKeys = 250
)

// manyTimeout bounds a call for so many keys: a thousand scripts take Redis
// tens of milliseconds, without there being anything wrong.
func (s *Redis) manyTimeout(keys int) time.Duration {
	return s.opts.RedisTimeout * time.Duration(max(1, (keys+timeoutKeys-1)/timeoutKeys))
}

// onNodes has f deal with the names, given by their places, that each node
// serves: all nodes at once. Names of unknown places are given to failed.
func (s *Redis) onNodes(names []string, failed func(i int, err error), f func(n *node, places []int)) {
	groups := map[*node][]int{}
	if t, ok := s.topo.(*single); ok {
		all := make([]int, len(names))
		for i := range all {
			all[i] = i
		}
		groups[t.n] = all
	} else {
		for i, name := range names {
			n, err := s.topo.node(name)
			if err != nil {
				failed(i, err)
				continue
			}
			groups[n] = append(groups[n], i)
		}
	}
	if len(groups) == 1 {
		for n, places := range groups {
			f(n, places)
		}
		return
	}
	var wg sync.WaitGroup
	for n, places := range groups {
		wg.Go(func() { f(n, places) })
	}
	wg.Wait()
}

// chunks cuts places into parts that may go together: manyKeys at most, and
// manyBytes by their sizes, where those matter.
func chunks(places []int, size func(i int) int) [][]int {
	var parts [][]int
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
		parts = append(parts, slices.Clip(places[:n]))
		places = places[n:]
	}
	return parts
}
