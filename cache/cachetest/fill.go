package cachetest

import (
	"time"

	"github.com/stampedeguard/stampede/cache"
)

var fillTests = []test{
	{"FillStoresAndGivesTheLeaseBack", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		if e := f.fills(a, l, "v"); e.Version != l.Token {
			f.Errorf("version %v, want the lease's token %v", e.Version, l.Token)
		}
		f.isNotLost(l)
		if r := f.reads(b, key, "v"); r.Entry.Version != l.Token || !r.Fresh() {
			f.Errorf("read %+v", r.Entry)
		}
		if next := f.granted(b, key); next.Attempt != 1 {
			f.Errorf("attempt %d after an outcome, want 1", next.Attempt)
		}
	}},

	{"LeaseIsGivenBackOnce", nothing, func(f *fixture) {
		s := f.open()
		l := f.granted(s, key)
		f.fills(s, l, "v")
		f.fillsInVain(s, l)
		if told, err := s.Fail(f.ctx, l, []byte("why"), time.Minute); err != nil || told {
			f.Errorf("Fail after Fill answered %v, error %v", told, err)
		}
		f.reads(s, key, "v")
		f.granted(s, key)
	}},

	// pitfall 16, and P2
	{"FillAfterDeleteChangesNothing", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		l := f.granted(a, key)
		f.ok("Delete", b.Delete(f.ctx, key))
		f.fillsInVain(a, l)
		f.misses(b, key)
	}},

	{"FillAfterSetChangesNothing", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.set(b, key, "set")
		f.fillsInVain(a, l)
		f.reads(b, key, "set")
	}},

	{"FillAfterExpireChangesNothing", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		l := f.granted(a, key)
		f.ok("Expire", b.Expire(f.ctx, key))
		f.fillsInVain(a, l)
		if r := f.reads(b, key, "old"); r.Fresh() {
			f.Error("the entry is fresh again")
		}
	}},

	{"FillAfterReleaseChangesNothing", nothing, func(f *fixture) {
		s := f.open()
		l := f.granted(s, key)
		f.ok("Release", s.Release(f.ctx, l))
		f.fillsInVain(s, l)
		f.misses(s, key)
	}},

	// pitfall 30, and P2
	{"OldHolderDisturbsNeitherTheNewLeaseNorItsFill", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		old := f.granted(a, key)
		f.ok("Delete", b.Delete(f.ctx, key))
		l := f.granted(b, key)
		f.fillsInVain(a, old)
		f.heldBy(a, l)
		f.fills(b, l, "new")
		f.reads(a, key, "new")
	}},

	{"FailOfALostLeaseTellsNobody", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.ok("Delete", b.Delete(f.ctx, key))
		if told, err := a.Fail(f.ctx, l, []byte("why"), time.Minute); err != nil || told {
			f.Errorf("Fail of a lost lease answered %v, error %v, want false", told, err)
		}
		ask := anAsk()
		ask.LastHeld = l.Token
		f.answers(b, key, ask, cache.Granted) // neither failed nor paused
	}},

	{"AttemptOfALostLeaseIsAccountedForByItsFill", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.ok("Delete", b.Delete(f.ctx, key))
		f.fillsInVain(a, l)
		if next := f.granted(b, key); next.Attempt != 1 {
			f.Errorf("attempt %d, want 1", next.Attempt)
		}
	}},
}

// renewed is a lease that a test can wait for.
func renewed(renewFor time.Duration) cache.Ask {
	return cache.Ask{TTL: shortTTL, RenewFor: renewFor, Window: time.Minute}
}

var renewTests = []test{
	// pitfall 4
	{"LeaseIsRenewedBeyondItsTTL", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, key, renewed(time.Minute), cache.Granted).Lease
		f.throughout(4*shortTTL, "held", func() bool {
			got := f.acquire(b, key, renewed(time.Minute))
			return got.Verdict == cache.Held && got.Holder == l.Token && got.TTL > 0 && got.TTL <= shortTTL && !got.Unwatched
		})
		f.isNotLost(l)
		f.fills(a, l, "slow")
	}},

	// pitfall 14
	{"RenewalEnds", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		const renewFor = 2 * shortTTL
		start := time.Now()
		l := f.answers(a, key, renewed(renewFor), cache.Granted).Lease
		var next *cache.Lease
		f.eventually("granted to the next", func() bool {
			got := f.acquire(b, key, anAsk())
			next = got.Lease
			return got.Verdict == cache.Granted
		})
		if held := time.Since(start); held < renewFor-5*time.Millisecond {
			f.Errorf("the lease ended after %v, want %v or more", held, renewFor)
		}
		// The first is alive, and its attempt not accounted for.
		if next.Attempt != 2 || next.TakenOver {
			f.Errorf("granted %+v, want attempt 2, not taken over", next)
		}
		f.isLost(l)
		f.fillsInVain(a, l)
		f.misses(b, key)
		f.heldBy(a, next)
	}},

	{"HolderHearsThatItsLeaseRanOut", nothing, func(f *fixture) {
		s := f.open()
		start := time.Now()
		f.isLost(f.answers(s, key, renewed(shortTTL), cache.Granted).Lease)
		if held := time.Since(start); held < shortTTL-5*time.Millisecond {
			f.Errorf("lost after %v, want %v or more", held, shortTTL)
		}
	}},

	// pitfall 19
	{"LeaseOfAMillisecondEnds", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, key, cache.Ask{TTL: time.Millisecond, Window: time.Minute}, cache.Granted).Lease
		f.eventually("granted to the next", func() bool { return f.acquire(b, key, anAsk()).Verdict == cache.Granted })
		f.isLost(l)
	}},

	// News of it comes with the next renewal, for a store that isn't told.
	{"HolderHearsThatItsLeaseEnded", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		for name, end := range map[string]func(cache.Store) error{
			"Delete": func(s cache.Store) error { return s.Delete(f.ctx, key) },
			"Set":    func(s cache.Store) error { return s.Set(f.ctx, key, anEntry("v")) },
			"Expire": func(s cache.Store) error { return s.Expire(f.ctx, key) },
		} {
			for _, s := range []cache.Store{a, b} {
				ask := renewed(time.Minute)
				ask.Seen = f.read(a, key).Seen
				l := f.answers(a, key, ask, cache.Granted).Lease
				f.ok(name, end(s))
				f.isLost(l)
			}
		}
	}},

	{"LeaseThatWasGivenBackIsNotRenewed", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, key, renewed(time.Minute), cache.Granted).Lease
		f.ok("Release", a.Release(f.ctx, l))
		next := f.answers(b, key, renewed(time.Minute), cache.Granted).Lease
		f.throughout(2*shortTTL, "held by the next", func() bool { return f.acquire(a, key, anAsk()).Holder == next.Token })
		f.isNotLost(l)
	}},
}
