package storetest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// endingCalls are the calls that end with their context. Of a lone read, only the waiting
// for it ends.
func (f *fixture) endingCalls(s store.Store, l *store.Lease) map[string]func(context.Context) error {
	calls := f.calls(s, l)
	if f.others == 0 {
		delete(calls, "Read")
	}
	return calls
}

// calls are all methods that take a context. Those that return a lease have one that the
// store holds.
func (f *fixture) calls(s store.Store, l *store.Lease) map[string]func(context.Context) error {
	tagged := entryOf("v")
	tagged.Tags = []string{"t"}
	change := func(c store.Change) func(context.Context) error {
		c.Key = key
		return func(ctx context.Context) error { return f.tryChange(ctx, s, c) }
	}
	return map[string]func(context.Context) error{
		"Read":    func(ctx context.Context) error { _, err := f.tryRead(ctx, s, key); return err },
		"Acquire": func(ctx context.Context) error { return f.tryAcquire(ctx, s, request(key)).Err },
		"Fill": func(ctx context.Context) error {
			return f.giveBack(ctx, s, store.Return{Lease: l, Entry: entryOf("v")}).Err
		},
		"Fail":       func(ctx context.Context) error { return f.giveBack(ctx, s, store.Return{Lease: l, Failed: true}).Err },
		"Set":        change(store.Change{Kind: store.Set, Entry: entryOf("v")}),
		"Set tagged": change(store.Change{Kind: store.Set, Entry: tagged}),
		"Delete":     change(store.Change{Kind: store.Delete}),
		"Expire":     change(store.Change{Kind: store.Expire}),
		"Reset":      change(store.Change{Kind: store.Reset}),
		"Stamp":      func(ctx context.Context) error { _, err := s.Stamp(ctx); return err },
		"DeleteTag":  func(ctx context.Context) error { return s.ChangeTags(ctx, store.DeleteTag, []string{"t"}) },
		"ExpireTag":  func(ctx context.Context) error { return s.ChangeTags(ctx, store.ExpireTag, []string{"t"}) },
	}
}

var limitTests = []test{
	// P4
	{"CallsEndWithTheirContext", func(f *fixture) {
		s := f.open()
		cause := errors.New("the caller's own cause")
		ended, cancel := context.WithCancelCause(f.ctx)
		cancel(cause)
		for name, call := range f.endingCalls(s, f.granted(s, "another key")) {
			start := time.Now()
			if err := call(ended); !errors.Is(err, cause) {
				f.Errorf("%s: error %v, want the context's", name, err)
			}
			if took := time.Since(start); took > patience/2 {
				f.Errorf("%s took %v with a context that had ended", name, took)
			}
		}
	}},

	{"NilContextIsNamed", func(f *fixture) {
		s := f.open()
		for name, call := range f.endingCalls(s, f.granted(s, "another key")) {
			var none context.Context
			if err := call(none); err == nil || !strings.Contains(err.Error(), "nil context") {
				f.Errorf("%s: error %v, want one that names the nil context", name, err)
			}
		}
	}},

	{"LeaseIsNotRenewedAfterAFailedFill", func(f *fixture) {
		a, b := f.open(), f.open()
		l := f.answers(a, renewed(time.Minute), store.Granted).Lease
		ended, cancel := context.WithCancel(f.ctx)
		cancel()
		if back := f.giveBack(ended, a, store.Return{Lease: l, Entry: entryOf("v")}); back.Err == nil || back.OK {
			f.Fatalf("the fill answered %v, error %v, want an error", back.OK, back.Err)
		}
		f.eventually("free again", func() bool { return f.acquire(b, f.asSeen(b, key)).Verdict == store.Granted })
	}},

	{"ClosedStoreSaysSo", func(f *fixture) {
		s := f.open()
		l := f.granted(s, "another key")
		f.ok("Close", s.Close())
		for name, call := range f.calls(s, l) {
			if err := call(f.ctx); !errors.Is(err, store.ErrClosed) {
				f.Errorf("%s: error %v, want ErrClosed", name, err)
			}
		}
		if b := f.giveBack(f.ctx, s, store.Return{Lease: l}); b.Err != nil && !errors.Is(b.Err, store.ErrClosed) {
			f.Errorf("Release: error %v, want ErrClosed or none", b.Err)
		}
		s.Watch(key).Close()
		f.ok("Close again", s.Close())
	}},

	{"WatchMayBeClosedAfterItsStore", func(f *fixture) {
		s := f.open()
		w := s.Watch(key)
		f.ok("Close", s.Close())
		w.Close()
	}},

	{"CloseLeavesOtherStoresAlone", func(f *fixture) {
		a, b := f.open(), f.open()
		f.set(a, key, "v")
		w := f.watch(b, key)
		l := f.granted(b, key)
		f.ok("Close", a.Close())
		f.reads(b, key, "v")
		f.fills(b, l, "w")
		f.hears(w, store.Filled)
		f.isNotLost(l)
	}},
}
