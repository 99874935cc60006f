package cachetest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

var acquireTests = []test{
	{"FirstToAskIsGranted", nothing, func(f *fixture) {
		l := f.answers(f.open(), key, anAsk(), cache.Granted).Lease
		if l.Key != key || l.Token.IsZero() || l.Attempt != 1 || l.TakenOver {
			f.Errorf("granted %+v", l)
		}
		f.isNotLost(l)
	}},

	// pitfall 5
	{"EachAttemptHasATokenOfItsOwn", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		seen := map[cache.Token]bool{}
		for _, s := range []cache.Store{a, a, b, b} {
			l := f.granted(s, key)
			if seen[l.Token] {
				f.Fatalf("token %v was drawn twice", l.Token)
			}
			seen[l.Token] = true
			f.ok("Release", s.Release(f.ctx, l))
		}
		processes := map[cache.Process]bool{}
		for token := range seen {
			processes[token.Process()] = true
		}
		if len(processes) != 2 {
			f.Errorf("the tokens of two processes name %d", len(processes))
		}
	}},

	// pitfall 27: one's own lease is told apart by its token, too
	{"HeldTellsTheHolderAndHowLong", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		for _, s := range []cache.Store{a, b} {
			got := f.answers(s, key, anAsk(), cache.Held)
			if got.Holder != l.Token || got.Unwatched || got.TTL <= 0 || got.TTL > anAsk().TTL {
				f.Errorf("held by %v, unwatched=%v, for %v; want %v, watched, at most %v", got.Holder, got.Unwatched, got.TTL, l.Token, anAsk().TTL)
			}
		}
	}},

	{"StormIsGrantedExactlyOneLease", nothing, func(f *fixture) {
		stores := []cache.Store{f.open(), f.open(), f.open()}
		var granted, held atomic.Int32
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				switch a, err := stores[i%len(stores)].Acquire(f.ctx, key, anAsk()); {
				case err != nil:
					f.Errorf("Acquire: %v", err)
				case a.Verdict == cache.Granted:
					granted.Add(1)
				case a.Verdict == cache.Held:
					held.Add(1)
				}
			})
		}
		wg.Wait()
		if granted.Load() != 1 || held.Load() != 59 {
			f.Errorf("%d were granted and %d held, want 1 and 59", granted.Load(), held.Load())
		}
	}},

	{"EntryNotSeenIsTheAnswer", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		first := f.set(a, key, "first")
		second := f.set(a, key, "second")
		ask := anAsk()
		for _, seen := range []string{"", string(first.Version[:]), "x"} {
			ask.Seen = seen
			r := f.answers(b, key, ask, cache.HasEntry).Reading
			if r == nil || !r.Found || string(r.Entry.Payload) != "second" || !r.Fresh() || r.Age+r.Left != second.TTL {
				f.Errorf("with seen %x: reading %+v", seen, r)
			}
		}
		ask.Seen = string(second.Version[:])
		f.answers(b, key, ask, cache.Granted)
	}},

	{"EntryNotSeenIsTheAnswerWhileTheLeaseIsHeld", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		f.granted(a, key)
		f.answers(b, key, anAsk(), cache.HasEntry)
	}},

	{"SeenOfAnEntryThatIsGoneIsGranted", nothing, func(f *fixture) {
		s := f.open()
		e := f.set(s, key, "v")
		f.ok("Delete", s.Delete(f.ctx, key))
		ask := anAsk()
		ask.Seen = string(e.Version[:])
		f.answers(s, key, ask, cache.Granted)
	}},

	// pitfall 1: a failure reaches those who wait, and they don't try in turn
	{"FailureIsToldToWhoeverNamesTheHolder", nothing, func(f *fixture) {
		a, b, c := f.open(), f.open(), f.open()
		l := f.granted(a, key)
		waiter := anAsk()
		waiter.LastHeld = f.answers(b, key, anAsk(), cache.Held).Holder
		f.fails(a, l, "why\x00", 0)
		f.isNotLost(l)

		if got := f.answers(b, key, waiter, cache.Failed); string(got.Failure) != "why\x00" {
			f.Errorf("the failure is told as %q", got.Failure)
		}
		// Who never waited for it tries again; and even then it is still told.
		if next := f.granted(c, key); next.Attempt != 1 {
			f.Errorf("attempt %d after an outcome, want 1", next.Attempt)
		}
		f.answers(b, key, waiter, cache.Failed)
		waiter.LastHeld = cache.NewMinter().Token()
		f.answers(b, key, waiter, cache.Held)
	}},

	{"EntryOutranksAFailure", nothing, func(f *fixture) {
		s := f.open()
		l := f.granted(s, key)
		f.fails(s, l, "why", 0)
		f.set(s, key, "v")
		ask := anAsk()
		ask.LastHeld = l.Token
		f.answers(s, key, ask, cache.HasEntry)
	}},

	{"ReleaseLetsTheNextCallerFetch", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.ok("Release", a.Release(f.ctx, l))
		f.isNotLost(l)
		ask := anAsk()
		ask.LastHeld = l.Token // a release is no failure
		if next := f.answers(b, key, ask, cache.Granted).Lease; next.Attempt != 1 || next.TakenOver {
			f.Errorf("granted %+v", next)
		}
	}},

	{"ReleaseOfALostLeaseHarmsNobody", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.ok("Delete", b.Delete(f.ctx, key))
		next := f.granted(b, key)
		f.ok("Release", a.Release(f.ctx, l))
		f.heldBy(a, next)
	}},
}

