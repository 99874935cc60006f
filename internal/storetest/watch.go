package storetest

import (
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// pitfalls 11 and 12: outcomes are told, and so is the start of the subscription.
var watchTests = []test{
	{"WatchIsConfirmed", func(f *fixture) {
		f.watch(f.open(), key)
	}},

	{"FillIsToldWithASmallEntry", func(f *fixture) {
		a, b := f.open(), f.open()
		for _, s := range []store.Store{a, b} { // the holder's own process, too
			w := f.watch(s, key)
			l := f.granted(a, key)
			f.fills(a, l, "v")
			m := f.hears(w, store.Filled)
			r := m.Reading()
			if m.Token != l.Token || !r.Fresh() || r.Age != 0 || string(r.Entry.Payload) != "v" || r.Entry.Version != l.Token || r.Entry.TTL != entryOf("").TTL {
				f.Errorf("heard of %v: %+v; want %v", m.Token, r, l.Token)
			}
		}
	}},

	{"FillIsToldWithoutALargeEntry", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		for _, c := range []struct{ payload, body int }{
			{store.MaxMessageBody - store.HeaderSize, store.MaxMessageBody},
			{store.MaxMessageBody - store.HeaderSize + 1, 0},
			{1 << 20, 0},
		} {
			l := f.granted(a, key)
			f.fills(a, l, strings.Repeat("x", c.payload))
			if m := f.hears(w, store.Filled); m.Token != l.Token || len(m.Body) != c.body || m.Reading().Found != (c.body > 0) {
				f.Errorf("payload of %d bytes: heard of %v with %d bytes, want %v with %d", c.payload, m.Token, len(m.Body), l.Token, c.body)
			}
		}
	}},

	{"SetIsToldAsFilled", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		e := f.set(a, key, "v")
		if m := f.hears(w, store.Filled); m.Token != e.Version || string(m.Reading().Entry.Payload) != "v" {
			f.Errorf("heard of %v: %q; want %v", m.Token, m.Body, e.Version)
		}
	}},

	{"FailureIsTold", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		l := f.granted(a, key)
		f.fails(a, l, "why\x00", time.Minute)
		if m := f.hears(w, store.FailedSignal); m.Token != l.Token || string(m.Body) != "why\x00" {
			f.Errorf("heard of %v with %q, want %v", m.Token, m.Body, l.Token)
		}
	}},

	{"ReleaseIsTold", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		l := f.granted(a, key)
		f.releases(a, l)
		if m := f.hears(w, store.Released); m.Token != l.Token {
			f.Errorf("heard of %v, want %v", m.Token, l.Token)
		}
	}},

	{"CloseIsToldAsReleased", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		l := f.granted(a, key)
		f.ok("Close", a.Close())
		if m := f.hears(w, store.Released); m.Token != l.Token {
			f.Errorf("heard of %v, want %v", m.Token, l.Token)
		}
	}},

	{"DeleteAndExpireAreTold", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		f.change(a, store.Delete, key)
		f.hears(w, store.Deleted)
		f.set(a, key, "v")
		f.hears(w, store.Filled)
		f.change(a, store.Expire, key)
		f.hears(w, store.Deleted)
	}},

	// Callers that wait for the end of a pause or a quarantine ask again.
	{"ResetIsTold", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		f.fails(a, f.granted(a, key), "why", time.Minute)
		f.hears(w, store.FailedSignal)
		f.change(a, store.Reset, key)
		f.hears(w, store.Released)
	}},

	{"LateFillIsNotTold", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.change(a, store.Delete, key)
		w := f.watch(b, key)
		f.fillsInVain(a, l)
		e := f.set(a, key, "v")
		if m := f.hears(w, store.Filled); m.Token != e.Version {
			f.Errorf("heard of %v, want only %v", m.Token, e.Version)
		}
	}},

	{"WatchHearsOfItsOwnKeyOnly", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		f.set(a, key+"2", "other")
		f.change(a, store.Delete, "")
		e := f.set(a, key, "v")
		if m := f.hears(w, store.Filled); m.Token != e.Version {
			f.Errorf("heard of %v, want %v", m.Token, e.Version)
		}
	}},

	{"WatchesOfOneKeyAreIndependent", func(f *fixture) {
		a, b := f.open(), f.open()
		first, second := b.Watch(key), f.watch(b, key)
		f.hears(first, store.Confirmed)
		f.set(a, key, "1")
		f.hears(first, store.Filled)
		f.hears(second, store.Filled)
		first.Close()
		e := f.set(a, key, "2")
		if m := f.hears(second, store.Filled); m.Token != e.Version {
			f.Errorf("heard of %v, want %v", m.Token, e.Version)
		}
		again := f.watch(b, key)
		f.change(a, store.Delete, key)
		f.hears(again, store.Deleted)
		f.hears(second, store.Deleted)
	}},
}
