package storetest

import (
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

var returnTests = []test{
	{"FillStoresAndReturnsTheLease", func(f *fixture) {
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

	{"LeaseIsReturnedOnce", func(f *fixture) {
		s := f.open()
		l := f.granted(s, key)
		f.fills(s, l, "v")
		f.fillsInVain(s, l)
		f.failsInVain(s, store.Return{Lease: l})
		f.reads(s, key, "v")
		f.granted(s, key)
	}},

	{"ReleaseLetsTheNextCallerFetch", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.releases(a, l)
		f.isNotLost(l)
		ask := request(key)
		ask.LastHeld = l.Token // a release is no failure
		if next := f.answers(b, ask, store.Granted).Lease; next.Attempt != 1 || next.TakenOver {
			f.Errorf("granted %+v", next)
		}
	}},

	{"ReleaseOfALostLeaseChangesNothing", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.change(b, store.Delete, key)
		next := f.granted(b, key)
		f.releases(a, l)
		f.heldBy(a, next)
	}},

	// pitfall 16, and P2
	{"FillAfterDeleteChangesNothing", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		l := f.granted(a, key)
		f.change(b, store.Delete, key)
		f.fillsInVain(a, l)
		f.misses(b, key)
	}},

	{"FillAfterSetChangesNothing", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.set(b, key, "set")
		f.fillsInVain(a, l)
		f.reads(b, key, "set")
	}},

	{"FillAfterExpireChangesNothing", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		l := f.granted(a, key)
		f.change(b, store.Expire, key)
		f.fillsInVain(a, l)
		if r := f.reads(b, key, "old"); r.Fresh() {
			f.Error("the entry is fresh again")
		}
	}},

	{"FillAfterReleaseChangesNothing", func(f *fixture) {
		s := f.open()
		l := f.granted(s, key)
		f.releases(s, l)
		f.fillsInVain(s, l)
		f.misses(s, key)
	}},

	// pitfall 30, and P2
	{"OldHolderLeavesTheNewLeaseAlone", func(f *fixture) {
		a, b := f.open(), f.open()
		old := f.granted(a, key)
		f.change(b, store.Delete, key)
		l := f.granted(b, key)
		f.fillsInVain(a, old)
		f.heldBy(a, l)
		f.fills(b, l, "new")
		f.reads(a, key, "new")
	}},

	{"FailureOfALostLeaseIsNotTold", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.change(b, store.Delete, key)
		f.failsInVain(a, store.Return{Lease: l})
		ask := request(key)
		ask.LastHeld = l.Token
		f.answers(b, ask, store.Granted) // neither failed nor paused
	}},

	{"DeclineOfALostLeaseChangesNothing", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.change(b, store.Delete, key)
		next := f.granted(b, key)
		f.failsInVain(a, store.Return{Lease: l, Declined: true})
		f.fills(b, next, "v")
		f.reads(a, key, "v")
	}},

	{"FillAccountsForALostAttempt", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.change(b, store.Delete, key)
		f.fillsInVain(a, l)
		if next := f.granted(b, key); next.Attempt != 1 {
			f.Errorf("attempt %d, want 1", next.Attempt)
		}
	}},

	{"EachReturnOfManyHasItsOwnOutcome", func(f *fixture) {
		a, b := f.open(), f.open()
		keys := names(40)
		leases := f.hold(a, time.Minute, keys)
		f.change(b, store.Delete, keys[5])
		w := f.watch(b, keys[0])
		returns := make([]store.Return, len(keys))
		for i, l := range leases {
			returns[i] = store.Return{Lease: l, Entry: entryOf("of " + keys[i])}
		}
		returns[6] = store.Return{Lease: leases[6], Failed: true, Failure: []byte("why")}
		returns[7] = store.Return{Lease: leases[7], Failed: true, Failure: []byte("later"), Pause: time.Minute}
		returns[8] = store.Return{Lease: leases[8]}
		for i, got := range a.Return(f.ctx, returns) {
			if want := i != 5; got.Err != nil || got.OK != want {
				f.Fatalf("%s: %v, error %v", keys[i], got.OK, got.Err)
			}
		}
		if m := f.hears(w, store.Filled); m.Token != leases[0].Token || string(m.Reading().Entry.Payload) != "of "+keys[0] {
			f.Errorf("woken by %v with %q", m.Token, m.Body)
		}
		for i, k := range keys {
			if i < 5 || i > 8 {
				f.reads(b, k, "of "+k)
			} else {
				f.misses(b, k)
			}
		}
		ask := request(keys[6])
		ask.LastHeld = leases[6].Token
		f.answers(b, ask, store.Failed)
		f.answers(b, request(keys[7]), store.Paused)
		f.answers(b, request(keys[5]), store.Granted)
		if l := f.answers(b, request(keys[8]), store.Granted).Lease; l.Attempt != 1 || l.TakenOver {
			f.Errorf("after a release: %+v", l)
		}
	}},
}

