package storetest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

var readTests = []test{
	{"MissIsNoError", func(f *fixture) {
		r := f.read(f.open(), key)
		if r.Found || r.Damage != nil || r.Seen != "" || r.Fresh() {
			f.Errorf("read %+v, want a miss", r)
		}
	}},

	{"AllFieldsAreReadInAnotherProcess", func(f *fixture) {
		a, b := f.open(), f.open()
		for _, e := range []*store.Entry{
			{Kind: store.Value, Codec: 200, Flags: store.FlagCompressed, TTL: time.Minute, FreshFor: 1234 * time.Millisecond, Took: 77 * time.Millisecond, Payload: []byte("\x00\xff payload")},
			{Kind: store.Negative, TTL: time.Minute, FreshFor: time.Minute},
			{Kind: store.Bypass, Flags: store.FlagTooLarge, TTL: store.MaxTTL, FreshFor: store.MaxTTL, Took: math.MaxUint32 * time.Millisecond},
			entryOf(strings.Repeat("large", 1<<18)),
		} {
			f.setEntry(a, key, e)
			r := f.reads(b, key, string(e.Payload))
			got := r.Entry
			if got.Version != e.Version || got.Version.IsZero() || got.Kind != e.Kind || got.Codec != e.Codec ||
				got.Flags != e.Flags || got.TTL != e.TTL || got.FreshFor != e.FreshFor || got.Took != e.Took || got.Written == 0 {
				f.Errorf("read %+v, want %+v", got, *e)
			}
			if r.Seen != string(e.Version[:]) {
				f.Errorf("Seen is %x, want the version %v", r.Seen, e.Version)
			}
		}
	}},

	{"AgeGrowsWhileTimeLeftShrinks", func(f *fixture) {
		a, b := f.open(), f.open()
		f.read(b, key)
		e := entryOf("v")
		e.FreshFor = 200 * time.Millisecond
		before := time.Now()
		f.setEntry(a, key, e)
		after := time.Now()
		for stale := false; !stale; time.Sleep(20 * time.Millisecond) {
			for _, s := range []store.Store{a, b} {
				least := time.Since(after)
				r := f.reads(s, key, "v")
				// The server counts microseconds. A reading may be older than its entry by the round
				// trip that told the server's time, and not younger.
				if r.Age < least-time.Microsecond || r.Age > time.Since(before)+time.Second || r.Age+r.Left != e.TTL {
					f.Fatalf("age %v and left %v of %v, after %v to %v", r.Age, r.Left, e.TTL, least, time.Since(before))
				}
				if stale = !r.Fresh(); stale != (r.Age >= e.FreshFor) {
					f.Fatalf("stale=%v at age %v", stale, r.Age)
				}
			}
		}
	}},

	// pitfall 19
	{"EntryLivesForItsMilliseconds", func(f *fixture) {
		s := f.open()
		for _, ttl := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 250 * time.Millisecond} {
			e := entryOf("v")
			e.TTL = ttl
			start := time.Now()
			f.setEntry(s, key, e)
			if r := f.read(s, key); r.Found && r.Left > ttl {
				f.Errorf("%v left of %v", r.Left, ttl)
			}
			f.eventually("gone", func() bool { return !f.read(s, key).Found })
			// Redis counts in milliseconds of its own clock.
			if lived := time.Since(start); lived < ttl-2*time.Millisecond {
				f.Errorf("gone after %v, want %v", lived, ttl)
			}
		}
	}},

	// pitfall 40, for payloads
	{"PayloadIsNotSharedWithCallers", func(f *fixture) {
		s := f.open()
		e := f.set(s, key, "value")
		e.Payload[0] = 'X'
		f.reads(s, key, "value").Entry.Payload[0] = 'Y'
		f.answers(s, request(key), store.HasEntry).Reading.Entry.Payload[0] = 'Z'
		f.reads(s, key, "value")

		why := []byte("why")
		r := store.Return{Lease: f.granted(s, key), Failed: true, Failure: why, Pause: time.Minute}
		if b := f.giveBack(f.ctx, s, r); !b.OK || b.Err != nil {
			f.Fatalf("the failure answered %v, error %v", b.OK, b.Err)
		}
		why[0] = 'X'
		f.answers(s, f.asSeen(s, key), store.Paused).Failure[0] = 'Y'
		if got := f.answers(s, f.asSeen(s, key), store.Paused).Failure; string(got) != "why" {
			f.Errorf("the failure became %q", got)
		}
	}},

	// pitfall 31
	{"DamagedBytesAreOverwrittenByTheNextFill", func(f *fixture) {
		s := f.open()
		version := store.NewMinter().Token()
		for _, b := range []string{
			"x", "fifteen bytes!!", "sixteen bytes!!!", strings.Repeat("\x00", 32), strings.Repeat("\xff", 100),
			string(version[:]) + "\x09" + strings.Repeat("v", 40), // a format of the future
			string(version[:]) + "\x01\x01\x00\x00" + strings.Repeat("\x00\x01", 6) + "a value of format 1",
		} {
			f.Plant(f.T, key, []byte(b))
			r := f.read(s, key)
			if r.Found || r.Fresh() || !errors.Is(r.Damage, store.ErrDamaged) || r.Seen != b[:min(len(b), 16)] {
				f.Fatalf("read of %q: %+v", b, r)
			}
			if a := f.answers(s, request(key), store.HasEntry); a.Reading.Found || a.Reading.Seen != r.Seen {
				f.Fatalf("acquire answered %+v of %q", a.Reading, b)
			}
			f.fills(s, f.granted(s, key), "mended")
			f.reads(s, key, "mended")
			f.change(s, store.Delete, key)
		}
	}},

	{"EntryWithoutExpiryGrowsStale", func(f *fixture) {
		s := f.open()
		e := entryOf("v")
		e.Version = store.NewMinter().Token()
		f.Plant(f.T, key, e.Encode())
		if r := f.reads(s, key, "v"); r.Fresh() || r.Age < e.TTL || r.Left != 0 {
			f.Errorf("fresh=%v at age %v with %v left, want stale", r.Fresh(), r.Age, r.Left)
		}
	}},

	{"ReadIsSentOnceItIsAnswered", func(f *fixture) {
		s := f.open()
		rd := StartRead(f.ctx, s, key)
		if _, err := rd.Result(); err != nil || !rd.Sent() {
			f.Errorf("sent=%v, error %v", rd.Sent(), err)
		}
	}},
}

