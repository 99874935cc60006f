package guard

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/klauspost/compress/s2"
	"github.com/maypok86/otter/v2"

	"github.com/stampedeguard/stampede/internal/store"
)

// Near configures a guard's near cache: decoded values in this process, which
// cost tens of nanoseconds to get. It is kept coherent by the store: every Set,
// Delete and Expire reaches every process, and while a process can't be sure to
// hear of them it uses no near value. It is off unless one of MaxEntries and
// MaxBytes is set.
//
// Coherence takes the time of a message. A Get that starts after a Delete
// returned in another process may still return the near value until that message
// arrives; a link that swallows everything is noticed within two seconds.
type Near struct {
	// MaxEntries bounds the number of values. At most one of it and MaxBytes.
	MaxEntries int
	// MaxBytes bounds the encoded size of the values, before compression, and of
	// their keys.
	MaxBytes int
	// TTL bounds how long a value is used without asking Redis. It also bounds the age of
	// a value after its invalidation was lost, in a failover for example. At least 1 ms.
	// Default 10 s, and never longer than the value is fresh.
	TTL time.Duration
}

func (n Near) on() bool { return n.MaxEntries != 0 || n.MaxBytes != 0 }

func (n Near) validate() error {
	var errs []error
	if n.MaxEntries < 0 || n.MaxBytes < 0 || n.MaxEntries > 0 && n.MaxBytes > 0 {
		errs = append(errs, fmt.Errorf("guard: Policy.Near has MaxEntries %d and MaxBytes %d: one may be above zero, none below", n.MaxEntries, n.MaxBytes))
	}
	if n.on() && n.TTL < time.Millisecond {
		errs = append(errs, fmt.Errorf("guard: Policy.Near.TTL is %v, must be at least 1ms", n.TTL))
	}
	return errors.Join(errs...)
}

// near is a guard's near cache. Values in it are *V in an any.
type near struct {
	values    *otter.Cache[string, *nearValue]
	coherence *coherence
	ttl       time.Duration
	hits      tally         // lookups that were answered
	evictions atomic.Uint64 // by a bound, not by the time
	bypasses  atomic.Uint64 // lookups without a feed, and those that its epoch ruled out
}

// A nearValue is used only in the feed's epoch in which it was put in.
type nearValue struct {
	value any
	epoch uint64
	since since
	lives time.Duration
	size  uint32
	entry *store.Reading // as it was read at the time at
	at    time.Time
}

// age is the value's age now.
func (v *nearValue) age() time.Duration { return v.entry.Age + time.Since(v.at) }

func newNear(c *coherence, cfg Near) (*near, error) {
	n := &near{ttl: cfg.TTL, coherence: c}
	o := &otter.Options[string, *nearValue]{
		MaximumSize:      cfg.MaxEntries,
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[string, *nearValue]) time.Duration { return e.Value.lives }),
		// Its recorder of statistics would be a quarter of a hit.
		OnAtomicDeletion: func(e otter.DeletionEvent[string, *nearValue]) {
			if e.Cause == otter.CauseOverflow {
				n.evictions.Add(1)
			}
		},
	}
	if cfg.MaxBytes > 0 {
		o.MaximumWeight = uint64(cfg.MaxBytes)
		o.Weigher = func(key string, v *nearValue) uint32 { return v.size + uint32(min(len(key), math.MaxInt32)) }
	}
	var err error
	if n.values, err = otter.New(o); err != nil {
		return nil, fmt.Errorf("guard: Policy.Near: %w", err)
	}
	return n, nil
}

// get returns the value if it may be used, or nil.
func (n *near) get(key string) *nearValue {
	v, ok := n.values.GetIfPresent(key)
	if !ok {
		if n.coherence.feed.Epoch() == 0 {
			n.bypasses.Add(1)
		}
		return nil
	}
	if v.epoch != n.coherence.feed.Epoch() {
		n.bypasses.Add(1)
		return nil
	}
	// The value may have been put in just before an invalidation that it ought to have met,
	// and may not be taken out yet.
	if v.since.changed() {
		return nil
	}
	return v
}

// put keeps a value for as long as it is fresh and not due to be refreshed,
// unless it may have been invalidated since the ticket was taken. It was read, or
// filled, not before the time at.
func (n *near) put(key string, t ticket, value any, r *store.Reading, due time.Duration, at time.Time) {
	if t.epoch == 0 || r == nil || !r.Fresh() {
		return
	}
	age := r.Age + time.Since(at)
	lives := min(n.ttl, due-age)
	if lives <= 0 {
		// Its refresh is due, or under way: use it for short times till that is done.
		lives = min(n.ttl, r.Entry.FreshFor-age, whileRefreshing)
	}
	if lives <= 0 {
		return
	}
	since, ok := n.coherence.since(t, r.Entry.Tags)
	if !ok {
		return
	}
	n.values.Set(key, &nearValue{
		value: value, epoch: t.epoch, since: since, lives: lives, entry: r.Keep(), at: at,
		size: uint32(min(encodedSize(&r.Entry), math.MaxInt32)),
	})
}

// whileRefreshing bounds the use of a value that is due to be refreshed.
const whileRefreshing = 20 * time.Millisecond

func (n *near) close() {
	n.values.InvalidateAll()
	n.values.StopAllGoroutines()
}

// encodedSize is the size of an entry's payload before it was compressed, as far as
// can be told.
func encodedSize(e *store.Entry) int {
	if e.Flags&store.FlagCompressed != 0 {
		if n, err := s2.DecodedLen(e.Payload); err == nil {
			return n
		}
	}
	return len(e.Payload)
}

// A tally is a counter that many processors add to at once. Goroutines add to
// different stripes of it, mostly: one counter for all would be fought for at each
// near hit. The zero tally is ready for use.
type tally struct {
	stripes [tallyStripes]struct {
		n atomic.Uint64
		_ [120]byte // its neighbours share no cache line, nor are they fetched with it
	}
}

const tallyStripes = 32

func (t *tally) add() {
	// Where a goroutine's stack is tells it from others for as long as it runs; one
	// that moves only goes to another stripe. Stacks are 2 KiB and more.
	var here byte
	at := uint64(uintptr(unsafe.Pointer(&here))) >> 11
	t.stripes[at*0x9e3779b97f4a7c15>>32%tallyStripes].n.Add(1)
}

func (t *tally) sum() (n uint64) {
	for i := range t.stripes {
		n += t.stripes[i].n.Load()
	}
	return n
}
