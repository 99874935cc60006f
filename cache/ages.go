package cache

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
	"time"
)

// ages remembers when the versions were written that were read, so that reading
// them again needs no PTTL. A version's hard TTL never changes, so its age follows
// from when it was written. It is lossy: what is forgotten is asked for again.
// docs/decisions.md says more. The zero ages is ready for use; ages are safe for
// concurrent use.
type ages struct {
	mu    sync.RWMutex
	sets  []ageSet // nil: nothing was learned yet
	base  time.Time
	wall  time.Time // base, by the wall clock
	slips int       // how often the clocks have parted
	seed  maphash.Seed
	names []uint32 // a part of the hash of those whose versions are known, by another part
}

const (
	ageSets  = 2048 // of ageWays each: 16384 versions in 512 KiB
	ageWays  = 8
	ageNames = 4 * ageSets * ageWays // in 256 KiB: four times as many, as each has one place
	// clockSlip is by how much the wall clock may part from the monotonic one
	// before nothing is believed any more: a machine that was suspended has stopped
	// the latter, and not Redis's.
	clockSlip = time.Second
)

type ageSet [ageWays]struct {
	version Token
	ttl     uint32        // ms: copies that were changed may have another
	name    uint32        // its place in names
	written time.Duration // after base
}

// setOf spreads the versions of one process, whose numbers are in a row, evenly.
func setOf(v Token) int {
	h := binary.BigEndian.Uint64(v[:8])*0x9e3779b97f4a7c15>>40 + binary.BigEndian.Uint64(v[8:])
	return int(h % ageSets)
}

// check forgets everything if the clocks have parted by the time now, and returns
// how often they have. Call it before find. What was asked before they parted may
// not be learned after: the reply may have lain there while the machine slept.
func (a *ages) check(now time.Time) (slips int) {
	a.mu.RLock()
	good, slips := a.runs(now), a.slips
	a.mu.RUnlock()
	if good {
		return slips
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.runs(now) {
		if !a.base.IsZero() {
			a.slips++
		}
		a.sets, a.base, a.wall = nil, now, now.Round(0)
	}
	return a.slips
}

// runs reports whether the clocks have run and not parted. a.mu is held.
func (a *ages) runs(now time.Time) bool {
	return !a.base.IsZero() && (now.Round(0).Sub(a.wall)-now.Sub(a.base)).Abs() <= clockSlip
}

// expects says of which names, by place, the age is expected to be known: one was
// learned for the version that was there. nil: of none.
func (a *ages) expects(names []string) []bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.sets == nil {
		return nil
	}
	var known []bool
	for i, name := range names {
		if place, part := a.hash(name); a.names[place] == part {
			if known == nil {
				known = make([]bool, len(names))
			}
			known[i] = true
		}
	}
	return known
}

// hash returns a name's place in names, and what stands there if it is known.
func (a *ages) hash(name string) (place, part uint32) {
	h := maphash.String(a.seed, name)
	return uint32(h % ageNames), uint32(h>>32) | 1 // nothing is 0
}

// find returns the age of a version with a hard TTL, in ms, at the time now, if it
// is known. a.mu is held for reading.
func (a *ages) find(v Token, ttl uint32, now time.Time) (time.Duration, bool) {
	if a.sets == nil {
		return 0, false
	}
	set := &a.sets[setOf(v)]
	for i := range set {
		if set[i].version == v && set[i].ttl == ttl {
			return now.Sub(a.base) - set[i].written, true
		}
	}
	return 0, false
}

// learn notes that the version that is there under a name was written at a time,
// which may be a round trip too early. Of two times that are told of a version,
// as it was copied to another name with another expiry, the earlier one counts.
// check was called before; a.mu is held.
func (a *ages) learn(name string, v Token, ttl uint32, written time.Time) {
	if a.sets == nil {
		a.sets, a.names, a.seed = make([]ageSet, ageSets), make([]uint32, ageNames), maphash.MakeSeed()
	}
	set := &a.sets[setOf(v)]
	oldest, at := 0, written.Sub(a.base)
	for i := range set {
		if set[i].version == v && set[i].ttl == ttl || set[i].version.IsZero() {
			oldest = i
			break
		}
		if set[i].written < set[oldest].written {
			oldest = i
		}
	}
	if set[oldest].version == v && set[oldest].ttl == ttl {
		at = min(at, set[oldest].written)
	}
	a.names[set[oldest].name] = 0 // or every read of what has given way would be two
	place, part := a.hash(name)
	a.names[place] = part
	set[oldest].version, set[oldest].ttl, set[oldest].written, set[oldest].name = v, ttl, at, place
}

// unlearn notes that under a name is what has no age that could be learned, or
// every read of it would be two. a.mu is held.
func (a *ages) unlearn(name string) {
	if a.sets == nil {
		return
	}
	if place, part := a.hash(name); a.names[place] == part {
		a.names[place] = 0
	}
}
