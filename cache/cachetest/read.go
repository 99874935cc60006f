package cachetest

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

var readTests = []test{
	{"MissIsNoError", nothing, func(f *fixture) {
		r := f.read(f.open(), key)
		if r.Found || r.Damage != nil || r.Seen != "" || r.Fresh() {
			f.Errorf("read %+v, want a miss", r)
		}
	}},

	{"EveryFieldOfAnEntryIsReadInAnotherProcess", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		for _, e := range []*cache.Entry{
			{Kind: cache.Value, Codec: 200, Flags: cache.FlagCompressed, TTL: time.Minute, FreshFor: 1234 * time.Millisecond, Took: 77 * time.Millisecond, Payload: []byte("\x00\xff payload")},
			{Kind: cache.Negative, TTL: time.Minute, FreshFor: time.Minute},
			{Kind: cache.Bypass, Flags: cache.FlagTooLarge, TTL: cache.MaxTTL, FreshFor: cache.MaxTTL, Took: math.MaxUint32 * time.Millisecond},
			anEntry(strings.Repeat("large", 1<<18)),
		} {
			f.ok("Set", a.Set(f.ctx, key, e))
			r := f.reads(b, key, string(e.Payload))
			got := r.Entry
			if got.Version != e.Version || got.Version.IsZero() || got.Kind != e.Kind || got.Codec != e.Codec ||
				got.Flags != e.Flags || got.TTL != e.TTL || got.FreshFor != e.FreshFor || got.Took != e.Took {
				f.Errorf("read %+v, want %+v", got, *e)
			}
			if r.Seen != string(e.Version[:]) {
				f.Errorf("Seen is %x, want the version %v", r.Seen, e.Version)
			}
		}
	}},

	{"AgeGrowsWhileTimeLeftShrinks", nothing, func(f *fixture) {
		s := f.open()
		e := anEntry("v")
		e.FreshFor = 100 * time.Millisecond
		start := time.Now()
		f.ok("Set", s.Set(f.ctx, key, e))
		r := f.reads(s, key, "v")
		if r.Age < 0 || r.Age > time.Since(start)+time.Millisecond || r.Left <= 0 || r.Age+r.Left != e.TTL {
			f.Errorf("age %v and left %v after %v, of %v", r.Age, r.Left, time.Since(start), e.TTL)
		}
		f.eventually("stale", func() bool { r = f.reads(s, key, "v"); return !r.Fresh() })
		if r.Age < e.FreshFor || r.Age+r.Left != e.TTL {
			f.Errorf("stale at age %v with %v left, want from %v on", r.Age, r.Left, e.FreshFor)
		}
	}},

	// pitfall 19
	{"EntryLivesForItsMilliseconds", nothing, func(f *fixture) {
		s := f.open()
		for _, ttl := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 250 * time.Millisecond} {
			e := anEntry("v")
			e.TTL = ttl
			start := time.Now()
			f.ok("Set", s.Set(f.ctx, key, e))
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
	{"PayloadIsNotSharedWithCallers", nothing, func(f *fixture) {
		s := f.open()
		e := f.set(s, key, "value")
		e.Payload[0] = 'X'
		f.reads(s, key, "value").Entry.Payload[0] = 'Y'
		f.answers(s, key, anAsk(), cache.HasEntry).Reading.Entry.Payload[0] = 'Z'
		f.reads(s, key, "value")

		l := f.granted(s, key)
		why := []byte("why")
		if told, err := s.Fail(f.ctx, l, why, time.Minute); err != nil || !told {
			f.Fatalf("Fail answered %v, error %v", told, err)
		}
		why[0] = 'X'
		ask := anAsk()
		ask.Seen = f.read(s, key).Seen
		f.answers(s, key, ask, cache.Paused).Failure[0] = 'Y'
		if got := f.answers(s, key, ask, cache.Paused).Failure; string(got) != "why" {
			f.Errorf("the failure became %q", got)
		}
	}},

	// pitfall 31
	{"DamagedBytesAreAMissThatTheNextFillOverwrites", plant, func(f *fixture) {
		s := f.open()
		version := cache.NewMinter().Token()
		for _, b := range []string{
			"x", "fifteen bytes!!", "sixteen bytes!!!", strings.Repeat("\x00", 32), strings.Repeat("\xff", 100),
			string(version[:]) + "\x09" + strings.Repeat("v", 40), // a format of the future
		} {
			f.Plant(f.T, key, []byte(b))
			r := f.read(s, key)
			if r.Found || r.Fresh() || !errors.Is(r.Damage, cache.ErrDamaged) || r.Seen != b[:min(len(b), 16)] {
				f.Fatalf("read of %q: %+v", b, r)
			}
			if a := f.answers(s, key, anAsk(), cache.HasEntry); a.Reading.Found || a.Reading.Seen != r.Seen {
				f.Fatalf("acquire answered %+v of %q", a.Reading, b)
			}
			f.fills(s, f.granted(s, key), "mended")
			f.reads(s, key, "mended")
			f.ok("Delete", s.Delete(f.ctx, key))
		}
	}},

	{"EntryWithoutExpiryIsStale", plant, func(f *fixture) {
		s := f.open()
		e := anEntry("v")
		e.Version = cache.NewMinter().Token()
		f.Plant(f.T, key, e.Encode())
		if r := f.reads(s, key, "v"); r.Fresh() || r.Age != e.TTL {
			f.Errorf("fresh=%v at age %v, want stale", r.Fresh(), r.Age)
		}
	}},
}
