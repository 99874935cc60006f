package guard_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
)

func TestDecisions(t *testing.T) {
	const s = time.Second
	plain := guard.Policy{TTL: 10 * s}
	stale := guard.Policy{TTL: 10 * s, Stale: 20 * s}
	ifError := guard.Policy{TTL: 10 * s, StaleIfError: 30 * s}
	both := guard.Policy{TTL: 10 * s, Stale: 20 * s, StaleIfError: 50 * s}
	for _, c := range []struct {
		name   string
		policy guard.Policy
		kind   store.Kind
		flags  store.Flags
		fresh  time.Duration
		hard   time.Duration
		age    time.Duration
		want   string
	}{
		{"young", plain, store.Value, 0, 10 * s, 10 * s, 0, "serve"},
		{"just fresh", plain, store.Value, 0, 10 * s, 10 * s, 10*s - 1, "serve"},
		{"just not", plain, store.Value, 0, 10 * s, 10 * s, 10 * s, "fetch"},
		{"stale", stale, store.Value, 0, 10 * s, 30 * s, 10 * s, "serve stale"},
		{"stale to the end", stale, store.Value, 0, 10 * s, 30 * s, 30*s - 1, "serve stale"},
		{"over", stale, store.Value, 0, 10 * s, 30 * s, 30 * s, "fetch"},
		{"only if a fetch fails", ifError, store.Value, 0, 10 * s, 40 * s, 10 * s, "fetch"},
		{"while refreshing", both, store.Value, 0, 10 * s, 60 * s, 29 * s, "serve stale"},
		{"later only if a fetch fails", both, store.Value, 0, 10 * s, 60 * s, 30 * s, "fetch"},
		{"the entry forbids stale", stale, store.Value, 0, 10 * s, 10 * s, 10 * s, "fetch"},
		{"expired by hand", stale, store.Value, store.FlagExpired, 10 * s, 30 * s, s, "serve stale"},
		{"expired by hand, stale not allowed", plain, store.Value, store.FlagExpired, 10 * s, 10 * s, s, "fetch"},
		{"expired by hand, stale only if a fetch fails", ifError, store.Value, store.FlagExpired, 10 * s, 40 * s, s, "fetch"},
		{"expired by hand, both", both, store.Value, store.FlagExpired, 10 * s, 60 * s, s, "serve stale"},
		{"stale, only if a fetch fails", stale, store.Value, store.FlagIfError, 10 * s, 30 * s, 10 * s, "fetch"},
		{"fresh, only if a fetch fails", stale, store.Value, store.FlagIfError, 10 * s, 30 * s, 9 * s, "serve"},
		{"kept to be validated", stale, store.Value, store.FlagKept, 10 * s, 30 * s, 10 * s, "fetch"},
		{"fresh, then kept", stale, store.Value, store.FlagKept, 10 * s, 30 * s, 9 * s, "serve"},
		{"kept, never fresh", stale, store.Value, store.FlagKept, 0, 30 * s, 0, "fetch"},
		{"negative", stale, store.Negative, 0, 5 * s, 5 * s, s, "not found"},
		{"negative, over", stale, store.Negative, 0, 5 * s, 5 * s, 5 * s, "fetch"},
		{"negative, expired by hand", stale, store.Negative, store.FlagExpired, 5 * s, 5 * s, s, "fetch"},
		{"bypass", stale, store.Bypass, 0, 5 * s, 5 * s, s, "fetch alone"},
		{"bypass, too large", stale, store.Bypass, store.FlagTooLarge, 5 * s, 5 * s, s, "fetch locally"},
		{"bypass, over", stale, store.Bypass, 0, 5 * s, 5 * s, 5 * s, "fetch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &store.Reading{Found: true, Age: c.age, Left: c.hard - c.age, Entry: store.Entry{
				Kind: c.kind, Flags: c.flags, FreshFor: c.fresh, TTL: c.hard,
			}}
			if got := guard.Decide(r, c.policy); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	if got := guard.Decide(&store.Reading{}, plain); got != "fetch" {
		t.Errorf("nothing stored: %s", got)
	}
}

var errBusy = errors.New("busy")

func TestFailuresTravel(t *testing.T) {
	p := guard.Policy{TTL: time.Second, Errors: map[string]error{"busy": errBusy}}
	for name, c := range map[string]struct {
		err      error
		is       []error
		panicked bool
	}{
		"plain":      {err: errors.New("x")},
		"registered": {err: fmt.Errorf("asking: %w", errBusy), is: []error{errBusy}},
		"not found":  {err: fmt.Errorf("no such row: %w", guard.ErrNotFound), is: []error{guard.ErrNotFound}},
		"both":       {err: errors.Join(errBusy, guard.ErrNotFound), is: []error{errBusy, guard.ErrNotFound}},
		"panic":      {err: &guard.PanicError{Value: "x"}, panicked: true},
	} {
		got := guard.DecodeFailure(guard.EncodeFailure(c.err, p), p)
		if got.Text != c.err.Error() || got.Panicked != c.panicked || len(got.Sentinels) != len(c.is) {
			t.Errorf("%s: %+v", name, got)
		}
		for _, is := range c.is {
			if !errors.Is(got, is) {
				t.Errorf("%s: is not %v", name, is)
			}
		}
	}
	long := guard.DecodeFailure(guard.EncodeFailure(errors.New(strings.Repeat("x", 1<<20)), p), p)
	if len(long.Text) > 5<<10 || !strings.HasPrefix(long.Text, "xxx") {
		t.Errorf("a text of 1 MiB came as %d bytes", len(long.Text))
	}
	// MessagePack's strings are UTF-8: other languages refuse other bytes.
	for _, text := range []string{"no row k\xff", strings.Repeat("x", 4095) + "é"} {
		if got := guard.DecodeFailure(guard.EncodeFailure(errors.New(text), p), p); !utf8.ValidString(got.Text) {
			t.Errorf("the text ends in %q", got.Text[max(0, len(got.Text)-20):])
		}
	}
}

func FuzzDecodeFailure(f *testing.F) {
	p := guard.Policy{TTL: time.Second, Errors: map[string]error{"busy": errBusy}}
	f.Add([]byte{})
	f.Add(guard.EncodeFailure(errBusy, p))
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		e := guard.DecodeFailure(b, p)
		if e == nil || e.Error() == "" || e.RetryAfter < 0 {
			t.Errorf("%x: %+v", b, e)
		}
	})
}
