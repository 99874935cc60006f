package cachetest

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/stampedeguard/stampede/cache"
)

func (f *fixture) stamp(s cache.Store) cache.Stamp {
	f.Helper()
	stamp, err := s.Stamp(f.ctx)
	f.ok("Stamp", err)
	return stamp
}

// aTagged is an entry whose fetch started at the stamp.
func aTagged(payload string, stamp cache.Stamp, tags ...string) *cache.Entry {
	e := anEntry(payload)
	e.Tags, e.Stamp = tags, stamp
	return e
}

// fillsTagged has a process fetch and fill key.
func (f *fixture) fillsTagged(s cache.Store, key, payload string, tags ...string) {
	f.Helper()
	stamp := f.stamp(s)
	stored, err := s.Fill(f.ctx, f.granted(s, key), aTagged(payload, stamp, tags...))
	if err != nil || !stored {
		f.Fatalf("Fill answered %v, error %v, want it stored", stored, err)
	}
}

func (f *fixture) setTagged(s cache.Store, key, payload string, tags ...string) {
	f.Helper()
	f.ok("Set", s.Set(f.ctx, key, aTagged(payload, cache.Stamp{}, tags...)))
}

// isInvalid checks that a key's entry counts as none, and can be fetched anew.
func (f *fixture) isInvalid(s cache.Store, key string) {
	f.Helper()
	r := f.read(s, key)
	if r.Found || r.Damage != nil || len(r.Entry.Payload) > 0 {
		f.Fatalf("read found=%v damage=%v %.40q, want an invalid entry", r.Found, r.Damage, r.Entry.Payload)
	}
	if r.Seen == "" {
		f.Fatal("Seen is empty: nobody could ever overwrite the entry")
	}
}