// names are keys that lie on all nodes of a cluster.
func names(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	return keys
}

var manyTests = []test{
	{"ManyReadsAnswerAsSingleOnesDo", func(f *fixture) {
		a, b := f.open(), f.open()
		keys := slices.Concat(names(50), []string{"", "}", "%", "a{b}c", string(make([]byte, 2000))})
		for i, k := range keys {
			if i%3 > 0 {
				f.set(a, k, "payload of "+k)
			}
		}
		for i, res := range ReadMany(f.ctx, b, "", keys) {
			if res.Err != nil {
				f.Fatalf("%q: %v", keys[i], res.Err)
			}
			r := res.Reading
			if want := i%3 > 0; r.Found != want || r.Damage != nil || want && string(r.Entry.Payload) != "payload of "+keys[i] {
				f.Fatalf("%q: %+v", keys[i], r)
			}
			if r.Found && (r.Seen != f.read(b, keys[i]).Seen || r.Age+r.Left != r.Entry.TTL || !r.Fresh()) {
				f.Errorf("%q: age %v, left %v, seen %x", keys[i], r.Age, r.Left, r.Seen)
			}
		}
		if got := ReadMany(f.ctx, b, "", nil); len(got) != 0 {
			f.Errorf("of nothing: %v", got)
		}
	}},

	{"ManyReadsShareAPrefix", func(f *fixture) {
		s := f.open()
		keys := []string{"", "a", "}", "%", string(make([]byte, 500)), string(make([]byte, 2000))}
		for _, prefix := range []string{"", "g:", "}", "%", string(make([]byte, 600))} {
			for _, k := range keys {
				f.set(s, prefix+k, "of "+k)
			}
			for i, res := range ReadMany(f.ctx, s, prefix, keys) {
				if res.Err != nil || string(res.Reading.Entry.Payload) != "of "+keys[i] {
					f.Errorf("%q after %q: %+v, %v", keys[i], prefix, res.Reading, res.Err)
				}
			}
		}
	}},

	{"KeyNamedTwiceIsReadTwice", func(f *fixture) {
		s := f.open()
		f.set(s, key, "v")
		for _, res := range ReadMany(f.ctx, s, "", []string{key, "none", key}) {
			if res.Err != nil || res.Reading.Found != (res.Reading.Seen != "") {
				f.Errorf("%+v", res)
			}
		}
	}},

	{"CallsWithoutKeysAnswerNothing", func(f *fixture) {
		s := f.open()
		if n := len(s.Acquire(f.ctx, nil)) + len(s.Return(f.ctx, nil)) + len(s.Change(f.ctx, nil)); n != 0 {
			f.Errorf("%d answers", n)
		}
	}},
}
