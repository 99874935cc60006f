package cachetest

import (
	"github.com/stampedeguard/stampede/cache"
)

var changeTests = []test{
	{"SetReplacesWithAVersionOfItsOwn", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		first := f.set(a, key, "first")
		second := f.set(b, key, "second")
		if first.Version == second.Version || second.Version.IsZero() {
			f.Errorf("versions %v and %v", first.Version, second.Version)
		}
		f.reads(a, key, "second")
	}},

	{"DeleteRemoves", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "v")
		f.ok("Delete", b.Delete(f.ctx, key))
		f.misses(a, key)
		f.ok("Delete of nothing", b.Delete(f.ctx, key))
	}},

	{"ExpireKeepsTheValueAndMarksItStale", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		e := f.set(a, key, "v")
		for range 2 {
			f.ok("Expire", b.Expire(f.ctx, key))
			r := f.reads(a, key, "v")
			if r.Fresh() || r.Entry.Flags != cache.FlagExpired || r.Entry.Version != e.Version || r.Left <= 0 || r.Left > e.TTL {
				f.Errorf("fresh=%v flags=%d version=%v left=%v", r.Fresh(), r.Entry.Flags, r.Entry.Version, r.Left)
			}
		}
		f.fills(a, f.granted(a, key), "new")
		if !f.reads(b, key, "new").Fresh() {
			f.Error("the fill after it is stale")
		}
	}},

	{"ExpireOfNothingStoresNothing", nothing, func(f *fixture) {
		s := f.open()
		f.ok("Expire", s.Expire(f.ctx, key))
		f.misses(s, key)
	}},

	{"ExpireLeavesDamagedBytesAlone", plant, func(f *fixture) {
		s := f.open()
		for _, b := range []string{"short", "foreign bytes that are longer than a header is"} {
			f.Plant(f.T, key, []byte(b))
			f.ok("Expire", s.Expire(f.ctx, key))
			if r := f.read(s, key); r.Found || r.Seen != b[:min(len(b), 16)] {
				f.Errorf("%q became %q", b, r.Seen)
			}
		}
	}},

	// P3: the next fetch need not wait for one whose result is unwanted
	{"NextLeaseIsFreeAtOnceAfterAnInvalidation", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		f.granted(a, key)
		f.ok("Expire", b.Expire(f.ctx, key))
		f.granted(b, key)
		f.ok("Delete", a.Delete(f.ctx, key))
		f.granted(a, key)
		f.set(b, key, "new")
		f.granted(b, key)
	}},

	{"DeleteForgivesNoAttempts", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.granted(a, key)
		f.ok("Delete", b.Delete(f.ctx, key))
		if l := f.granted(b, key); l.Attempt != 2 {
			f.Errorf("attempt %d, want 2", l.Attempt)
		}
	}},

	{"SetForgivesAttempts", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.granted(a, key)
		f.set(b, key, "v")
		if l := f.granted(b, key); l.Attempt != 1 {
			f.Errorf("attempt %d, want 1", l.Attempt)
		}
	}},

	{"ResetForgivesAttemptsAndEndsNoLease", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "v")
		l := f.granted(a, key)
		f.ok("Reset", b.Reset(f.ctx, key))
		f.heldBy(b, l)
		f.reads(b, key, "v")
		f.ok("Delete", b.Delete(f.ctx, key))
		if next := f.granted(b, key); next.Attempt != 1 {
			f.Errorf("attempt %d, want 1", next.Attempt)
		}
	}},
}