var tagTests = []test{
	{"TagsComeBackWithTheEntry", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		tags := []string{"t", "}", "%", "{x}y", "a\nb", "\x00\xff", strings.Repeat("long", 128)}
		f.fillsTagged(a, key, "v", tags...)
		for range 3 { // the first read doesn't know of the tags, the others do
			for _, s := range []cache.Store{a, b} {
				r := f.reads(s, key, "v")
				if !slices.Equal(r.Entry.Tags, tags) || !r.Fresh() || r.Entry.Kind != cache.Value {
					f.Errorf("%q, fresh=%v", r.Entry.Tags, r.Fresh())
				}
			}
		}
		answer := f.answers(b, key, anAsk(), cache.HasEntry)
		if !answer.Reading.Found || string(answer.Reading.Entry.Payload) != "v" {
			f.Errorf("acquire answered %+v", answer.Reading)
		}
	}},

	{"DeletedTagTakesWhateverCarriesIt", nothing, func(f *fixture) {
		a, b, c := f.open(), f.open(), f.open()
		f.fillsTagged(a, "1", "v1", "red", "round")
		f.setTagged(b, "2", "v2", "red")
		f.fillsTagged(c, "3", "v3", "round")
		f.set(a, "4", "v4")
		stores := []cache.Store{a, b, c}
		for _, s := range stores {
			f.reads(s, "1", "v1")
			f.reads(s, "2", "v2")
			f.reads(s, "3", "v3")
		}
		f.ok("DeleteTag", c.DeleteTag(f.ctx, "red"))
		for _, s := range stores {
			f.isInvalid(s, "1")
			f.isInvalid(s, "2")
			f.reads(s, "3", "v3")
			f.reads(s, "4", "v4")
		}
		f.ok("DeleteTag", a.DeleteTag(f.ctx, "round", "unheard of", "round"))
		for _, s := range stores {
			f.isInvalid(s, "3")
			f.reads(s, "4", "v4")
		}
	}},

	// P3: also for who asks for the lease with an older view of the entry
	{"AcquireAnswersNoEntryWhoseTagWasDeleted", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t")
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "t"))
		answer := f.answers(a, key, anAsk(), cache.HasEntry)
		if answer.Reading.Found || answer.Reading.Seen == "" {
			f.Fatalf("%+v", answer.Reading)
		}
		ask := anAsk()
		ask.Seen = answer.Reading.Seen
		f.answers(a, key, ask, cache.Granted)
	}},

	{"ValueFetchedAfterADeletionIsStored", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		for _, payload := range []string{"1", "2", "3"} {
			f.fillsTagged(a, key, payload, "t", "u")
			f.reads(b, key, payload)
			f.ok("DeleteTag", b.DeleteTag(f.ctx, "t", "u"))
			f.isInvalid(a, key)
			f.isInvalid(b, key)
		}
		f.setTagged(b, key, "set", "t")
		f.reads(a, key, "set")
	}},

	// P3, against a fetch in flight
	{"FetchThatADeletionMetIsNotStored", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		for _, tags := range [][]string{{"new"}, {"known", "new too"}} {
			stamp := f.stamp(a)
			l := f.granted(a, key)
			f.ok("DeleteTag", b.DeleteTag(f.ctx, tags[len(tags)-1]))
			stored, err := a.Fill(f.ctx, l, aTagged("old", stamp, tags...))
			if stored || !errors.Is(err, cache.ErrInvalidated) {
				f.Fatalf("Fill answered %v, error %v", stored, err)
			}
			f.misses(b, key)
			f.granted(b, key) // the lease was released
			f.ok("Delete", b.Delete(f.ctx, key))
		}
	}},

	{"FetchThatADeletionOfAnotherTagMetIsStored", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, "other", "v", "t") // the tag is known
		stamp := f.stamp(a)
		l := f.granted(a, key)
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "another"))
		stored, err := a.Fill(f.ctx, l, aTagged("v", stamp, "t"))
		if !stored || err != nil {
			f.Fatalf("Fill answered %v, error %v", stored, err)
		}
		f.reads(b, key, "v")
	}},

	{"ExpiredTagMakesStaleWhateverCarriesIt", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t")
		f.setTagged(a, "other", "w", "u")
		f.reads(b, key, "v")
		f.ok("ExpireTag", b.ExpireTag(f.ctx, "t"))
		for _, s := range []cache.Store{a, b} {
			if r := f.reads(s, key, "v"); r.Fresh() || r.Entry.Flags&cache.FlagExpired == 0 {
				f.Errorf("fresh=%v flags=%d", r.Fresh(), r.Entry.Flags)
			}
			if !f.reads(s, "other", "w").Fresh() {
				f.Error("another tag's entry is stale")
			}
		}
		f.fillsTagged(b, key, "new", "t")
		if !f.reads(a, key, "new").Fresh() {
			f.Error("the fill after it is stale")
		}
		f.ok("DeleteTag", a.DeleteTag(f.ctx, "t"))
		f.isInvalid(b, key)
	}},

	{"FetchThatAnExpiryMetIsStoredStale", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, "other", "v", "t")
		stamp := f.stamp(a)
		l := f.granted(a, key)
		f.ok("ExpireTag", b.ExpireTag(f.ctx, "t"))
		e := aTagged("v", stamp, "t")
		if stored, err := a.Fill(f.ctx, l, e); !stored || err != nil {
			f.Fatalf("Fill answered %v, error %v", stored, err)
		}
		if e.Flags&cache.FlagExpired == 0 || f.reads(b, key, "v").Fresh() {
			f.Error("it is fresh")
		}
	}},

	// A deletion draws its number first and is recorded afterwards: in between the
	// stamp of a fetch may be read, and then the value that it finds to be good.
	{"ValueIsNotRenewedPastADeletion", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		first := f.stamp(a)
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "t"))
		e := aTagged("v", first, "t")
		e.Renewed = f.stamp(a).N
		if stored, err := a.Fill(f.ctx, f.granted(a, key), e); stored || !errors.Is(err, cache.ErrInvalidated) {
			f.Fatalf("Fill answered %v, error %v, want ErrInvalidated", stored, err)
		}
		e = aTagged("v", f.stamp(a), "t")
		e.Renewed = e.Stamp.N + 1 // the deletion's number
		if stored, err := a.Fill(f.ctx, f.granted(a, key), e); err != nil || !stored {
			f.Fatalf("Fill answered %v, error %v, want it stored", stored, err)
		}
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "t"))
		f.isInvalid(a, key)
		f.isInvalid(b, key)
	}},

	{"RenewedValueIsFreshAfterAnExpiry", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		first := f.stamp(a)
		f.fillsTagged(a, key, "v", "t")
		f.ok("ExpireTag", b.ExpireTag(f.ctx, "t"))
		if f.reads(a, key, "v").Fresh() {
			f.Error("fresh after ExpireTag")
		}
		f.ok("Delete", a.Delete(f.ctx, key))
		e := aTagged("v", first, "t")
		e.Renewed = f.stamp(a).N
		if stored, err := a.Fill(f.ctx, f.granted(a, key), e); err != nil || !stored {
			f.Fatalf("Fill answered %v, error %v, want it stored", stored, err)
		}
		for _, s := range []cache.Store{a, b} {
			if r := f.reads(s, key, "v"); !r.Fresh() || r.Entry.Renewed != e.Renewed {
				f.Errorf("fresh=%v, renewed at %d, want %d", r.Fresh(), r.Entry.Renewed, e.Renewed)
			}
		}
		f.ok("ExpireTag", b.ExpireTag(f.ctx, "t"))
		if f.reads(a, key, "v").Fresh() {
			f.Error("fresh after another ExpireTag")
		}
	}},

	{"NegativeEntryCarriesTags", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		e := aTagged("", f.stamp(a), "t")
		e.Kind = cache.Negative
		if stored, err := a.Fill(f.ctx, f.granted(a, key), e); !stored || err != nil {
			f.Fatalf("Fill answered %v, error %v", stored, err)
		}
		if r := f.read(b, key); !r.Found || r.Entry.Kind != cache.Negative {
			f.Fatalf("%+v", r)
		}
		f.ok("DeleteTag", a.DeleteTag(f.ctx, "t"))
		f.isInvalid(b, key)
	}},

	{"TagAndKeyOfTheSameTextDoNotMeet", nothing, func(f *fixture) {
		s := f.open()
		for _, text := range []string{"tags", "t", "", "}"} {
			f.set(s, text, "v")
			if text != "" {
				f.setTagged(s, "other", "w", text)
				f.ok("DeleteTag", s.DeleteTag(f.ctx, text))
				f.isInvalid(s, "other")
			}
			f.reads(s, text, "v")
		}
	}},

	{"NoTagsAreDeletedWithoutError", nothing, func(f *fixture) {
		s := f.open()
		before := f.stamp(s)
		f.ok("DeleteTag", s.DeleteTag(f.ctx))
		f.ok("ExpireTag", s.ExpireTag(f.ctx))
		if after := f.stamp(s); after.N != before.N || after.Epoch != before.Epoch {
			f.Errorf("the clock went from %v to %v", before, after)
		}
	}},

	{"TagsThatAreNoneAreRefused", nothing, func(f *fixture) {
		s := f.open()
		many := make([]string, cache.MaxTags+1)
		for i := range many {
			many[i] = strings.Repeat("t", i+1)
		}
		for _, tags := range [][]string{{""}, {"t", strings.Repeat("t", cache.MaxTagSize+1)}, many} {
			if err := s.Set(f.ctx, key, aTagged("v", cache.Stamp{}, tags...)); !errors.Is(err, cache.ErrRefused) {
				f.Errorf("Set: %v", err)
			}
			l := f.granted(s, key)
			if stored, err := s.Fill(f.ctx, l, aTagged("v", f.stamp(s), tags...)); stored || !errors.Is(err, cache.ErrRefused) {
				f.Errorf("Fill: %v, %v", stored, err)
			}
			f.misses(s, key)
			if len(tags) > cache.MaxTags {
				f.ok("DeleteTag", s.DeleteTag(f.ctx, tags...))
			} else if err := s.DeleteTag(f.ctx, tags...); !errors.Is(err, cache.ErrRefused) {
				f.Errorf("DeleteTag: %v", err)
			}
		}
		bypass := aTagged("", f.stamp(s), "t")
		bypass.Kind = cache.Bypass
		if stored, err := s.Fill(f.ctx, f.granted(s, key), bypass); stored || !errors.Is(err, cache.ErrRefused) {
			f.Errorf("Fill of a bypass: %v, %v", stored, err)
		}
	}},

	{"FillOfAStampThatIsNoneIsNotStored", nothing, func(f *fixture) {
		s := f.open()
		f.setTagged(s, "other", "v", "t")
		for _, stamp := range []cache.Stamp{{}, f.reads(s, "other", "v").Entry.Stamp} {
			stored, err := s.Fill(f.ctx, f.granted(s, key), aTagged("v", stamp, "t"))
			if stored || !errors.Is(err, cache.ErrInvalidated) {
				f.Errorf("Fill answered %v, error %v", stored, err)
			}
		}
	}},

	{"FeedHearsOfTags", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.follows(b)
		defer w.Close()
		tags := []string{"t", "}", "k", "\x00\xff"}
		f.ok("DeleteTag", a.DeleteTag(f.ctx, tags[:2]...))
		f.ok("ExpireTag", a.ExpireTag(f.ctx, tags[2:]...))
		for _, tag := range tags {
			f.eventually("the tag is heard of", func() bool { return w.heardOfTag(tag) > 0 })
			if w.heard(tag) != 0 {
				f.Errorf("%q was heard of as a key", tag)
			}
		}
	}},

	{"LargeEntryCarriesTags", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		payload := string(bytes.Repeat([]byte("x"), 200_000))
		f.fillsTagged(a, key, payload, "t")
		f.reads(b, key, payload)
		f.ok("DeleteTag", a.DeleteTag(f.ctx, "t"))
		f.isInvalid(b, key)
	}},

	// What was forgotten of a tag must lose entries, and never bring one back.
	{"ForgottenTagIsADeletedOne", tagFaults, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t")
		f.reads(b, key, "v")
		f.ForgetTag(f.T, "t")
		f.isInvalid(a, key)
		f.isInvalid(b, key)
		// Deleted, forgotten, and made anew by another entry of a later fetch.
		f.fillsTagged(a, "deleted", "v", "t")
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "t"))
		f.ForgetTag(f.T, "t")
		f.fillsTagged(b, "other", "v", "t")
		f.reads(a, "other", "v")
		f.isInvalid(a, "deleted")
		f.isInvalid(a, key)
		f.ForgetTag(f.T, "t")
		f.ok("ExpireTag", b.ExpireTag(f.ctx, "t"))
		f.isInvalid(a, "other")
	}},

	// P3: also when what is known of a tag is lost in the middle of a fetch.
	{"FetchThatAForgottenDeletionMetIsNotStored", tagFaults, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, "stored", "v", "t")
		stamp := f.stamp(a)
		keys := []string{"1", "2", "3"}
		var leases []*cache.Lease
		for _, key := range keys {
			leases = append(leases, f.granted(a, key))
		}
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "t"))
		f.ForgetTag(f.T, "t")
		for i, key := range keys { // the first makes the record anew
			stored, err := a.Fill(f.ctx, leases[i], aTagged("old", stamp, "t", "u"))
			if stored || !errors.Is(err, cache.ErrInvalidated) {
				f.Fatalf("Fill answered %v, error %v", stored, err)
			}
			f.misses(b, key)
		}
		f.isInvalid(b, "stored") // which has the stamp of those fetches
		for _, key := range keys {
			f.fillsTagged(b, key, "new", "t", "u")
			f.reads(a, key, "new")
		}
	}},

	{"FetchesThatAForgottenDeletionMetAreNotStored", tagFaults, func(f *fixture) {
		a, b := f.open(), f.open()
		stamp := f.stamp(a)
		var returns []cache.Return
		for _, key := range []string{"1", "2"} {
			returns = append(returns, cache.Return{Lease: f.granted(a, key), Entry: aTagged("old", stamp, "t")})
		}
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "t"))
		f.ForgetTag(f.T, "t")
		for i, done := range a.ReturnMany(f.ctx, returns) {
			if done.OK || !errors.Is(done.Err, cache.ErrInvalidated) {
				f.Errorf("%d: ReturnMany answered %v, error %v", i, done.OK, done.Err)
			}
		}
		f.misses(b, "1")
		f.misses(b, "2")
	}},

	{"ForgottenTagOfNoDeletionLosesNothing", tagFaults, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t")
		f.ForgetTag(f.T, "t")
		f.isInvalid(b, key)
		f.fillsTagged(b, "other", "w", "t")
		f.reads(a, "other", "w")
		f.reads(a, key, "v") // nothing was deleted since
	}},

	{"ClockThatWentBackDeletesAllTheSame", tagFaults, func(f *fixture) {
		a, b := f.open(), f.open()
		for range 10 {
			f.ok("DeleteTag", a.DeleteTag(f.ctx, "busy"))
		}
		f.fillsTagged(a, key, "v", "t")
		f.RewindTags(f.T, 2)
		f.reads(b, key, "v")
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "t"))
		f.isInvalid(a, key)
		f.fillsTagged(b, key, "new", "t")
		f.reads(a, key, "new")
		// And a tag that was deleted above where the clock is now can be used again,
		// at the latest by the second fetch.
		f.RewindTags(f.T, 2)
		stored, err := a.Fill(f.ctx, f.granted(a, "b"), aTagged("v", f.stamp(a), "busy"))
		if err != nil && !errors.Is(err, cache.ErrInvalidated) {
			f.Fatalf("Fill answered %v, error %v", stored, err)
		}
		f.fillsTagged(a, "b", "v", "busy")
		f.reads(b, "b", "v")
		f.RewindTags(f.T, 2)
		f.setTagged(b, "b", "set", "busy")
		f.reads(a, "b", "set")
	}},

	{"LostClockLosesWhatCarriesTags", tagFaults, func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t", "u")
		stamp := f.stamp(a)
		l := f.granted(a, "flight")
		f.ForgetClock(f.T)
		f.ok("DeleteTag", b.DeleteTag(f.ctx, "t"))
		f.isInvalid(a, key)
		if stored, err := a.Fill(f.ctx, l, aTagged("v", stamp, "t")); stored || !errors.Is(err, cache.ErrInvalidated) {
			f.Errorf("Fill answered %v, error %v", stored, err)
		}
		for _, tag := range []string{"t", "u"} { // u's record is of the lost clock
			f.fillsTagged(b, tag, "v", tag)
			f.reads(a, tag, "v")
			f.ok("DeleteTag", a.DeleteTag(f.ctx, tag))
			f.isInvalid(b, tag)
		}
	}},
}
