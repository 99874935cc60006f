package cachetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// manyNames are keys that lie on all nodes of a cluster.
func manyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	return keys
}

func requests(keys []string) []cache.Request {
	rs := make([]cache.Request, len(keys))
	for i, k := range keys {
		rs[i] = cache.Request{Key: k, Ask: anAsk()}
	}
	return rs
}

// allGranted acquires many keys nobody holds.
func (f *fixture) allGranted(s cache.Store, keys []string) []*cache.Lease {
	f.Helper()
	leases := make([]*cache.Lease, len(keys))
	for i, a := range s.AcquireMany(f.ctx, requests(keys)) {
		if a.Err != nil || a.Answer.Verdict != cache.Granted || a.Answer.Lease.Key != keys[i] {
			f.Fatalf("%s: answered %+v, error %v", keys[i], a.Answer, a.Err)
		}
		leases[i] = a.Answer.Lease
	}
	return leases
}

// A Result is what [cache.Store]'s ReadMany answers for one key.
type Result struct {
	Reading *cache.Reading
	Err     error
}

// ReadMany collects what a store's ReadMany answers, in the order of keys. A key
// that isn't answered exactly once has an error.
func ReadMany(ctx context.Context, s cache.Store, keys []string) []Result {
	return readMany(ctx, s, "", keys)
}

func readMany(ctx context.Context, s cache.Store, prefix string, keys []string) []Result {
	results := make([]Result, len(keys))
	answers := make([]int, len(keys))
	s.ReadMany(ctx, prefix, keys, func(i int, r *cache.Reading, err error) {
		answers[i]++
		if results[i].Err = err; r != nil {
			results[i].Reading = r.Keep()
		}
	})
	for i, n := range answers {
		if n != 1 {
			results[i] = Result{Err: fmt.Errorf("%d answers for %q", n, keys[i])}
		}
	}
	return results
}

