package redisstore_test

import (
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
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
