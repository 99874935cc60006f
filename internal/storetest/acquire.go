package storetest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

var acquireTests = []test{
	{"FirstCallerIsGranted", func(f *fixture) {
		l := f.answers(f.open(), request(key), store.Granted).Lease
		if l.Key != key || l.Token.IsZero() || l.Attempt != 1 || l.TakenOver {
			f.Errorf("granted %+v", l)
		}
		f.isNotLost(l)
	}},

	// pitfall 5
	{"EachAttemptHasItsOwnToken", func(f *fixture) {
		a, b := f.open(), f.open()
		seen := map[store.Token]bool{}
		for _, s := range []store.Store{a, a, b, b} {
			l := f.granted(s, key)
			if seen[l.Token] {
				f.Fatalf("token %v was drawn twice", l.Token)
			}
			seen[l.Token] = true
			f.releases(s, l)
		}
		processes := map[store.Process]bool{}
		for token := range seen {
			processes[token.Process()] = true
		}
		if len(processes) != 2 {
			f.Errorf("the tokens of two processes name %d", len(processes))
		}
	}},

	// pitfall 27: a process knows its own leases by their tokens, too.
	{"HeldNamesTheHolderAndTheTTL", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		for _, s := range []store.Store{a, b} {
			got := f.answers(s, request(key), store.Held)
			if got.Holder != l.Token || got.Unwatched || got.TTL <= 0 || got.TTL > request(key).TTL {
				f.Errorf("held by %v, unwatched=%v, for %v; want %v, watched, at most %v", got.Holder, got.Unwatched, got.TTL, l.Token, request(key).TTL)
			}
		}
	}},

	{"StormIsGrantedOneLease", func(f *fixture) {
		stores := []store.Store{f.open(), f.open(), f.open()}
		var granted, held atomic.Int32
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				switch a := f.tryAcquire(f.ctx, stores[i%len(stores)], request(key)); {
				case a.Err != nil:
					f.Errorf("Acquire: %v", a.Err)
				case a.Verdict == store.Granted:
					granted.Add(1)
				case a.Verdict == store.Held:
					held.Add(1)
				}
			})
		}
		wg.Wait()
		if granted.Load() != 1 || held.Load() != 59 {
			f.Errorf("%d were granted and %d held, want 1 and 59", granted.Load(), held.Load())
		}
	}},

	{"StormOfManyIsGrantedEachKeyOnce", func(f *fixture) {
		stores := []store.Store{f.open(), f.open(), f.open()}
		keys := names(30)
		granted := make([]atomic.Int32, len(keys))
		var wg sync.WaitGroup
		for n := range 12 {
			wg.Go(func() {
				order := slices.Clone(keys)
				if n%2 == 0 {
					slices.Reverse(order)
				}
				requests := make([]store.Request, len(order))
				for i, k := range order {
					requests[i] = request(k)
				}
				for i, a := range stores[n%3].Acquire(f.ctx, requests) {
					if n%2 == 0 {
						i = len(keys) - 1 - i
					}
					if a.Err != nil {
						f.Errorf("%v", a.Err)
					} else if a.Verdict == store.Granted {
						granted[i].Add(1)
					}
				}
			})
		}
		wg.Wait()
		for i := range granted {
			if n := granted[i].Load(); n != 1 {
				f.Errorf("%s was granted %d times", keys[i], n)
			}
		}
	}},

	{"EntryNotSeenIsTheAnswer", func(f *fixture) {
		a, b := f.open(), f.open()
		first := f.set(a, key, "first")
		second := f.set(a, key, "second")
		ask := request(key)
		for _, seen := range []string{"", string(first.Version[:]), "x"} {
			ask.Seen = seen
			r := f.answers(b, ask, store.HasEntry).Reading
			if r == nil || !r.Found || string(r.Entry.Payload) != "second" || !r.Fresh() || r.Age+r.Left != second.TTL {
				f.Errorf("with seen %x: reading %+v", seen, r)
			}
		}
		ask.Seen = string(second.Version[:])
		f.answers(b, ask, store.Granted)
	}},

	{"AnsweredEntryTellsItsAge", func(f *fixture) {
		a, b := f.open(), f.open()
		before := time.Now()
		f.set(a, key, "v")
		after := time.Now()
		time.Sleep(50 * time.Millisecond)
		least := time.Since(after)
		r := f.answers(b, request(key), store.HasEntry).Reading
		if r.Age < least-time.Microsecond || r.Age > time.Since(before) {
			f.Errorf("age %v after %v to %v", r.Age, least, time.Since(before))
		}
	}},

	{"EntryNotSeenOutranksALease", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		f.granted(a, key)
		f.answers(b, request(key), store.HasEntry)
	}},

	// An entry that replaces another one ends the lease: under the lease that the caller was
	// told of, there is no entry that it has to see.
	{"KnownLeaseOutranksAnEntryNotSeen", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		ask := request(key)
		ask.LastHeld = f.granted(a, key).Token
		if got := f.answers(b, ask, store.Held); got.Holder != ask.LastHeld {
			f.Errorf("held by %x, want %x", got.Holder, ask.LastHeld)
		}
		f.set(a, key, "new")
		f.answers(b, ask, store.HasEntry)
	}},

	{"SeenOfAnEntryThatIsGoneIsGranted", func(f *fixture) {
		s := f.open()
		e := f.set(s, key, "v")
		f.change(s, store.Delete, key)
		ask := request(key)
		ask.Seen = string(e.Version[:])
		f.answers(s, ask, store.Granted)
	}},

	// pitfall 1: a failure reaches the waiters, which do not fetch in turn.
	{"FailureIsToldToItsWaiters", func(f *fixture) {
		a, b, c := f.open(), f.open(), f.open()
		l := f.granted(a, key)
		waiter := request(key)
		waiter.LastHeld = f.answers(b, request(key), store.Held).Holder
		f.fails(a, l, "why\x00", 0)
		f.isNotLost(l)

		if got := f.answers(b, waiter, store.Failed); string(got.Failure) != "why\x00" {
			f.Errorf("the failure is told as %q", got.Failure)
		}
		// A caller that never waited for it fetches. The waiters are still told.
		if next := f.granted(c, key); next.Attempt != 1 {
			f.Errorf("attempt %d after an outcome, want 1", next.Attempt)
		}
		f.answers(b, waiter, store.Failed)
		waiter.LastHeld = store.NewMinter().Token()
		f.answers(b, waiter, store.Held)
	}},

	{"EntryOutranksAFailure", func(f *fixture) {
		s := f.open()
		l := f.granted(s, key)
		f.fails(s, l, "why", 0)
		f.set(s, key, "v")
		ask := request(key)
		ask.LastHeld = l.Token
		f.answers(s, ask, store.HasEntry)
	}},

	{"EachKeyOfManyIsAnsweredByItself", func(f *fixture) {
		a, b := f.open(), f.open()
		keys := names(40)
		held := f.granted(a, keys[1])
		f.set(a, keys[2], "stored")
		f.fails(a, f.granted(a, keys[3]), "later", time.Minute)
		failed := f.granted(a, keys[4])
		f.fails(a, failed, "why", 0)
		requests := make([]store.Request, len(keys))
		for i, k := range keys {
			requests[i] = request(k)
		}
		requests[4].LastHeld = failed.Token
		tokens := map[store.Token]bool{}
		for i, got := range b.Acquire(f.ctx, requests) {
			want := map[int]store.Verdict{1: store.Held, 2: store.HasEntry, 3: store.Paused, 4: store.Failed}[i]
			if want == 0 {
				want = store.Granted
			}
			if got.Err != nil || got.Verdict != want {
				f.Fatalf("%s: %v, error %v, want %v", keys[i], got.Verdict, got.Err, want)
			}
			switch want {
			case store.Held:
				if got.Holder != held.Token {
					f.Errorf("held by %v", got.Holder)
				}
			case store.HasEntry:
				if string(got.Reading.Entry.Payload) != "stored" {
					f.Errorf("entry %+v", got.Reading)
				}
			case store.Granted:
				if l := got.Lease; l.Key != keys[i] || l.Attempt != 1 || tokens[l.Token] {
					f.Errorf("granted %+v", l)
				}
				tokens[got.Lease.Token] = true
			}
		}
	}},
}

