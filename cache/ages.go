package cache

import (
	"encoding/binary"
	"sync"
	"time"
)

// ages remembers when the versions were written that ReadMany has seen, so that
// reading them again needs no PTTL. A version's hard TTL never changes, so its
// age follows from when it was written. It is lossy: what is forgotten is asked
// for again. docs/decisions.md says more. The zero ages is ready for use.
type ages struct {
	mu   sync.RWMutex
	sets []ageSet // nil: nothing was learned yet
	base time.Time
}

const (
	ageSets = 2048 // of ageWays each: 16384 versions in 384 KiB
	ageWays = 8
	// clockSlip is by how much the wall clock may part from the monotonic one
	// before nothing is believed any more: a machine that was suspended has stopped
	// the latter, and not Redis's.
	clockSlip = time.Second
)

type ageSet [ageWays]struct {
	version Token
	written time.Duration // after base
}

// setOf spreads the versions of one process, whose numbers are in a row, evenly.
func setOf(v Token) int {
	h := binary.BigEndian.Uint64(v[:8])*0x9e3779b97f4a7c15>>40 + binary.BigEndian.Uint64(v[8:])
	return int(h % ageSets)
}

// begin checks the clocks. Call it before find, with the time of the reading.
func (a *ages) begin(now time.Time) {
	a.mu.RLock()
	slipped := a.sets != nil && slip(a.base, now) > clockSlip
	a.mu.RUnlock()
	if slipped {
		a.mu.Lock()
		a.sets = nil
		a.mu.Unlock()
	}
}

func slip(base, now time.Time) time.Duration {
	return (now.Round(0).Sub(base.Round(0)) - now.Sub(base)).Abs()
}

// find returns the age of a version at the time now, if it is known. a.mu is held
// for reading.
func (a *ages) find(v Token, now time.Time) (time.Duration, bool) {
	if a.sets == nil {
		return 0, false
	}
	set := &a.sets[setOf(v)]
	for i := range set {
		if set[i].version == v {
			return now.Sub(a.base) - set[i].written, true
		}
	}
	return 0, false
}

// learn notes the readings' ages, which were asked for at the time sent: at most
// a round trip too old. An entry whose expiry isn't its own TTL's is left out.
func (a *ages) learn(results []readResult, sent time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sets == nil {
		a.sets, a.base = make([]ageSet, ageSets), sent
	}
	for _, res := range results {
		r := res.reading
		if r == nil || !r.Found || r.Left <= 0 || r.Left > r.Entry.TTL {
			continue
		}
		set := &a.sets[setOf(r.Entry.Version)]
		oldest := 0
		for i := range set {
			if set[i].version == r.Entry.Version || set[i].version.IsZero() {
				oldest = i
				break
			}
			if set[i].written < set[oldest].written {
				oldest = i
			}
		}
		set[oldest].version, set[oldest].written = r.Entry.Version, sent.Sub(a.base)-r.Age
	}
}
