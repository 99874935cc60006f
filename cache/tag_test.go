package cache_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// taggedStore is a store, and what is needed to look behind its back.
func taggedStore(t *testing.T) (s *cache.Redis, server *redistest.Server, record func(tag string) string) {
	server = redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, server, func(tag string) string {
		_, name, err := cache.TagNames("test", tag)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
}

// fill stores an entry with tags whose fetch starts, and ends after meanwhile.
func fill(t *testing.T, s *cache.Redis, key string, meanwhile func(), tags ...string) (bool, error) {
	t.Helper()
	stamp, err := s.Stamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Acquire(t.Context(), key, lasting())
	if err != nil || a.Verdict != cache.Granted {
		t.Fatalf("%v, %v, want granted", a.Verdict, err)
	}
	meanwhile()
	e := entryOf("v", lasting().Window)
	e.Tags, e.Stamp = tags, stamp
	return s.Fill(t.Context(), a.Lease, e)
}

// A process may end between the two looks that settle a new record.
func TestUnsettledRecordCountsAsNone(t *testing.T) {
	s, server, record := taggedStore(t)
	ctx, admin := t.Context(), server.Client()
	if ok, err := fill(t, s, "k", func() {}, "t"); !ok || err != nil {
		t.Fatalf("%v, %v, want it stored", ok, err)
	}
	if err := admin.HSet(ctx, record("t"), "u", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first read doesn't know of the tag
		if r, err := s.Read(ctx, "k"); err != nil || r.Found {
			t.Fatalf("found %v, %v, want a miss", r.Found, err)
		}
	}
	if ok, err := fill(t, s, "other", func() {}, "t"); !ok || err != nil {
		t.Fatalf("%v, %v, want it stored", ok, err)
	}
	for _, key := range []string{"k", "other"} {
		if r, err := s.Read(ctx, key); err != nil || !r.Found {
			t.Errorf("%s: found %v, %v, want it back: nothing was deleted", key, r.Found, err)
		}
	}
}

// The clock tells changes of other tags apart, or each first value of a tag would be
// refused where tags are deleted all the time.
func TestNewTagIsStoredPastDeletionsOfOthers(t *testing.T) {
	s, _, _ := taggedStore(t)
	refused := 0
	for i := range 50 {
		ok, err := fill(t, s, fmt.Sprint("k", i), func() {
			if err := s.DeleteTag(t.Context(), fmt.Sprint("other", i)); err != nil {
				t.Error(err)
			}
		}, fmt.Sprint("new", i))
		if errors.Is(err, cache.ErrInvalidated) {
			refused++
		} else if !ok || err != nil {
			t.Errorf("%v, %v, want it stored", ok, err)
		}
	}
	if refused > 5 { // one in 256
		t.Errorf("%d of 50 values were refused for deletions of other tags", refused)
	}
}

func TestOnlyTheFirstFillOfATagAsksTheClock(t *testing.T) {
	s, server, _ := taggedStore(t)
	scripts := func() int64 {
		all, err := server.Commands(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all["evalsha"]
	}
	if ok, err := fill(t, s, "warm", func() {}, "warm"); !ok || err != nil { // so that Redis knows the scripts
		t.Fatalf("%v, %v, want it stored", ok, err)
	}
	for _, c := range []struct {
		when string
		want int64
	}{{"the tag is new", 4}, {"the tag is known", 2}} {
		var before int64
		if ok, err := fill(t, s, c.when, func() { before = scripts() }, "t"); !ok || err != nil {
			t.Fatalf("%v, %v, want it stored", ok, err)
		}
		if got := scripts() - before; got != c.want {
			t.Errorf("%s: %d scripts, want %d", c.when, got, c.want)
		}
	}
}