// renewed asks for a lease that a test can wait for.
func renewed(renewFor time.Duration) store.Request {
	return store.Request{Key: key, TTL: shortTTL, RenewFor: renewFor, Window: time.Minute}
}

var renewTests = []test{
	// pitfall 4
	{"LeaseIsRenewedBeyondItsTTL", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, renewed(time.Minute), store.Granted).Lease
		f.throughout(4*shortTTL, "held", func() bool {
			got := f.acquire(b, renewed(time.Minute))
			return got.Verdict == store.Held && got.Holder == l.Token && got.TTL > 0 && got.TTL <= shortTTL && !got.Unwatched
		})
		f.isNotLost(l)
		f.fills(a, l, "slow")
	}},

	// pitfall 14
	{"RenewalEnds", func(f *fixture) {
		a, b := f.open(), f.open()
		const renewFor = 2 * shortTTL
		start := time.Now()
		l := f.answers(a, renewed(renewFor), store.Granted).Lease
		var next *store.Lease
		f.eventually("granted to the next caller", func() bool {
			got := f.acquire(b, request(key))
			next = got.Lease
			return got.Verdict == store.Granted
		})
		if held := time.Since(start); held < renewFor-5*time.Millisecond {
			f.Errorf("the lease ended after %v, want %v or more", held, renewFor)
		}
		// The first holder is alive, and its attempt not accounted for.
		if next.Attempt != 2 || next.TakenOver {
			f.Errorf("granted %+v, want attempt 2, not taken over", next)
		}
		f.isLost(l)
		f.fillsInVain(a, l)
		f.misses(b, key)
		f.heldBy(a, next)
	}},

	{"HolderHearsThatItsLeaseExpired", func(f *fixture) {
		s := f.open()
		start := time.Now()
		f.isLost(f.answers(s, renewed(shortTTL), store.Granted).Lease)
		if held := time.Since(start); held < shortTTL-5*time.Millisecond {
			f.Errorf("lost after %v, want %v or more", held, shortTTL)
		}
	}},

	// pitfall 19
	{"LeaseOfAMillisecondEnds", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, store.Request{Key: key, TTL: time.Millisecond, Window: time.Minute}, store.Granted).Lease
		f.eventually("granted to the next caller", func() bool { return f.acquire(b, request(key)).Verdict == store.Granted })
		f.isLost(l)
	}},

	// The news comes with the next renewal where the store is not told.
	{"HolderHearsThatAChangeEndedItsLease", func(f *fixture) {
		a, b := f.open(), f.open()
		for _, kind := range []store.ChangeKind{store.Delete, store.Set, store.Expire} {
			for _, s := range []store.Store{a, b} {
				ask := renewed(time.Minute)
				ask.Seen = f.read(a, key).Seen
				l := f.answers(a, ask, store.Granted).Lease
				if kind == store.Set {
					f.set(s, key, "v")
				} else {
					f.change(s, kind, key)
				}
				f.isLost(l)
			}
		}
	}},

	{"ReturnedLeaseIsNotRenewed", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, renewed(time.Minute), store.Granted).Lease
		f.releases(a, l)
		next := f.answers(b, renewed(time.Minute), store.Granted).Lease
		f.throughout(2*shortTTL, "held by the next caller", func() bool { return f.acquire(a, request(key)).Holder == next.Token })
		f.isNotLost(l)
	}},

	{"LeasesOfManyAreRenewedAndLost", func(f *fixture) {
		a, b := f.open(), f.open()
		leases := f.hold(a, shortTTL, names(10))
		f.throughout(2*shortTTL, "held", func() bool { return f.acquire(b, request(leases[3].Key)).Verdict == store.Held })
		f.change(b, store.Delete, leases[4].Key)
		f.isLost(leases[4])
		f.isNotLost(leases[3])
	}},
}
