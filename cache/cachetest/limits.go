package cachetest

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// calls are all methods that take a context, with a lease that the store holds.
func calls(s cache.Store, l *cache.Lease) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Read":    func(ctx context.Context) error { _, err := s.Read(ctx, key); return err },
		"Acquire": func(ctx context.Context) error { _, err := s.Acquire(ctx, key, anAsk()); return err },
		"Fill":    func(ctx context.Context) error { _, err := s.Fill(ctx, l, anEntry("v")); return err },
		"Fail":    func(ctx context.Context) error { _, err := s.Fail(ctx, l, nil, 0); return err },
		"Set":     func(ctx context.Context) error { return s.Set(ctx, key, anEntry("v")) },
		"Delete":  func(ctx context.Context) error { return s.Delete(ctx, key) },
		"Expire":  func(ctx context.Context) error { return s.Expire(ctx, key) },
		"Reset":   func(ctx context.Context) error { return s.Reset(ctx, key) },
	}
}

var limitTests = []test{
	// P4
	{"CallsEndWithTheirContext", nothing, func(f *fixture) {
		s := f.open()
		ended, cancel := context.WithCancel(f.ctx)
		cancel()
		for name, call := range calls(s, f.granted(s, "another key")) {
			start := time.Now()
			err := call(ended)
			if !errors.Is(err, context.Canceled) && !errors.Is(err, cache.ErrUnavailable) {
				f.Errorf("%s: error %v, want the context's, or ErrUnavailable", name, err)
			}
			if took := time.Since(start); took > f.patience/2 {
				f.Errorf("%s took %v with a context that had ended", name, took)
			}
		}
	}},

	{"LeaseIsNotRenewedAfterAFillThatFailed", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, key, renewed(time.Minute), cache.Granted).Lease
		ended, cancel := context.WithCancel(f.ctx)
		cancel()
		if stored, err := a.Fill(ended, l, anEntry("v")); err == nil || stored {
			f.Fatalf("Fill answered %v, error %v, want an error", stored, err)
		}
		ask := anAsk()
		f.eventually("free again", func() bool {
			ask.Seen = f.read(b, key).Seen
			return f.acquire(b, key, ask).Verdict == cache.Granted
		})
	}},

	{"ClosedStoreSaysSo", nothing, func(f *fixture) {
		s := f.open()
		l := f.granted(s, "another key")
		f.ok("Close", s.Close())
		for name, call := range calls(s, l) {
			if err := call(f.ctx); !errors.Is(err, cache.ErrClosed) {
				f.Errorf("%s: error %v, want ErrClosed", name, err)
			}
		}
		if err := s.Release(f.ctx, l); err != nil && !errors.Is(err, cache.ErrClosed) {
			f.Errorf("Release: error %v, want ErrClosed or none", err)
		}
		s.Watch(key).Close()
		f.ok("Close again", s.Close())
	}},

	{"WatchMayBeClosedAfterItsStore", nothing, func(f *fixture) {
		s := f.open()
		w := s.Watch(key)
		f.ok("Close", s.Close())
		w.Close()
	}},

	{"CloseLeavesOtherStoresAlone", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "v")
		w := f.watch(b, key)
		l := f.granted(b, key)
		f.ok("Close", a.Close())
		f.reads(b, key, "v")
		f.fills(b, l, "w")
		f.hears(w, cache.Filled)
		f.isNotLost(l)
	}},
}
