package guard

import "sync/atomic"

// A foresight guesses whether a key is stored, by the guard's last reads:
// after a row of flights for keys that were not, the next one won't be, either. A
// flight that foresees a miss asks for the lease unread, as the answer brings the
// entry if there is one after all: one round trip less if the guess is right, and a
// script in place of a GET if it is wrong. The zero foresight expects to find
// each key. It is safe for concurrent use.
type foresight struct{ row atomic.Int32 }

// missesInARow is the number of misses after which the next one is foreseen. It is so large
// that hardly any caller is misled where half of the keys are stored.
const missesInARow = 16

func (f *foresight) miss() bool { return f.row.Load() >= missesInARow }

// met takes in whether a key was stored. Where keys are found, it is only read
// from.
func (f *foresight) met(found bool) {
	switch row := f.row.Load(); {
	case found && row != 0:
		f.row.Store(0)
	case !found && row < missesInARow:
		f.row.Add(1)
	}
}
