package redisstore_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// Redis may have evicted a deletion before the record was made anew. Until the store has
// asked the clock of tags, the record says nothing of entries.
func TestUnsettledTagRecordHidesEntries(t *testing.T) {
	bubble(t, redisstore.Options{}, nil, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		e := entryOf("v", time.Hour)
		e.Tags = []string{"t"}
		if err := set(t.Context(), s, "k", e); err != nil {
			t.Fatal(err)
		}
		reads(t, s, "k", "v")
		_, record := redisstore.TagNames("test", "t")
		server.HSet(record, "u", "1")
		if r, err := read(t.Context(), s, "k"); err != nil || r.Found {
			t.Errorf("read %+v, %v; want no entry", r, err)
		}
	})
}

// The record of a deletion is evicted, and an earlier deletion of the tag, held up on its way,
// makes the record anew. A fetch from between the two must not be stored.
func TestEvictedDeletionIsNotForgottenForAnEarlierOne(t *testing.T) {
	_, record := redisstore.TagNames("test", "t")
	g := newGate(func(cmd redis.Cmder) bool { return isScript(cmd) && slices.Contains(cmd.Args(), any(record)) })
	bubble(t, redisstore.Options{}, g, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		other := opened(t, server.Client(), redisstore.Options{})
		lease := granted(t, other, "k")
		open := g.shut(&g.way)
		earlier := make(chan error)
		go func() { earlier <- s.ChangeTags(t.Context(), store.DeleteTag, []string{"t"}) }()
		g.isHeld(t)
		stamp, err := other.Stamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := other.ChangeTags(t.Context(), store.DeleteTag, []string{"t"}); err != nil {
			t.Fatal(err)
		}
		server.Del(record)
		open()
		if err := <-earlier; err != nil {
			t.Fatal(err)
		}
		e := entryOf("old", time.Hour)
		e.Tags, e.Stamp = []string{"t"}, stamp
		if b := giveBack(t.Context(), other, store.Return{Lease: lease, Entry: e}); b.OK || !errors.Is(b.Err, store.ErrInvalidated) {
			t.Errorf("stored: %v, error %v", b.OK, b.Err)
		}
	})
}