var pauseTests = []test{
	// pitfall 1: RetryAfter holds the whole fleet off
	{"PauseHoldsEverybodyOff", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		f.fails(a, f.granted(a, key), "later", time.Minute)
		ask := anAsk()
		ask.Seen = f.read(b, key).Seen
		for _, s := range []cache.Store{a, b} {
			got := f.answers(s, key, ask, cache.Paused)
			if string(got.Failure) != "later" || got.TTL <= 0 || got.TTL > time.Minute {
				f.Errorf("paused for %v because of %q", got.TTL, got.Failure)
			}
		}
		f.reads(b, key, "old") // it can still be served
	}},

	{"PauseEndsByItself", nothing, func(f *fixture) {
		s := f.open()
		start := time.Now()
		f.fails(s, f.granted(s, key), "later", 200*time.Millisecond)
		f.answers(s, key, anAsk(), cache.Paused)
		f.eventually("granted", func() bool { return f.acquire(s, key, anAsk()).Verdict == cache.Granted })
		if paused := time.Since(start); paused < 198*time.Millisecond {
			f.Errorf("granted after %v, want 200ms", paused)
		}
	}},

	{"PauseSurvivesDeleteAndExpire", nothing, func(f *fixture) {
		s := f.open()
		f.fails(s, f.granted(s, key), "later", time.Minute)
		f.ok("Expire", s.Expire(f.ctx, key))
		f.answers(s, key, anAsk(), cache.Paused)
		f.ok("Delete", s.Delete(f.ctx, key))
		f.answers(s, key, anAsk(), cache.Paused)
	}},

	{"SetEndsAPause", nothing, func(f *fixture) {
		s := f.open()
		f.fails(s, f.granted(s, key), "later", time.Minute)
		f.set(s, key, "v")
		f.granted(s, key)
	}},

	{"ResetEndsAPause", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fails(a, f.granted(a, key), "later", time.Minute)
		f.ok("Reset", b.Reset(f.ctx, key))
		f.granted(a, key)
	}},

	{"FailureWithoutPauseHoldsNobodyOff", nothing, func(f *fixture) {
		s := f.open()
		f.fails(s, f.granted(s, key), "", 0)
		f.granted(s, key)
	}},
}
