package storetest

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/stampedeguard/stampede/internal/store"
)

func (f *fixture) stamp(s store.Store) store.Stamp {
	f.Helper()
	stamp, err := s.Stamp(f.ctx)
	f.ok("Stamp", err)
	return stamp
}

func (f *fixture) deleteTags(s store.Store, tags ...string) {
	f.Helper()
	f.ok("DeleteTag", s.ChangeTags(f.ctx, store.DeleteTag, tags))
}

func (f *fixture) expireTags(s store.Store, tags ...string) {
	f.Helper()
	f.ok("ExpireTag", s.ChangeTags(f.ctx, store.ExpireTag, tags))
}

// tagged is an entry of a fetch that started at the stamp.
func tagged(payload string, stamp store.Stamp, tags ...string) *store.Entry {
	e := entryOf(payload)
	e.Tags, e.Stamp = tags, stamp
	return e
}

// fillsTagged has a process fetch and fill key.
func (f *fixture) fillsTagged(s store.Store, key, payload string, tags ...string) {
	f.Helper()
	stamp := f.stamp(s)
	f.fillsWith(s, f.granted(s, key), tagged(payload, stamp, tags...))
}

func (f *fixture) setTagged(s store.Store, key, payload string, tags ...string) {
	f.Helper()
	f.setEntry(s, key, tagged(payload, store.Stamp{}, tags...))
}

// fillIs checks that an entry is refused with the error.
func (f *fixture) fillIs(want error, s store.Store, l *store.Lease, e *store.Entry) {
	f.Helper()
	if b := f.giveBack(f.ctx, s, store.Return{Lease: l, Entry: e}); b.OK || !errors.Is(b.Err, want) {
		f.Fatalf("the fill answered %v, error %v, want %v", b.OK, b.Err, want)
	}
}

// isInvalid checks that a key's entry counts as none, and can be fetched anew.
func (f *fixture) isInvalid(s store.Store, key string) {
	f.Helper()
	r := f.read(s, key)
	if r.Found || r.Damage != nil || len(r.Entry.Payload) > 0 {
		f.Fatalf("read found=%v damage=%v %.40q, want an invalid entry", r.Found, r.Damage, r.Entry.Payload)
	}
	if r.Seen == "" {
		f.Fatal("Seen is empty: the entry could never be overwritten")
	}
}

