package cache

import "sync"

// A readingSlab is memory for some readings of one ReadMany. A few at a time are
// one allocation, and a reading that is kept keeps few others.
type readingSlab [16]Reading

var readingSlabs = sync.Pool{New: func() any { return new(readingSlab) }}

// A readingSource hands out readings of slabs. The zero source is ready for use.
type readingSource struct {
	slab *readingSlab
	used int // of the slab's
}

// next is a zero reading, the same one until it is taken.
func (s *readingSource) next() *Reading {
	if s.slab == nil || s.used == len(s.slab) {
		s.slab, s.used = readingSlabs.Get().(*readingSlab), 0
	}
	r := &s.slab[s.used]
	r.slab = s.slab
	return r
}

func (s *readingSource) taken() { s.used++ }

// Recycle gives the memory of all readings of one ReadMany back, which nobody may
// use any more after; their payloads may be kept. It is for callers that read
// much and often, and never a duty. A store that shares its readings with others
// doesn't have it.
func (s *Redis) Recycle(results []ReadResult) {
	for i := range results {
		r := results[i].Reading
		results[i] = ReadResult{}
		if r == nil || r.slab == nil || r != &r.slab[0] {
			continue // the first of each slab stands for it
		}
		slab := r.slab
		clear(slab[:])
		readingSlabs.Put(slab)
	}
}
