package redisstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

// taggedStore is a store and its server.
func taggedStore(t *testing.T) (*redisstore.Store, *redistest.Server) {
	t.Helper()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	return opened(t, server.Client(), redisstore.Options{}), server
}

// fill stores an entry with tags. Its fetch starts before meanwhile and ends after it.
func fill(t *testing.T, s *redisstore.Store, key string, meanwhile func(), tags ...string) store.Returned {
	t.Helper()
	stamp, err := s.Stamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := granted(t, s, key)
	meanwhile()
	e := entryOf("v", time.Minute)
	e.Tags, e.Stamp = tags, stamp
	return giveBack(t.Context(), s, store.Return{Lease: l, Entry: e})
}

// A process may end between the two looks that settle a new record.
func TestUnsettledRecordCountsAsNone(t *testing.T) {
	s, server := taggedStore(t)
	ctx, admin := t.Context(), server.Client()
	_, record := redisstore.TagNames("test", "t")
	if b := fill(t, s, "k", func() {}, "t"); !b.OK || b.Err != nil {
		t.Fatalf("%+v, want it stored", b)
	}
	if err := admin.HSet(ctx, record, "u", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first read does not know of the tag
		if r, err := read(ctx, s, "k"); err != nil || r.Found {
			t.Fatalf("found %v, %v, want a miss", r.Found, err)
		}
	}
	if b := fill(t, s, "other", func() {}, "t"); !b.OK || b.Err != nil {
		t.Fatalf("%+v, want it stored", b)
	}
	for _, key := range []string{"k", "other"} {
		if r, err := read(ctx, s, key); err != nil || !r.Found {
			t.Errorf("%s: found %v, %v, want it back: nothing was deleted", key, r.Found, err)
		}
	}
}

// The clock tells changes of other tags apart, or each first value of a tag would be
// refused where tags are deleted all the time.
func TestNewTagIsStoredPastDeletionsOfOthers(t *testing.T) {
	s, _ := taggedStore(t)
	refused := 0
	for i := range 50 {
		b := fill(t, s, fmt.Sprint("k", i), func() {
			if err := s.ChangeTags(t.Context(), store.DeleteTag, []string{fmt.Sprint("other", i)}); err != nil {
				t.Error(err)
			}
		}, fmt.Sprint("new", i))
		if errors.Is(b.Err, store.ErrInvalidated) {
			refused++
		} else if !b.OK || b.Err != nil {
			t.Errorf("%+v, want it stored", b)
		}
	}
	if refused > 5 { // one in 256
		t.Errorf("%d of 50 values were refused for deletions of other tags", refused)
	}
}

func TestOnlyTheFirstFillOfATagAsksTheClock(t *testing.T) {
	s, server := taggedStore(t)
	scripts := func() int64 {
		all, err := server.Commands(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all["evalsha"]
	}
	if b := fill(t, s, "warm", func() {}, "warm"); !b.OK || b.Err != nil { // so that Redis knows the scripts
		t.Fatalf("%+v, want it stored", b)
	}
	for _, c := range []struct {
		when string
		want int64
	}{{"the tag is new", 4}, {"the tag is known", 2}} {
		var before int64
		if b := fill(t, s, c.when, func() { before = scripts() }, "t"); !b.OK || b.Err != nil {
			t.Fatalf("%+v, want it stored", b)
		}
		if got := scripts() - before; got != c.want {
			t.Errorf("%s: %d scripts, want %d", c.when, got, c.want)
		}
	}
}

// pitfall 31: counts and attempts beside an entry may have been changed by hand, or have
// come from elsewhere without their expiry.
func TestForeignCountsAndQuarantinesEnd(t *testing.T) {
	s, server := taggedStore(t)
	admin, ctx := server.Client(), t.Context()
	for i, count := range []string{"", "many", "1.5", "inf", "9223372036854775807"} {
		key := fmt.Sprint("counted", i)
		if err := admin.Set(ctx, "test:{"+key+"}:failures", count, 0).Err(); err != nil {
			t.Fatal(err)
		}
		r := store.Return{Lease: granted(t, s, key), Failed: true, Failure: []byte("why"), Pause: time.Minute}
		if b := giveBack(ctx, s, r); !b.OK || b.Err != nil {
			t.Errorf("%q: %+v, want a failure that was told", count, b)
		}
		if n := admin.Get(ctx, "test:{"+key+"}:failures").Val(); n != "1" {
			t.Errorf("%q: %q failures in a row, want 1", count, n)
		}
	}
	for _, process := range []string{"process1", "process2", "process3"} {
		if err := admin.SAdd(ctx, "test:{k}:tries", process+"attempt.").Err(); err != nil {
			t.Fatal(err)
		}
	}
	ask := lasting("k")
	if a := acquire(ctx, s, ask); a.Verdict != store.Quarantined || a.TTL != ask.Window {
		t.Errorf("%v for %v, %v, want a quarantine of %v", a.Verdict, a.TTL, a.Err, ask.Window)
	}
	if left := admin.PTTL(ctx, "test:{k}:tries").Val(); left <= 0 {
		t.Errorf("the quarantine ends in %v", left)
	}
}

// A read waits in the queue of the entry's node. The record of its tag is on another one, which
// is asked once the read is sent: until then callers join it.
func TestQueuedReadSeesADeletedTagOnAnotherNode(t *testing.T) {
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	client, g := cluster.Client(), newGate(isRead)
	client.AddHook(g)
	s, ctx := opened(t, client, redisstore.Options{RedisTimeout: time.Minute}), t.Context()
	at := masterOf(t, cluster, "test:{k}")
	var tag string
	for i := 0; tag == ""; i++ {
		_, record := redisstore.TagNames("test", fmt.Sprint("t", i))
		if masterOf(t, cluster, record) != at {
			tag = fmt.Sprint("t", i)
		}
	}
	fill(t, s, "k", func() {}, tag)
	for range 2 { // the second read expects the tag
		reads(t, s, "k", "v")
	}
	defer g.shut(&g.way)()
	const side = 4 // batches at once
	for i, n := 0, 0; n < side; i++ {
		if key := fmt.Sprint("other", i); masterOf(t, cluster, "test:{"+key+"}") == at {
			n++
			storetest.StartRead(ctx, s, key)
			g.isHeld(t)
		}
	}
	rd := storetest.StartRead(ctx, s, "k")
	if err := s.ChangeTags(ctx, store.DeleteTag, []string{tag}); err != nil {
		t.Fatal(err)
	}
	if rd.Sent() {
		t.Fatal("the read did not queue")
	}
	g.open()
	if r, err := rd.Result(); err != nil || r.Found {
		t.Errorf("found %v, %v; want the deletion heeded", r != nil && r.Found, err)
	}
}
