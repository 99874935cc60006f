package cachetest

import (
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// pitfalls 11 and 12: what is awaited is told, and the subscription's start too.
var watchTests = []test{
	{"WatchIsConfirmed", nothing, func(f *fixture) {
		f.watch(f.open(), key)
	}},

	{"FillIsToldWithASmallEntry", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		for _, s := range []cache.Store{a, b} { // the holder's own process, too
			w := f.watch(s, key)
			l := f.granted(a, key)
			f.fills(a, l, "v")
			m := f.hears(w, cache.Filled)
			e, err := cache.ParseEntry(m.Body)
			if m.Token != l.Token || err != nil || string(e.Payload) != "v" || e.Version != l.Token || e.TTL != anEntry("").TTL {
				f.Errorf("heard of %v: %+v, error %v; want %v", m.Token, e, err, l.Token)
			}
		}
	}},

	{"FillIsToldWithoutALargeEntry", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		for _, c := range []struct{ payload, body int }{
			{cache.MaxMessageBody - cache.HeaderSize, cache.MaxMessageBody},
			{cache.MaxMessageBody - cache.HeaderSize + 1, 0},
			{1 << 20, 0},
		} {
			l := f.granted(a, key)
			f.fills(a, l, strings.Repeat("x", c.payload))
			if m := f.hears(w, cache.Filled); m.Token != l.Token || len(m.Body) != c.body {
				f.Errorf("payload of %d bytes: heard of %v with %d bytes, want %v with %d", c.payload, m.Token, len(m.Body), l.Token, c.body)
			}
		}
	}},

	{"SetIsToldAsFilled", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		e := f.set(a, key, "v")
		m := f.hears(w, cache.Filled)
		if got, err := cache.ParseEntry(m.Body); m.Token != e.Version || err != nil || string(got.Payload) != "v" {
			f.Errorf("heard of %v: %+v, error %v; want %v", m.Token, got, err, e.Version)
		}
	}},

	{"FailureIsTold", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		l := f.granted(a, key)
		f.fails(a, l, "why\x00", time.Minute)
		if m := f.hears(w, cache.FailedSignal); m.Token != l.Token || string(m.Body) != "why\x00" {
			f.Errorf("heard of %v with %q, want %v", m.Token, m.Body, l.Token)
		}
	}},

	{"ReleaseIsTold", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		l := f.granted(a, key)
		f.ok("Release", a.Release(f.ctx, l))
		if m := f.hears(w, cache.Released); m.Token != l.Token {
			f.Errorf("heard of %v, want %v", m.Token, l.Token)
		}
	}},

	{"CloseIsToldAsReleased", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		l := f.granted(a, key)
		f.ok("Close", a.Close())
		if m := f.hears(w, cache.Released); m.Token != l.Token {
			f.Errorf("heard of %v, want %v", m.Token, l.Token)
		}
	}},

	{"DeleteAndExpireAreTold", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		f.ok("Delete", a.Delete(f.ctx, key))
		f.hears(w, cache.Deleted)
		f.set(a, key, "v")
		f.hears(w, cache.Filled)
		f.ok("Expire", a.Expire(f.ctx, key))
		f.hears(w, cache.Deleted)
	}},

	// Those who wait for a pause or a quarantine to end need not wait it out.
	{"ResetIsTold", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		l := f.granted(a, key)
		f.fails(a, l, "why", time.Minute)
		f.hears(w, cache.FailedSignal)
		f.ok("Reset", a.Reset(f.ctx, key))
		f.hears(w, cache.Released)
	}},

	{"LateFillIsNotTold", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.granted(a, key)
		f.ok("Delete", a.Delete(f.ctx, key))
		w := f.watch(b, key)
		f.fillsInVain(a, l)
		e := f.set(a, key, "v")
		if m := f.hears(w, cache.Filled); m.Token != e.Version {
			f.Errorf("heard of %v, want only %v", m.Token, e.Version)
		}
	}},

	{"WatchHearsOfItsOwnKeyOnly", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.watch(b, key)
		f.set(a, key+"2", "other")
		f.ok("Delete", a.Delete(f.ctx, ""))
		e := f.set(a, key, "v")
		if m := f.hears(w, cache.Filled); m.Token != e.Version {
			f.Errorf("heard of %v, want %v", m.Token, e.Version)
		}
	}},

	{"WatchesOfOneKeyAreIndependent", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		first, second := b.Watch(key), f.watch(b, key)
		f.hears(first, cache.Confirmed)
		f.set(a, key, "1")
		f.hears(first, cache.Filled)
		f.hears(second, cache.Filled)
		first.Close()
		e := f.set(a, key, "2")
		if m := f.hears(second, cache.Filled); m.Token != e.Version {
			f.Errorf("heard of %v, want %v", m.Token, e.Version)
		}
		again := f.watch(b, key)
		f.ok("Delete", a.Delete(f.ctx, key))
		f.hears(again, cache.Deleted)
		f.hears(second, cache.Deleted)
	}},
}
