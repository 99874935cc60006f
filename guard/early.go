package guard

import (
	"math"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// dueAt is the age from which a fresh value is refreshed in the background.
//
// It is XFetch (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache
// Stampede Prevention, PVLDB 8(8), 2015) with two changes. XFetch draws for
// each request, so that the earliest of many draws decides, and the more
// requests there are the earlier that is; here one draw is made for each version
// of a value, the same in every process, from the version itself. And XFetch may
// draw less than a fetch takes, so that some callers wait; here the refresh
// starts early enough to be done in time, by the fetch time that was measured:
//
//	gap = took * beta * (1.1 + Exp(1)/2)
//
// The lease decides which process refreshes.
func dueAt(e *store.Entry, beta float64) time.Duration {
	if beta <= 0 || e.Took <= 0 {
		return e.FreshFor
	}
	// FNV-1a over the version, its high bits as a number from 0 (not included) to 1.
	h := uint64(14695981039346656037)
	for _, b := range e.Version {
		h = (h ^ uint64(b)) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd // the finalizer of MurmurHash3: FNV's high bits vary little
	h ^= h >> 33
	u := (float64(h>>11) + 1) / (1 << 53)
	gap := float64(e.Took) * beta * (1.1 - math.Log(u)/2)
	// At most half of the time a value is fresh: a fetch slower than its TTL
	// would otherwise be repeated without end.
	return e.FreshFor - time.Duration(min(gap, float64(e.FreshFor)/2))
}

// due reports whether a fresh reading is to be refreshed. Most are not by far,
// which needs no logarithm: the gap is half of the fresh time at most.
func due(r *store.Reading, beta float64) bool {
	return r.Age >= r.Entry.FreshFor/2 && r.Age >= dueAt(&r.Entry, beta)
}
