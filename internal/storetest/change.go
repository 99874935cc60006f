package storetest

import "github.com/stampedeguard/stampede/internal/store"

var changeTests = []test{
	{"SetReplacesWithAVersionOfItsOwn", func(f *fixture) {
		a, b := f.open(), f.open()
		first := f.set(a, key, "first")
		second := f.set(b, key, "second")
		if first.Version == second.Version || second.Version.IsZero() {
			f.Errorf("versions %v and %v", first.Version, second.Version)
		}
		f.reads(a, key, "second")
	}},

	{"DeleteRemoves", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "v")
		f.change(b, store.Delete, key)
		f.misses(a, key)
		f.change(b, store.Delete, key) // of nothing
	}},

	{"ExpireKeepsTheValueAndMarksItStale", func(f *fixture) {
		a, b := f.open(), f.open()
		e := f.set(a, key, "v")
		for range 2 {
			f.change(b, store.Expire, key)
			r := f.reads(a, key, "v")
			if r.Fresh() || r.Entry.Flags != store.FlagExpired || r.Entry.Version != e.Version || r.Left <= 0 || r.Left > e.TTL {
				f.Errorf("fresh=%v flags=%d version=%v left=%v", r.Fresh(), r.Entry.Flags, r.Entry.Version, r.Left)
			}
		}
		f.fills(a, f.granted(a, key), "new")
		if !f.reads(b, key, "new").Fresh() {
			f.Error("the fill after it is stale")
		}
	}},

	{"ExpireOfNothingStoresNothing", func(f *fixture) {
		s := f.open()
		f.change(s, store.Expire, key)
		f.misses(s, key)
	}},

	{"ExpireLeavesDamagedBytesAlone", func(f *fixture) {
		s := f.open()
		for _, b := range []string{"short", "foreign bytes that are longer than a header of 40 bytes is"} {
			f.Plant(f.T, key, []byte(b))
			f.change(s, store.Expire, key)
			if r := f.read(s, key); r.Found || r.Seen != b[:min(len(b), 16)] {
				f.Errorf("%q became %q", b, r.Seen)
			}
		}
	}},

	// P3: the next fetch need not wait for an unwanted one.
	{"LeaseIsFreeAtOnceAfterAChange", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		f.granted(a, key)
		f.change(b, store.Expire, key)
		f.granted(b, key)
		f.change(a, store.Delete, key)
		f.granted(a, key)
		f.set(b, key, "new")
		f.granted(b, key)
	}},

	{"DeleteForgivesNoAttempts", func(f *fixture) {
		a, b := f.open(), f.open()
		f.granted(a, key)
		f.change(b, store.Delete, key)
		if l := f.granted(b, key); l.Attempt != 2 {
			f.Errorf("attempt %d, want 2", l.Attempt)
		}
	}},

	{"SetForgivesAttempts", func(f *fixture) {
		a, b := f.open(), f.open()
		f.granted(a, key)
		f.set(b, key, "v")
		if l := f.granted(b, key); l.Attempt != 1 {
			f.Errorf("attempt %d, want 1", l.Attempt)
		}
	}},

	{"ResetForgivesAttemptsAndEndsNoLease", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "v")
		l := f.granted(a, key)
		f.change(b, store.Reset, key)
		f.heldBy(b, l)
		f.reads(b, key, "v")
		f.change(b, store.Delete, key)
		if next := f.granted(b, key); next.Attempt != 1 {
			f.Errorf("attempt %d, want 1", next.Attempt)
		}
	}},

	{"ChangesOfOneKeyKeepTheirOrder", func(f *fixture) {
		s := f.open()
		var changes []store.Change
		for range 50 {
			changes = append(changes,
				store.Change{Kind: store.Set, Key: key, Entry: entryOf("v")},
				store.Change{Kind: store.Delete, Key: f.other()},
				store.Change{Kind: store.Delete, Key: key},
				store.Change{Kind: store.Set, Key: f.other(), Entry: entryOf("v")})
		}
		for i, err := range s.Change(f.ctx, changes) {
			if err != nil {
				f.Fatalf("change %d: %v", i, err)
			}
		}
		f.misses(s, key)
		for i, err := range s.Change(f.ctx, changes[:len(changes)-3]) {
			if err != nil {
				f.Fatalf("change %d: %v", i, err)
			}
		}
		f.reads(s, key, "v")
	}},

	{"ChangesOfManyKindsGoTogether", func(f *fixture) {
		a, b := f.open(), f.open()
		keys := names(4)
		for _, k := range keys {
			f.set(a, k, "old")
		}
		for i, err := range a.Change(f.ctx, []store.Change{
			{Kind: store.Set, Key: keys[0], Entry: entryOf("new")},
			{Kind: store.Delete, Key: keys[1]},
			{Kind: store.Expire, Key: keys[2]},
			{Kind: store.Reset, Key: keys[3]},
		}) {
			if err != nil {
				f.Fatalf("%s: %v", keys[i], err)
			}
		}
		got := ReadMany(f.ctx, b, "", append(keys, keys[0]))
		if string(got[0].Reading.Entry.Payload) != "new" || string(got[4].Reading.Entry.Payload) != "new" {
			f.Errorf("after a set: %+v", got[0].Reading)
		}
		if got[1].Reading.Found || got[1].Reading.Seen != "" {
			f.Errorf("after a delete: %+v", got[1].Reading)
		}
		if r := got[2].Reading; !r.Found || r.Fresh() {
			f.Errorf("after an expire: %+v", r)
		}
		if !got[3].Reading.Fresh() {
			f.Errorf("after a reset: %+v", got[3].Reading)
		}
	}},
}