var tagTests = []test{
	{"TagsComeBackWithTheEntry", func(f *fixture) {
		a, b := f.open(), f.open()
		tags := []string{"t", "}", "%", "{x}y", "a\nb", "\x00\xff", strings.Repeat("long", 128)}
		f.fillsTagged(a, key, "v", tags...)
		for range 3 { // the first read does not know of the tags, the others do
			for _, s := range []store.Store{a, b} {
				r := f.reads(s, key, "v")
				if !slices.Equal(r.Entry.Tags, tags) || !r.Fresh() || r.Entry.Kind != store.Value {
					f.Errorf("%q, fresh=%v", r.Entry.Tags, r.Fresh())
				}
			}
		}
		answer := f.answers(b, request(key), store.HasEntry)
		if !answer.Reading.Found || string(answer.Reading.Entry.Payload) != "v" {
			f.Errorf("acquire answered %+v", answer.Reading)
		}
	}},

	{"DeletedTagTakesItsEntriesAlong", func(f *fixture) {
		a, b, c := f.open(), f.open(), f.open()
		f.fillsTagged(a, "1", "v1", "red", "round")
		f.setTagged(b, "2", "v2", "red")
		f.fillsTagged(c, "3", "v3", "round")
		f.set(a, "4", "v4")
		stores := []store.Store{a, b, c}
		for _, s := range stores {
			f.reads(s, "1", "v1")
			f.reads(s, "2", "v2")
			f.reads(s, "3", "v3")
		}
		f.deleteTags(c, "red")
		for _, s := range stores {
			f.isInvalid(s, "1")
			f.isInvalid(s, "2")
			f.reads(s, "3", "v3")
			f.reads(s, "4", "v4")
		}
		f.deleteTags(a, "round", "unheard of", "round")
		for _, s := range stores {
			f.isInvalid(s, "3")
			f.reads(s, "4", "v4")
		}
	}},

	{"TaggedKeysAmongManyAreIndependent", func(f *fixture) {
		s := f.open()
		keys := []string{"a", "b", "c", "plain", "none"}
		for _, k := range keys[:3] {
			f.setTagged(s, k, "of "+k, "all", "of "+k)
		}
		f.set(s, "plain", "of plain")
		check := func(there ...bool) {
			f.Helper()
			for range 2 {
				for i, r := range ReadMany(f.ctx, s, "", keys) {
					if r.Err != nil || r.Reading.Found != there[i] || there[i] && string(r.Reading.Entry.Payload) != "of "+keys[i] {
						f.Errorf("%s: %+v", keys[i], r)
					}
				}
			}
		}
		check(true, true, true, true, false)
		f.deleteTags(s, "of b")
		check(true, false, true, true, false)
		f.deleteTags(s, "all")
		check(false, false, false, true, false)
	}},

	{"EntryIsReadByItsPresentTags", func(f *fixture) {
		a, b := f.open(), f.open()
		for _, tags := range [][]string{{"t"}, {"u"}, {"t", "u"}, nil, {"v"}} {
			f.setTagged(a, key, "v", tags...)
			for range 2 {
				f.reads(b, key, "v")
			}
		}
		f.deleteTags(a, "t", "u")
		f.reads(b, key, "v")
		f.deleteTags(a, "v")
		f.isInvalid(b, key)
	}},

	// P3: also for a caller that asks for the lease with an older view of the entry.
	{"AcquireAnswersNoEntryOfADeletedTag", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t")
		f.deleteTags(b, "t")
		answer := f.answers(a, request(key), store.HasEntry)
		if answer.Reading.Found || answer.Reading.Seen == "" {
			f.Fatalf("%+v", answer.Reading)
		}
		ask := request(key)
		ask.Seen = answer.Reading.Seen
		f.answers(a, ask, store.Granted)
	}},

	{"ValueFetchedAfterADeletionIsStored", func(f *fixture) {
		a, b := f.open(), f.open()
		for _, payload := range []string{"1", "2", "3"} {
			f.fillsTagged(a, key, payload, "t", "u")
			f.reads(b, key, payload)
			f.deleteTags(b, "t", "u")
			f.isInvalid(a, key)
			f.isInvalid(b, key)
		}
		f.setTagged(b, key, "set", "t")
		f.reads(a, key, "set")
	}},

	// P3, against a fetch under way.
	{"FetchThatADeletionMetIsNotStored", func(f *fixture) {
		a, b := f.open(), f.open()
		for _, tags := range [][]string{{"new"}, {"known", "new too"}} {
			stamp := f.stamp(a)
			l := f.granted(a, key)
			f.deleteTags(b, tags[len(tags)-1])
			f.fillIs(store.ErrInvalidated, a, l, tagged("old", stamp, tags...))
			f.misses(b, key)
			f.granted(b, key) // the lease was released
			f.change(b, store.Delete, key)
		}
	}},

	{"DeletionOfAnotherTagDoesNotMatter", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, "other", "v", "t") // the tag is known
		stamp := f.stamp(a)
		l := f.granted(a, key)
		f.deleteTags(b, "another")
		f.fillsWith(a, l, tagged("v", stamp, "t"))
		f.reads(b, key, "v")
	}},

	{"ExpiredTagMakesItsEntriesStale", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t")
		f.setTagged(a, "other", "w", "u")
		f.reads(b, key, "v")
		f.expireTags(b, "t")
		for _, s := range []store.Store{a, b} {
			if r := f.reads(s, key, "v"); r.Fresh() || r.Entry.Flags&store.FlagExpired == 0 {
				f.Errorf("fresh=%v flags=%d", r.Fresh(), r.Entry.Flags)
			}
			if !f.reads(s, "other", "w").Fresh() {
				f.Error("the entry of another tag is stale")
			}
		}
		f.fillsTagged(b, key, "new", "t")
		if !f.reads(a, key, "new").Fresh() {
			f.Error("the fill after it is stale")
		}
		f.deleteTags(a, "t")
		f.isInvalid(b, key)
	}},

	{"FetchThatAnExpiryMetIsStoredStale", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, "other", "v", "t")
		stamp := f.stamp(a)
		l := f.granted(a, key)
		f.expireTags(b, "t")
		e := tagged("v", stamp, "t")
		f.fillsWith(a, l, e)
		if e.Flags&store.FlagExpired == 0 || f.reads(b, key, "v").Fresh() {
			f.Error("it is fresh")
		}
	}},

	// A deletion draws its number first and is recorded afterwards. In between, a fetch may
	// read its stamp, and then the value that it finds to be good.
	{"ValueIsNotRenewedPastADeletion", func(f *fixture) {
		a, b := f.open(), f.open()
		first := f.stamp(a)
		f.deleteTags(b, "t")
		e := tagged("v", first, "t")
		e.Renewed = f.stamp(a).N
		f.fillIs(store.ErrInvalidated, a, f.granted(a, key), e)
		e = tagged("v", f.stamp(a), "t")
		e.Renewed = e.Stamp.N + 1 // the deletion's number
		f.fillsWith(a, f.granted(a, key), e)
		f.deleteTags(b, "t")
		f.isInvalid(a, key)
		f.isInvalid(b, key)
	}},

	{"RenewedValueIsFreshAfterAnExpiry", func(f *fixture) {
		a, b := f.open(), f.open()
		first := f.stamp(a)
		f.fillsTagged(a, key, "v", "t")
		f.expireTags(b, "t")
		if f.reads(a, key, "v").Fresh() {
			f.Error("fresh after ExpireTag")
		}
		f.change(a, store.Delete, key)
		e := tagged("v", first, "t")
		e.Renewed = f.stamp(a).N
		f.fillsWith(a, f.granted(a, key), e)
		for _, s := range []store.Store{a, b} {
			if r := f.reads(s, key, "v"); !r.Fresh() || r.Entry.Renewed != e.Renewed {
				f.Errorf("fresh=%v, renewed at %d, want %d", r.Fresh(), r.Entry.Renewed, e.Renewed)
			}
		}
		f.expireTags(b, "t")
		if f.reads(a, key, "v").Fresh() {
			f.Error("fresh after another ExpireTag")
		}
	}},

	{"NegativeEntryCarriesTags", func(f *fixture) {
		a, b := f.open(), f.open()
		e := tagged("", f.stamp(a), "t")
		e.Kind = store.Negative
		f.fillsWith(a, f.granted(a, key), e)
		if r := f.read(b, key); !r.Found || r.Entry.Kind != store.Negative {
			f.Fatalf("%+v", r)
		}
		f.deleteTags(a, "t")
		f.isInvalid(b, key)
	}},

	{"TagAndKeyOfOneTextDoNotMeet", func(f *fixture) {
		s := f.open()
		for _, text := range []string{"tags", "t", "", "}"} {
			f.set(s, text, "v")
			if text != "" {
				f.setTagged(s, "other", "w", text)
				f.deleteTags(s, text)
				f.isInvalid(s, "other")
			}
			f.reads(s, text, "v")
		}
	}},

	{"NoTagsAreChangedWithoutError", func(f *fixture) {
		s := f.open()
		before := f.stamp(s)
		f.deleteTags(s)
		f.expireTags(s)
		if after := f.stamp(s); after.N != before.N || after.Epoch != before.Epoch {
			f.Errorf("the clock went from %v to %v", before, after)
		}
	}},

	{"WrongTagsAreRefused", func(f *fixture) {
		s := f.open()
		many := make([]string, store.MaxTags+1)
		for i := range many {
			many[i] = strings.Repeat("t", i+1)
		}
		for _, tags := range [][]string{{""}, {"t", strings.Repeat("t", store.MaxTagSize+1)}, many} {
			set := store.Change{Kind: store.Set, Key: key, Entry: tagged("v", store.Stamp{}, tags...)}
			if err := f.tryChange(f.ctx, s, set); !errors.Is(err, store.ErrRefused) {
				f.Errorf("Set: %v", err)
			}
			f.fillIs(store.ErrRefused, s, f.granted(s, key), tagged("v", f.stamp(s), tags...))
			f.misses(s, key)
			if len(tags) > store.MaxTags {
				f.deleteTags(s, tags...)
			} else if err := s.ChangeTags(f.ctx, store.DeleteTag, tags); !errors.Is(err, store.ErrRefused) {
				f.Errorf("DeleteTag: %v", err)
			}
		}
		bypass := tagged("", f.stamp(s), "t")
		bypass.Kind = store.Bypass
		f.fillIs(store.ErrRefused, s, f.granted(s, key), bypass)
		f.granted(s, key) // the lease was released
	}},

	{"FillOfAWrongStampIsNotStored", func(f *fixture) {
		s := f.open()
		f.setTagged(s, "other", "v", "t")
		for _, stamp := range []store.Stamp{{}, f.reads(s, "other", "v").Entry.Stamp} {
			f.fillIs(store.ErrInvalidated, s, f.granted(s, key), tagged("v", stamp, "t"))
		}
	}},

	{"LargeEntryCarriesTags", func(f *fixture) {
		a, b := f.open(), f.open()
		payload := string(bytes.Repeat([]byte("x"), 200_000))
		f.fillsTagged(a, key, payload, "t")
		f.reads(b, key, payload)
		f.deleteTags(a, "t")
		f.isInvalid(b, key)
	}},

	// A record that was evicted must lose entries, and never bring one back.
	{"ForgottenTagIsADeletedOne", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t")
		f.reads(b, key, "v")
		f.ForgetTag(f.T, "t")
		f.isInvalid(a, key)
		f.isInvalid(b, key)
		// Deleted, forgotten, and made anew by another entry of a later fetch.
		f.fillsTagged(a, "deleted", "v", "t")
		f.deleteTags(b, "t")
		f.ForgetTag(f.T, "t")
		f.fillsTagged(b, "other", "v", "t")
		f.reads(a, "other", "v")
		f.isInvalid(a, "deleted")
		f.isInvalid(a, key)
		f.ForgetTag(f.T, "t")
		f.expireTags(b, "t")
		f.isInvalid(a, "other")
	}},

	// P3: also when a record is lost in the middle of a fetch.
	{"FetchThatAForgottenDeletionMetIsNotStored", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, "stored", "v", "t")
		stamp := f.stamp(a)
		keys := []string{"1", "2", "3"}
		var leases []*store.Lease
		for _, key := range keys {
			leases = append(leases, f.granted(a, key))
		}
		f.deleteTags(b, "t")
		f.ForgetTag(f.T, "t")
		for i, key := range keys { // the first makes the record anew
			f.fillIs(store.ErrInvalidated, a, leases[i], tagged("old", stamp, "t", "u"))
			f.misses(b, key)
		}
		f.isInvalid(b, "stored") // which has the stamp of those fetches
		for _, key := range keys {
			f.fillsTagged(b, key, "new", "t", "u")
			f.reads(a, key, "new")
		}
	}},

	{"FetchesThatAForgottenDeletionMetAreNotStored", func(f *fixture) {
		a, b := f.open(), f.open()
		stamp := f.stamp(a)
		var returns []store.Return
		for _, key := range []string{"1", "2"} {
			returns = append(returns, store.Return{Lease: f.granted(a, key), Entry: tagged("old", stamp, "t")})
		}
		f.deleteTags(b, "t")
		f.ForgetTag(f.T, "t")
		for i, done := range a.Return(f.ctx, returns) {
			if done.OK || !errors.Is(done.Err, store.ErrInvalidated) {
				f.Errorf("%d: Return answered %v, error %v", i, done.OK, done.Err)
			}
		}
		f.misses(b, "1")
		f.misses(b, "2")
	}},

	{"ForgottenTagWithoutDeletionLosesNothing", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t")
		f.ForgetTag(f.T, "t")
		f.isInvalid(b, key)
		f.fillsTagged(b, "other", "w", "t")
		f.reads(a, "other", "w")
		f.reads(a, key, "v") // nothing was deleted since
	}},

	{"ClockThatWentBackStillDeletes", func(f *fixture) {
		a, b := f.open(), f.open()
		for range 10 {
			f.deleteTags(a, "busy")
		}
		f.fillsTagged(a, key, "v", "t")
		f.RewindTags(f.T, 2)
		f.reads(b, key, "v")
		f.deleteTags(b, "t")
		f.isInvalid(a, key)
		f.fillsTagged(b, key, "new", "t")
		f.reads(a, key, "new")
		// A tag that was deleted above the present clock can be used again, at the latest by
		// the second fetch.
		f.RewindTags(f.T, 2)
		first := store.Return{Lease: f.granted(a, "b"), Entry: tagged("v", f.stamp(a), "busy")}
		if done := f.giveBack(f.ctx, a, first); done.Err != nil && !errors.Is(done.Err, store.ErrInvalidated) {
			f.Fatalf("the fill answered %v, error %v", done.OK, done.Err)
		}
		f.fillsTagged(a, "b", "v", "busy")
		f.reads(b, "b", "v")
		f.RewindTags(f.T, 2)
		f.setTagged(b, "b", "set", "busy")
		f.reads(a, "b", "set")
	}},

	{"LostClockLosesTaggedEntries", func(f *fixture) {
		a, b := f.open(), f.open()
		f.fillsTagged(a, key, "v", "t", "u")
		stamp := f.stamp(a)
		l := f.granted(a, "flight")
		f.ForgetClock(f.T)
		f.deleteTags(b, "t")
		f.isInvalid(a, key)
		f.fillIs(store.ErrInvalidated, a, l, tagged("v", stamp, "t"))
		for _, tag := range []string{"t", "u"} { // u's record is of the lost clock
			f.fillsTagged(b, tag, "v", tag)
			f.reads(a, tag, "v")
			f.deleteTags(a, tag)
			f.isInvalid(b, tag)
		}
	}},
}
