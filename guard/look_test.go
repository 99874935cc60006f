package guard_test

import (
	queue "container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A look is the next of a simulated process.
type look struct {
	at      time.Duration
	process int
}

type agenda []look

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].at < a[j].at }
func (a agenda) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)        { *a = append(*a, x.(look)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// looks simulates processes that begin to wait at the same moment. The k-th that subscribes
// learns of k, and of all of them when it has looked. The lease is renewed.
func looks(processes int, lasts time.Duration) (all []time.Duration) {
	rng := rand.New(rand.NewPCG(1, uint64(processes)))
	const left = 5 * time.Second
	var next agenda
	for k := range processes {
		next = append(next, look{guard.LookAfter(k+1, true, left, rng.Float64()), k})
	}
	queue.Init(&next)
	for next[0].at < lasts {
		all = append(all, next[0].at)
		next[0].at += guard.LookAfter(processes, false, left, rng.Float64())
		queue.Fix(&next, 0)
	}
	return all
}

// perSecond is the rate of the looks from one time to another.
func perSecond(all []time.Duration, from, to time.Duration) float64 {
	n := 0
	for _, at := range all {
		if at >= from && at < to {
			n++
		}
	}
	return float64(n) / (to - from).Seconds()
}

var fleets = []int{1, 2, 5, 8, 16, 32, 1000, 10_000}

// Processes learn of each other only as they look, so the first seconds of a large fleet see
// more looks: as many times more as the logarithm of its size.
func TestLooksOfAFleetDoNotGrow(t *testing.T) {
	for _, processes := range fleets {
		all := looks(processes, 20*time.Minute)
		early, late := perSecond(all, 0, 5*time.Second), perSecond(all, 10*time.Minute, 20*time.Minute)
		t.Logf("%5d processes: %.1f looks a second in the first 5 s, %.1f in the end", processes, early, late)
		if most := 20 * (2 + math.Log(float64(processes))); early > most || late > 22 {
			t.Errorf("%d processes look %.1f times a second at first and %.1f in the end", processes, early, late)
		}
	}
}

func TestLooksOfAFleetAreSpread(t *testing.T) {
	for _, processes := range fleets {
		all := looks(processes, time.Minute)
		busiest := 0
		for i, at := range all {
			end, _ := slices.BinarySearch(all, at+50*time.Millisecond)
			busiest = max(busiest, end-i)
		}
		if busiest > 10+2*int(math.Log2(float64(processes))) {
			t.Errorf("%d processes look %d times within 50 ms", processes, busiest)
		}
	}
}

// A holder counts as dead when a process has looked twice.
func TestLooksFindADeathSoon(t *testing.T) {
	const second = 50 * time.Millisecond
	for _, processes := range fleets {
		all := looks(processes, 2*time.Minute)
		var took []time.Duration
		for death := 10 * time.Millisecond; death < time.Minute; death += 37 * time.Millisecond {
			i, _ := slices.BinarySearch(all, death)
			took = append(took, all[i]+second-death)
		}
		slices.Sort(took)
		median, worst := took[len(took)/2], took[len(took)-1]
		t.Logf("%5d processes: found after %v, %v at worst", processes, median.Round(time.Millisecond), worst.Round(time.Millisecond))
		if median > 250*time.Millisecond || worst > time.Second {
			t.Errorf("%d processes find a death after %v, %v at worst", processes, median, worst)
		}
	}
}

// A fetch of 130 ms is over before most processes look.
func TestShortFetchesAreHardlyLookedAt(t *testing.T) {
	for _, processes := range fleets {
		if n := len(looks(processes, 130*time.Millisecond)); float64(n) > 2+0.15*float64(processes) {
			t.Errorf("%d processes look %d times", processes, n)
		}
	}
}