var manyTests = []test{
	{"ManyReadsAreWhatOneIs", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := slices.Concat(manyNames(50), []string{"", "}", "%", "a{b}c", string(make([]byte, 2000))})
		for i, k := range keys {
			if i%3 > 0 {
				f.set(a, k, "payload of "+k)
			}
		}
		for round := range 3 { // ages are learned, and known
			start := time.Now()
			results := ReadMany(f.ctx, b, keys)
			for i, res := range results {
				if res.Err != nil {
					f.Fatalf("round %d: %q: %v", round, keys[i], res.Err)
				}
				r := res.Reading
				if want := i%3 > 0; r.Found != want || r.Damage != nil || want && string(r.Entry.Payload) != "payload of "+keys[i] {
					f.Fatalf("round %d: %q: %+v", round, keys[i], r)
				}
				if !r.Found {
					continue
				}
				one := f.read(b, keys[i])
				apart := (one.Age - r.Age).Abs()
				if r.Seen != one.Seen || r.Age+r.Left != r.Entry.TTL || apart > time.Since(start)+2*time.Millisecond || !r.Fresh() {
					f.Errorf("round %d: %q: age %v, left %v, seen %x; by itself age %v, seen %x", round, keys[i], r.Age, r.Left, r.Seen, one.Age, one.Seen)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		if got := ReadMany(f.ctx, b, nil); len(got) != 0 {
			f.Errorf("of nothing: %v", got)
		}
	}},

	{"ManyReadsMayShareAPrefix", nothing, func(f *fixture) {
		s := f.open()
		keys := []string{"", "a", "}", "%", string(make([]byte, 500)), string(make([]byte, 2000))}
		for _, prefix := range []string{"", "g:", "}", "%", string(make([]byte, 600))} {
			for _, k := range keys {
				f.set(s, prefix+k, "of "+k)
			}
			for round := range 2 {
				for i, res := range readMany(f.ctx, s, prefix, keys) {
					if res.Err != nil || string(res.Reading.Entry.Payload) != "of "+keys[i] {
						f.Errorf("round %d: %q after %q: %+v, %v", round, keys[i], prefix, res.Reading, res.Err)
					}
				}
			}
		}
	}},

	{"ManyReadsSeeWhatChanged", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := manyNames(4)
		for _, k := range keys {
			f.set(a, k, "old")
		}
		for range 2 {
			ReadMany(f.ctx, b, keys)
		}
		f.set(a, keys[0], "new")
		f.ok("Delete", a.Delete(f.ctx, keys[1]))
		f.ok("Expire", a.Expire(f.ctx, keys[2]))
		got := ReadMany(f.ctx, b, append(keys, keys[0]))
		if string(got[0].Reading.Entry.Payload) != "new" || string(got[4].Reading.Entry.Payload) != "new" {
			f.Errorf("after Set: %+v", got[0].Reading)
		}
		if got[1].Reading.Found || got[1].Reading.Seen != "" {
			f.Errorf("after Delete: %+v", got[1].Reading)
		}
		if r := got[2].Reading; !r.Found || r.Fresh() {
			f.Errorf("after Expire: %+v", r)
		}
		if !got[3].Reading.Fresh() {
			f.Errorf("untouched: %+v", got[3].Reading)
		}
	}},

	{"ManyReadsGrowStale", nothing, func(f *fixture) {
		s := f.open()
		keys := manyNames(3)
		for _, k := range keys {
			e := anEntry("v")
			e.FreshFor, e.TTL = 150*time.Millisecond, time.Second
			f.ok("Set", s.Set(f.ctx, k, e))
		}
		ReadMany(f.ctx, s, keys)
		f.eventually("stale", func() bool { return !ReadMany(f.ctx, s, keys)[1].Reading.Fresh() })
		if r := ReadMany(f.ctx, s, keys)[1].Reading; !r.Found || r.Age < 150*time.Millisecond {
			f.Errorf("stale at age %v, found=%v", r.Age, r.Found)
		}
		f.eventually("gone", func() bool { return !ReadMany(f.ctx, s, keys)[1].Reading.Found })
	}},

	{"ManyReadsTellDamage", plant, func(f *fixture) {
		s := f.open()
		f.set(s, "good", "v")
		for _, b := range []string{"x", "sixteen bytes!!!", string(make([]byte, 100))} {
			f.Plant(f.T, key, []byte(b))
			for range 2 {
				got := ReadMany(f.ctx, s, []string{"good", key})
				if !got[0].Reading.Fresh() || got[1].Reading.Found || got[1].Reading.Damage == nil || got[1].Reading.Seen != b[:min(16, len(b))] {
					f.Errorf("%q: %+v", b, got[1].Reading)
				}
			}
		}
	}},

	{"EntryWithoutExpiryIsStaleAmongMany", plant, func(f *fixture) {
		s := f.open()
		e := anEntry("v")
		e.Version = cache.NewMinter().Token()
		f.Plant(f.T, key, e.Encode())
		for range 3 {
			if r := ReadMany(f.ctx, s, []string{key})[0].Reading; !r.Found || r.Fresh() || r.Age != e.TTL {
				f.Errorf("fresh=%v at age %v, want stale", r.Fresh(), r.Age)
			}
		}
	}},

	{"ManyAcquiresAreAnsweredEachByItself", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := manyNames(40)
		held := f.granted(a, keys[1])
		f.set(a, keys[2], "stored")
		f.fails(a, f.granted(a, keys[3]), "later", time.Minute)
		failed := f.granted(a, keys[4])
		f.fails(a, failed, "why", 0)
		rs := requests(keys)
		rs[4].Ask.LastHeld = failed.Token
		tokens := map[cache.Token]bool{}
		for i, got := range b.AcquireMany(f.ctx, rs) {
			want := map[int]cache.Verdict{1: cache.Held, 2: cache.HasEntry, 3: cache.Paused, 4: cache.Failed}[i]
			if want == 0 {
				want = cache.Granted
			}
			if got.Err != nil || got.Answer.Verdict != want {
				f.Fatalf("%s: %v, error %v, want %v", keys[i], got.Answer.Verdict, got.Err, want)
			}
			switch want {
			case cache.Held:
				if got.Answer.Holder != held.Token {
					f.Errorf("held by %v", got.Answer.Holder)
				}
			case cache.HasEntry:
				if string(got.Answer.Reading.Entry.Payload) != "stored" {
					f.Errorf("entry %+v", got.Answer.Reading)
				}
			case cache.Granted:
				if l := got.Answer.Lease; l.Key != keys[i] || l.Attempt != 1 || tokens[l.Token] {
					f.Errorf("granted %+v", l)
				}
				tokens[got.Answer.Lease.Token] = true
			}
		}
		if got := b.AcquireMany(f.ctx, nil); len(got) != 0 {
			f.Errorf("of nothing: %v", got)
		}
	}},

	{"ManyReturnsAreCarriedOutEachByItself", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := manyNames(40)
		leases := f.allGranted(a, keys)
		f.ok("Delete", b.Delete(f.ctx, keys[5]))
		w := f.watch(b, keys[0])
		returns := make([]cache.Return, len(keys))
		for i, l := range leases {
			returns[i] = cache.Return{Lease: l, Entry: anEntry("of " + keys[i])}
		}
		returns[6] = cache.Return{Lease: leases[6], Failed: true, Failure: []byte("why")}
		returns[7] = cache.Return{Lease: leases[7], Failed: true, Failure: []byte("later"), Pause: time.Minute}
		returns[8] = cache.Return{Lease: leases[8]}
		for i, got := range a.ReturnMany(f.ctx, returns) {
			if want := i != 5; got.Err != nil || got.OK != want {
				f.Fatalf("%s: %v, error %v", keys[i], got.OK, got.Err)
			}
		}
		if m := f.hears(w, cache.Filled); m.Token != leases[0].Token || string(m.Reading().Entry.Payload) != "of "+keys[0] {
			f.Errorf("woken by %v with %q", m.Token, m.Body)
		}
		for i, k := range keys {
			if i < 5 || i > 8 {
				f.reads(b, k, "of "+k)
			} else {
				f.misses(b, k)
			}
		}
		ask := anAsk()
		ask.LastHeld = leases[6].Token
		f.answers(b, keys[6], ask, cache.Failed)
		f.answers(b, keys[7], anAsk(), cache.Paused)
		f.answers(b, keys[5], anAsk(), cache.Granted)
		if l := f.answers(b, keys[8], anAsk(), cache.Granted).Lease; l.Attempt != 1 || l.TakenOver {
			f.Errorf("after a release: %+v", l)
		}
	}},

	{"LeasesOfManyAreRenewedAndLost", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := manyNames(10)
		rs := requests(keys)
		for i := range rs {
			rs[i].Ask.TTL = shortTTL
		}
		var leases []*cache.Lease
		for _, got := range a.AcquireMany(f.ctx, rs) {
			if got.Err != nil || got.Answer.Lease == nil {
				f.Fatalf("%+v", got)
			}
			leases = append(leases, got.Answer.Lease)
		}
		f.throughout(2*shortTTL, "held", func() bool { return f.acquire(b, keys[3], anAsk()).Verdict == cache.Held })
		f.ok("Delete", b.Delete(f.ctx, keys[4]))
		f.isLost(leases[4])
		f.isNotLost(leases[3])
	}},

	{"StormOfManyIsGrantedEachKeyOnce", nothing, func(f *fixture) {
		stores := []cache.Store{f.open(), f.open(), f.open()}
		keys := manyNames(30)
		granted := make([]atomic.Int32, len(keys))
		var wg sync.WaitGroup
		for n := range 12 {
			wg.Go(func() {
				order := slices.Clone(keys)
				if n%2 == 0 {
					slices.Reverse(order)
				}
				for i, a := range stores[n%3].AcquireMany(f.ctx, requests(order)) {
					if n%2 == 0 {
						i = len(keys) - 1 - i
					}
					if a.Err != nil {
						f.Errorf("%v", a.Err)
					} else if a.Answer.Verdict == cache.Granted {
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

	{"ManyAfterClose", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := manyNames(3)
		leases := f.allGranted(a, keys)
		f.ok("Close", a.Close())
		for i := range keys {
			if err := ReadMany(f.ctx, a, keys)[i].Err; err != cache.ErrClosed {
				f.Errorf("ReadMany: %v", err)
			}
			if err := a.AcquireMany(f.ctx, requests(keys))[i].Err; err != cache.ErrClosed {
				f.Errorf("AcquireMany: %v", err)
			}
			if got := a.ReturnMany(f.ctx, []cache.Return{{Lease: leases[i], Entry: anEntry("late")}})[0]; got.OK || got.Err != cache.ErrClosed {
				f.Errorf("ReturnMany: %+v", got)
			}
		}
		f.allGranted(b, keys) // Close gave them back
	}},
}
