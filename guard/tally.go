package guard

import (
	"sync/atomic"
	"unsafe"
)

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