var pauseTests = []test{
	// pitfall 1: RetryAfter holds the whole fleet off.
	{"PauseHoldsAllProcessesOff", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "old")
		f.fails(a, f.granted(a, key), "later", time.Minute)
		for _, s := range []store.Store{a, b} {
			got := f.answers(s, f.asSeen(s, key), store.Paused)
			if string(got.Failure) != "later" || got.TTL <= 0 || got.TTL > time.Minute {
				f.Errorf("paused for %v because of %q", got.TTL, got.Failure)
			}
		}
		f.reads(b, key, "old") // it can still be served
	}},

	{"PauseEndsByItself", func(f *fixture) {
		s := f.open()
		start := time.Now()
		f.fails(s, f.granted(s, key), "later", 200*time.Millisecond)
		f.answers(s, request(key), store.Paused)
		f.eventually("granted", func() bool { return f.acquire(s, request(key)).Verdict == store.Granted })
		if paused := time.Since(start); paused < 198*time.Millisecond {
			f.Errorf("granted after %v, want 200ms", paused)
		}
	}},

	{"PauseSurvivesDeleteAndExpire", func(f *fixture) {
		s := f.open()
		f.fails(s, f.granted(s, key), "later", time.Minute)
		f.change(s, store.Expire, key)
		f.answers(s, request(key), store.Paused)
		f.change(s, store.Delete, key)
		f.answers(s, request(key), store.Paused)
	}},

	{"SetEndsAPause", func(f *fixture) {
		s := f.open()
		f.fails(s, f.granted(s, key), "later", time.Minute)
		f.set(s, key, "v")
		f.granted(s, key)
	}},

	{"ResetEndsAPause", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fails(a, f.granted(a, key), "later", time.Minute)
		f.change(b, store.Reset, key)
		f.granted(a, key)
	}},

	{"FailureWithoutPauseHoldsNothingOff", func(f *fixture) {
		s := f.open()
		f.fails(s, f.granted(s, key), "", 0)
		f.granted(s, key)
	}},

	{"FailuresInARowAreCountedFleetWide", func(f *fixture) {
		a, b := f.open(), f.open()
		granted := func(s store.Store) (l *store.Lease) {
			f.Helper()
			f.eventually("the pause ends", func() bool {
				answer := f.acquire(s, request(key))
				l = answer.Lease
				return answer.Verdict == store.Granted
			})
			return l
		}
		const pause = 20 * time.Millisecond
		for want, s := range []store.Store{a, b, a} {
			l := granted(s)
			if l.Failures != want {
				f.Errorf("%d failures, want %d", l.Failures, want)
			}
			f.fails(s, l, "why", pause)
		}
		f.fails(b, granted(b), "a failure without a pause does not count", 0)
		l := granted(b)
		if l.Failures != 3 {
			f.Errorf("%d failures, want 3", l.Failures)
		}
		f.fills(b, l, "v")
		f.change(a, store.Delete, key)
		for _, forgive := range []func(){
			func() {},
			func() { f.set(b, key, "v"); f.change(b, store.Delete, key) },
			func() { f.change(b, store.Reset, key) },
		} {
			forgive()
			l := granted(a)
			if l.Failures != 0 {
				f.Errorf("%d failures after an outcome", l.Failures)
			}
			f.fails(a, l, "why", pause)
		}
	}},
}

// hold makes many leases of one process.
func (f *fixture) hold(s store.Store, ttl time.Duration, keys []string) []*store.Lease {
	f.Helper()
	requests := make([]store.Request, len(keys))
	for i, k := range keys {
		requests[i] = request(k)
		requests[i].TTL = ttl
	}
	leases := make([]*store.Lease, len(keys))
	for i, a := range s.Acquire(f.ctx, requests) {
		if leases[i] = a.Lease; a.Verdict != store.Granted {
			f.Fatalf("%s: %v, error %v, want granted", keys[i], a.Verdict, a.Err)
		}
	}
	return leases
}
