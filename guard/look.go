package guard

import "time"

// A waiting flight is woken by its holder's outcome. It also looks at the holder from time to
// time, as the holder may die and wake-ups may get lost. The looks of a fleet cost Redis the
// same however many processes wait: each process looks the less often the more there are
// (docs/scaling.md).
const (
	// fleetLookEvery is the mean time between two looks of a fleet at one holder.
	fleetLookEvery = 50 * time.Millisecond
	// lookEvery is the shortest mean time between two looks of one process.
	lookEvery = 250 * time.Millisecond
	// lateLook is the pause before the first look if callers have come since the wait began:
	// they can have the outcome of a holder that was seen after they came.
	lateLook = 50 * time.Millisecond
	// noLookBefore: most fetches are over by then.
	noLookBefore = 100 * time.Millisecond
	// secondLook is the pause after a look that found the holder unwatched, as a slot that has
	// just moved looks the same once.
	secondLook = 50 * time.Millisecond
)

// lookAfter is how long a flight waits before it looks at its holder, where so many processes
// wait. draw is uniform in [0, 1). The first looks of a fleet are spread over the time in which
// each process looks once, as processes begin to wait at the same moment. Few processes look
// again at the end of the lease, of which so much is left. Of many, one is soon due anyway.
func lookAfter(waiting int, first bool, left time.Duration, draw float64) time.Duration {
	every := max(lookEvery, time.Duration(waiting)*fleetLookEvery)
	spread := func(d time.Duration) time.Duration { return time.Duration(draw * float64(d)) }
	d := every*3/4 + spread(every/2)
	if first {
		d = noLookBefore + spread(every)
	}
	if every > lookEvery {
		return d
	}
	return min(d, left+time.Millisecond)
}
