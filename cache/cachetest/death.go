package cachetest

import (
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// dies opens a process that takes key's lease, over from a dead holder if need
// be, and kills it.
func (f *fixture) dies(ask cache.Ask) *cache.Lease {
	f.Helper()
	s := f.open()
	var l *cache.Lease
	f.eventually("granted", func() bool {
		a := f.acquire(s, key, ask)
		if a.Unwatched {
			ask.Suspect = a.Holder
		}
		l = a.Lease
		return a.Verdict == cache.Granted
	})
	f.Kill(f.T, s)
	return l
}

// looksDead waits until a store no longer sees the lease's process.
func (f *fixture) looksDead(s cache.Store, l *cache.Lease) {
	f.Helper()
	f.eventually("held by an unwatched process", func() bool {
		a := f.acquire(s, key, anAsk())
		return a.Verdict == cache.Held && a.Holder == l.Token && a.Unwatched
	})
}

// quarantined makes a key whose holders died: two of them.
func (f *fixture) quarantined(s cache.Store) cache.Ask {
	f.Helper()
	f.dies(anAsk())
	last := f.dies(anAsk())
	f.looksDead(s, last)
	ask := anAsk()
	ask.MaxAttempts, ask.Suspect = 2, last.Token
	a := f.answers(s, key, ask, cache.Quarantined)
	if a.TTL <= 0 || a.TTL > ask.Window {
		f.Errorf("quarantined for %v, want at most %v", a.TTL, ask.Window)
	}
	return ask
}

var deathTests = []test{
	// P6
	{"LeaseOfADeadHolderIsTakenOver", kill, func(f *fixture) {
		b := f.open()
		l := f.dies(anAsk())
		f.looksDead(b, l)
		ask := anAsk()
		ask.Suspect = l.Token
		next := f.answers(b, key, ask, cache.Granted).Lease
		if !next.TakenOver || next.Attempt != 2 || next.Token == l.Token {
			f.Errorf("granted %+v", next)
		}
		f.isNotLost(next)
		f.fills(b, next, "v")
		f.reads(b, key, "v")
	}},

	{"OneOfManyTakesOver", kill, func(f *fixture) {
		b, c := f.open(), f.open()
		l := f.dies(anAsk())
		f.looksDead(b, l)
		f.looksDead(c, l)
		ask := anAsk()
		ask.Suspect = l.Token
		next := f.answers(b, key, ask, cache.Granted).Lease
		if a := f.answers(c, key, ask, cache.Held); a.Holder != next.Token || a.Unwatched {
			f.Errorf("then held by %v, unwatched=%v, want %v", a.Holder, a.Unwatched, next.Token)
		}
	}},

	{"LeaseOfALiveHolderIsNotTakenOver", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		ask := anAsk()
		ask.Suspect = l.Token
		if got := f.answers(b, key, ask, cache.Held); got.Holder != l.Token || got.Unwatched {
			f.Errorf("held by %v, unwatched=%v", got.Holder, got.Unwatched)
		}
		f.fills(a, l, "v")
	}},

	{"OnlyTheSuspectIsTakenOver", kill, func(f *fixture) {
		b := f.open()
		l := f.dies(anAsk())
		f.looksDead(b, l)
		ask := anAsk()
		ask.Suspect = cache.NewMinter().Token()
		f.answers(b, key, ask, cache.Held)
	}},

	{"LeaseOfADeadHolderEndsByItself", kill, func(f *fixture) {
		b := f.open()
		f.dies(renewed(time.Minute))
		f.eventually("granted without a suspect", func() bool {
			a := f.acquire(b, key, anAsk())
			if a.Verdict == cache.Granted && (a.Lease.TakenOver || a.Lease.Attempt != 2) {
				f.Errorf("granted %+v, want attempt 2, not taken over", a.Lease)
			}
			return a.Verdict == cache.Granted
		})
	}},

	// P7
	{"KeyWhoseHoldersDieIsQuarantined", kill, func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		f.answers(f.open(), key, ask, cache.Quarantined)
		ask.MaxAttempts = 3
		if l := f.answers(s, key, ask, cache.Granted).Lease; l.Attempt != 3 {
			f.Errorf("attempt %d, want 3", l.Attempt)
		}
	}},

	{"ZeroMaxAttemptsNeverQuarantines", kill, func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		ask.MaxAttempts = 0
		f.answers(s, key, ask, cache.Granted)
	}},

	{"DeleteAndExpireLeaveAQuarantine", kill, func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		f.ok("Expire", s.Expire(f.ctx, key))
		f.answers(s, key, ask, cache.Quarantined)
		f.ok("Delete", s.Delete(f.ctx, key))
		f.answers(s, key, ask, cache.Quarantined)
	}},

	{"ResetEndsAQuarantine", kill, func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		f.ok("Reset", s.Reset(f.ctx, key))
		if l := f.answers(s, key, ask, cache.Granted).Lease; l.Attempt != 1 {
			f.Errorf("attempt %d, want 1", l.Attempt)
		}
	}},

	{"SetEndsAQuarantine", kill, func(f *fixture) {
		s := f.open()
		ask := f.quarantined(s)
		e := f.set(s, key, "v")
		ask.Seen = string(e.Version[:])
		f.answers(s, key, ask, cache.Granted)
	}},

	{"DeclinedFetchForgivesNoDeaths", kill, func(f *fixture) {
		declined := cache.Return{Failed: true, Declined: true, Failure: []byte("exhausted")}
		for name, decline := range map[string]func(s cache.Store, l *cache.Lease) (bool, error){
			"Decline": func(s cache.Store, l *cache.Lease) (bool, error) { return s.Decline(f.ctx, l, declined.Failure, 0) },
			"ReturnMany": func(s cache.Store, l *cache.Lease) (bool, error) {
				back := declined
				back.Lease = l
				done := s.ReturnMany(f.ctx, []cache.Return{back})[0]
				return done.OK, done.Err
			},
		} {
			s, waiter := f.open(), f.open()
			last := f.dies(anAsk())
			f.looksDead(s, last)
			ask := anAsk()
			ask.MaxAttempts, ask.Suspect = 2, last.Token
			l := f.answers(s, key, ask, cache.Granted).Lease
			wait := anAsk()
			wait.LastHeld = f.answers(waiter, key, wait, cache.Held).Holder
			if told, err := decline(s, l); !told || err != nil {
				f.Fatalf("%s answered %v, error %v, want true", name, told, err)
			}
			if got := f.answers(waiter, key, wait, cache.Failed); string(got.Failure) != "exhausted" {
				f.Errorf("%s: waiters are told %q", name, got.Failure)
			}
			// Its own attempt is off the record, and the death is on it.
			last = f.dies(anAsk())
			if last.Attempt != 2 {
				f.Errorf("%s: attempt %d, want 2", name, last.Attempt)
			}
			f.looksDead(s, last)
			ask.Suspect = last.Token
			f.answers(s, key, ask, cache.Quarantined)
			f.ok("Reset", s.Reset(f.ctx, key))
			f.ok("Delete", s.Delete(f.ctx, key))
		}
	}},

	{"FailedFetchForgivesDeaths", kill, func(f *fixture) {
		s := f.open()
		last := f.dies(anAsk())
		f.looksDead(s, last)
		ask := anAsk()
		ask.MaxAttempts, ask.Suspect = 2, last.Token
		f.fails(s, f.answers(s, key, ask, cache.Granted).Lease, "why", 0)
		if l := f.answers(s, key, ask, cache.Granted).Lease; l.Attempt != 1 {
			f.Errorf("attempt %d, want 1", l.Attempt)
		}
	}},

	{"DeclineOfALostLeaseChangesNothing", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.ok("Delete", b.Delete(f.ctx, key))
		next := f.granted(b, key)
		if told, err := a.Decline(f.ctx, l, []byte("why"), time.Minute); told || err != nil {
			f.Errorf("Decline answered %v, error %v, want false", told, err)
		}
		f.fills(b, next, "v")
		f.reads(a, key, "v")
	}},

	{"QuarantineEndsWithTheWindow", kill, func(f *fixture) {
		s := f.open()
		short := cache.Ask{TTL: 100 * time.Millisecond, RenewFor: 100 * time.Millisecond, Window: time.Second, MaxAttempts: 1}
		f.dies(short)
		f.eventually("quarantined", func() bool { return f.acquire(s, key, short).Verdict == cache.Quarantined })
		f.eventually("granted", func() bool { return f.acquire(s, key, short).Verdict == cache.Granted })
	}},

	{"DeathsOfProcessesCountAndNotOfTokens", kill, func(f *fixture) {
		a, b := f.open(), f.open()
		f.granted(a, key)
		f.ok("Delete", a.Delete(f.ctx, key))
		l := f.granted(a, key)
		f.Kill(f.T, a)
		f.looksDead(b, l)
		ask := anAsk()
		ask.MaxAttempts, ask.Suspect = 2, l.Token
		f.answers(b, key, ask, cache.Granted)
	}},

	{"InvalidatedHolderThatLivesIsNotDead", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		ask := anAsk()
		ask.MaxAttempts = 1
		for range 3 {
			f.answers(a, key, ask, cache.Granted)
			f.ok("Delete", b.Delete(f.ctx, key))
		}
		f.answers(b, key, ask, cache.Granted)
	}},

	{"CloseGivesLeasesBackAtOnce", nothing, func(f *fixture) {
		b := f.open()
		ask := anAsk()
		ask.MaxAttempts = 1
		for range 3 {
			a := f.open()
			l := f.answers(a, key, anAsk(), cache.Granted).Lease
			if l.Attempt != 1 {
				f.Errorf("attempt %d: an orderly shutdown counts as a death", l.Attempt)
			}
			f.ok("Close", a.Close())
		}
		if l := f.answers(b, key, ask, cache.Granted).Lease; l.TakenOver || l.Attempt != 1 {
			f.Errorf("granted %+v", l)
		}
	}},

	// The fetch was still running when its process shut down in order.
	{"CloseOfAnInvalidatedHolderIsNoDeath", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, key, renewed(time.Minute), cache.Granted).Lease
		f.ok("Delete", b.Delete(f.ctx, key))
		f.isLost(l)
		f.ok("Close", a.Close())
		ask := anAsk()
		ask.MaxAttempts = 1
		f.answers(b, key, ask, cache.Granted)
	}},
}
