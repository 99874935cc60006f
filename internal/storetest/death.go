package storetest

import (
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// dies opens a process that acquires key, from a dead holder if need be, and kills it.
func (f *fixture) dies(r store.Request) *store.Lease {
	f.Helper()
	s := f.open()
	var l *store.Lease
	f.eventually("granted", func() bool {
		a := f.acquire(s, r)
		if a.Unwatched {
			r.Suspect = a.Holder
		}
		l = a.Lease
		return a.Verdict == store.Granted
	})
	f.Kill(f.T, s)
	return l
}

// looksDead waits until a store no longer sees the holder's process.
func (f *fixture) looksDead(s store.Store, l *store.Lease) {
	f.Helper()
	f.eventually("held by an unwatched process", func() bool {
		a := f.acquire(s, request(key))
		return a.Verdict == store.Held && a.Holder == l.Token && a.Unwatched
	})
}

// suspecting asks for a key after its holder looked dead.
func suspecting(l *store.Lease, maxAttempts int) store.Request {
	r := request(key)
	r.Suspect, r.MaxAttempts = l.Token, maxAttempts
	return r
}

// quarantined makes a key of which two holders have died.
func (f *fixture) quarantined(s store.Store) store.Request {
	f.Helper()
	f.dies(request(key))
	last := f.dies(request(key))
	f.looksDead(s, last)
	ask := suspecting(last, 2)
	a := f.answers(s, ask, store.Quarantined)
	if a.TTL <= 0 || a.TTL > ask.Window {
		f.Errorf("quarantined for %v, want at most %v", a.TTL, ask.Window)
	}
	return ask
}

var deathTests = []test{
	// P6
	{"LeaseOfADeadHolderIsTakenOver", func(f *fixture) {
		b := f.open()
		l := f.dies(request(key))
		f.looksDead(b, l)
		next := f.answers(b, suspecting(l, 0), store.Granted).Lease
		if !next.TakenOver || next.Attempt != 2 || next.Token == l.Token {
			f.Errorf("granted %+v", next)
		}
		f.isNotLost(next)
		f.fills(b, next, "v")
		f.reads(b, key, "v")
	}},

	{"OneOfManyTakesOver", func(f *fixture) {
		b, c := f.open(), f.open()
		l := f.dies(request(key))
		f.looksDead(b, l)
		f.looksDead(c, l)
		next := f.answers(b, suspecting(l, 0), store.Granted).Lease
		if a := f.answers(c, suspecting(l, 0), store.Held); a.Holder != next.Token || a.Unwatched {
			f.Errorf("then held by %v, unwatched=%v, want %v", a.Holder, a.Unwatched, next.Token)
		}
	}},

	{"LeaseOfALiveHolderIsNotTakenOver", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		if got := f.answers(b, suspecting(l, 0), store.Held); got.Holder != l.Token || got.Unwatched {
			f.Errorf("held by %v, unwatched=%v", got.Holder, got.Unwatched)
		}
		f.fills(a, l, "v")
	}},

	{"OnlyTheSuspectIsTakenOver", func(f *fixture) {
		b := f.open()
		l := f.dies(request(key))
		f.looksDead(b, l)
		f.answers(b, suspecting(&store.Lease{Token: store.NewMinter().Token()}, 0), store.Held)
	}},

	{"LeaseOfADeadHolderEndsByItself", func(f *fixture) {
		b := f.open()
		f.dies(renewed(time.Minute))
		f.eventually("granted without a suspect", func() bool {
			a := f.acquire(b, request(key))
			if a.Verdict == store.Granted && (a.Lease.TakenOver || a.Lease.Attempt != 2) {
				f.Errorf("granted %+v, want attempt 2, not taken over", a.Lease)
			}
			return a.Verdict == store.Granted
		})
	}},

	// P7
	{"KeyWhoseHoldersDieIsQuarantined", func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		f.answers(f.open(), ask, store.Quarantined)
		ask.MaxAttempts = 3
		if l := f.answers(s, ask, store.Granted).Lease; l.Attempt != 3 {
			f.Errorf("attempt %d, want 3", l.Attempt)
		}
	}},

	{"ZeroMaxAttemptsNeverQuarantines", func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		ask.MaxAttempts = 0
		f.answers(s, ask, store.Granted)
	}},

	{"DeleteAndExpireLeaveAQuarantine", func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		f.change(s, store.Expire, key)
		f.answers(s, ask, store.Quarantined)
		f.change(s, store.Delete, key)
		f.answers(s, ask, store.Quarantined)
	}},

	{"ResetEndsAQuarantine", func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		f.change(s, store.Reset, key)
		if l := f.answers(s, ask, store.Granted).Lease; l.Attempt != 1 {
			f.Errorf("attempt %d, want 1", l.Attempt)
		}
	}},

	{"SetEndsAQuarantine", func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		e := f.set(s, key, "v")
		ask.Seen = string(e.Version[:])
		f.answers(s, ask, store.Granted)
	}},

	{"DeclinedFetchForgivesNoDeaths", func(f *fixture) {
		s, waiter := f.open(), f.open()
		last := f.dies(request(key))
		f.looksDead(s, last)
		l := f.answers(s, suspecting(last, 2), store.Granted).Lease
		wait := request(key)
		wait.LastHeld = f.answers(waiter, wait, store.Held).Holder
		declined := store.Return{Lease: l, Failed: true, Declined: true, Failure: []byte("exhausted")}
		if b := f.giveBack(f.ctx, s, declined); !b.OK || b.Err != nil {
			f.Fatalf("the decline answered %v, error %v, want true", b.OK, b.Err)
		}
		if got := f.answers(waiter, wait, store.Failed); string(got.Failure) != "exhausted" {
			f.Errorf("waiters are told %q", got.Failure)
		}
		// Its own attempt is off the record, and the death is on it.
		last = f.dies(request(key))
		if last.Attempt != 2 {
			f.Errorf("attempt %d, want 2", last.Attempt)
		}
		f.looksDead(s, last)
		f.answers(s, suspecting(last, 2), store.Quarantined)
	}},

	{"FailedFetchForgivesDeaths", func(f *fixture) {
		s := f.open()
		last := f.dies(request(key))
		f.looksDead(s, last)
		ask := suspecting(last, 2)
		f.fails(s, f.answers(s, ask, store.Granted).Lease, "why", 0)
		if l := f.answers(s, ask, store.Granted).Lease; l.Attempt != 1 {
			f.Errorf("attempt %d, want 1", l.Attempt)
		}
	}},

	{"QuarantineEndsWithTheWindow", func(f *fixture) {
		s := f.open()
		short := store.Request{Key: key, TTL: 100 * time.Millisecond, RenewFor: 100 * time.Millisecond, Window: time.Second, MaxAttempts: 1}
		f.dies(short)
		f.eventually("quarantined", func() bool { return f.acquire(s, short).Verdict == store.Quarantined })
		f.eventually("granted", func() bool { return f.acquire(s, short).Verdict == store.Granted })
	}},

	{"DeathsOfProcessesCountNotTokens", func(f *fixture) {
		a, b := f.open(), f.open()
		f.granted(a, key)
		f.change(a, store.Delete, key)
		l := f.granted(a, key)
		f.Kill(f.T, a)
		f.looksDead(b, l)
		f.answers(b, suspecting(l, 2), store.Granted)
	}},

	{"InvalidatedHolderThatLivesIsNotDead", func(f *fixture) {
		a, b := f.open(), f.open()
		ask := request(key)
		ask.MaxAttempts = 1
		for range 3 {
			f.answers(a, ask, store.Granted)
			f.change(b, store.Delete, key)
		}
		f.answers(b, ask, store.Granted)
	}},

	{"CloseReturnsLeasesAtOnce", func(f *fixture) {
		b := f.open()
		ask := request(key)
		ask.MaxAttempts = 1
		for range 3 {
			a := f.open()
			l := f.answers(a, request(key), store.Granted).Lease
			if l.Attempt != 1 {
				f.Errorf("attempt %d: an orderly shutdown counts as a death", l.Attempt)
			}
			f.ok("Close", a.Close())
		}
		if l := f.answers(b, ask, store.Granted).Lease; l.TakenOver || l.Attempt != 1 {
			f.Errorf("granted %+v", l)
		}
	}},

	// The fetch was still running when its process shut down in order.
	{"CloseOfAnInvalidatedHolderIsNoDeath", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, renewed(time.Minute), store.Granted).Lease
		f.change(b, store.Delete, key)
		f.isLost(l)
		f.ok("Close", a.Close())
		ask := request(key)
		ask.MaxAttempts = 1
		f.answers(b, ask, store.Granted)
	}},
}
