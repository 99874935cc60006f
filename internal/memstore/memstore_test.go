package memstore_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stampedeguard/stampede/internal/memstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

const allowance = 256 + store.HeaderSize // an entry costs so much besides its key and payload

func newStore(t *testing.T, opts memstore.Options) *memstore.Store {
	t.Helper()
	if opts.MaxBytes == 0 {
		opts.MaxBytes = 64 << 20
	}
	if opts.MaxEntries == 0 {
		opts.MaxEntries = 1 << 20
	}
	m, err := memstore.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func backend(t *testing.T) storetest.Backend {
	first := newStore(t, memstore.Options{})
	return storetest.Backend{
		Open:  func(*testing.T) store.Store { return first.Join() },
		Kill:  func(_ *testing.T, s store.Store) { s.(*memstore.Store).Die() },
		Plant: func(_ *testing.T, key string, b []byte) { first.Plant(key, b) },

		ForgetTag:   func(_ *testing.T, tag string) { first.ForgetTag(tag) },
		RewindTags:  func(_ *testing.T, n uint64) { first.RewindTags(n) },
		ForgetClock: func(*testing.T) { first.ForgetClock() },
	}
}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // parallel tests wait; the command line has the last word
	os.Exit(m.Run())
}

func TestStoreConforms(t *testing.T) {
	storetest.Run(t, storetest.Harness{New: backend, Parallel: true})
}

func TestStoreConformsInFakeTime(t *testing.T) {
	storetest.Run(t, storetest.Harness{New: backend, Within: synctest.Test})
}

func entryOf(payload string, ttl time.Duration) *store.Entry {
	return &store.Entry{Kind: store.Value, TTL: ttl, FreshFor: ttl, Payload: []byte(payload)}
}

func trySet(m *memstore.Store, key string, e *store.Entry) error {
	return m.Change(context.Background(), []store.Change{{Kind: store.Set, Key: key, Entry: e}})[0]
}

func set(t *testing.T, m *memstore.Store, key string, e *store.Entry) {
	t.Helper()
	if err := trySet(m, key, e); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, m *memstore.Store, key string) *store.Reading {
	t.Helper()
	r, err := storetest.StartRead(context.Background(), m, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// acquire asks for the lease of a key after a read of its entry.
func acquire(t *testing.T, m *memstore.Store, key, seen string) store.Answer {
	t.Helper()
	r := store.Request{Key: key, Seen: seen, TTL: time.Minute, Window: time.Hour}
	a := m.Acquire(context.Background(), []store.Request{r})[0]
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	return a
}

func giveBack(m *memstore.Store, r store.Return) store.Returned {
	return m.Return(context.Background(), []store.Return{r})[0]
}

func TestLeastRecentlyUsedEntryIsEvicted(t *testing.T) {
	for name, opts := range map[string]memstore.Options{
		"bytes":   {MaxBytes: 3 * (allowance + 1000 + 1)},
		"entries": {MaxEntries: 3},
	} {
		m := newStore(t, opts)
		for _, key := range []string{"a", "b", "c"} {
			set(t, m, key, entryOf(strings.Repeat("x", 1000), time.Minute))
		}
		if !read(t, m, "a").Found {
			t.Fatalf("%s: a was evicted too early", name)
		}
		set(t, m, "d", entryOf(strings.Repeat("x", 1000), time.Minute))
		for key, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
			if r := read(t, m, key); r.Found != want {
				t.Errorf("%s: %s is found=%v, want %v", name, key, r.Found, want)
			}
		}
	}
}

func TestLeaseIsNeverEvicted(t *testing.T) {
	m := newStore(t, memstore.Options{MaxEntries: 1})
	set(t, m, "held", entryOf("v", time.Minute))
	a := acquire(t, m, "held", read(t, m, "held").Seen)
	if a.Verdict != store.Granted {
		t.Fatalf("answer %v", a.Verdict)
	}
	for i := range 100 {
		set(t, m, fmt.Sprint(i), entryOf("v", time.Minute))
	}
	if read(t, m, "held").Found {
		t.Fatal("the entry was not evicted")
	}
	if again := acquire(t, m, "held", ""); again.Verdict != store.Held {
		t.Errorf("answer %v, want held", again.Verdict)
	}
	if b := giveBack(m, store.Return{Lease: a.Lease, Entry: entryOf("w", time.Minute)}); !b.OK || b.Err != nil {
		t.Errorf("the fill answered %v, error %v", b.OK, b.Err)
	}
}

func TestEntriesThatCannotBeKeptAreRefused(t *testing.T) {
	m := newStore(t, memstore.Options{MaxBytes: 1000})
	set(t, m, "k", entryOf("old", time.Minute))
	for name, e := range map[string]*store.Entry{"too large": entryOf(strings.Repeat("x", 1000), time.Minute), "no TTL": entryOf("v", 0)} {
		if err := trySet(m, "k", e); !errors.Is(err, store.ErrRefused) {
			t.Errorf("set, %s: error %v, want ErrRefused", name, err)
		}
		r := read(t, m, "k")
		if string(r.Entry.Payload) != "old" {
			t.Errorf("%s: the entry became %q", name, r.Entry.Payload)
		}
		a := acquire(t, m, "k", r.Seen)
		if b := giveBack(m, store.Return{Lease: a.Lease, Entry: e}); b.OK || !errors.Is(b.Err, store.ErrRefused) {
			t.Errorf("fill, %s: answered %v, error %v, want ErrRefused", name, b.OK, b.Err)
		}
		next := acquire(t, m, "k", r.Seen)
		if next.Verdict != store.Granted {
			t.Fatalf("%s: answer %v after it, want granted", name, next.Verdict)
		}
		giveBack(m, store.Return{Lease: next.Lease})
	}
	short := store.Request{Key: "k", TTL: time.Microsecond}
	if a := m.Acquire(context.Background(), []store.Request{short})[0]; !errors.Is(a.Err, store.ErrRefused) {
		t.Errorf("a lease of a microsecond: error %v, want ErrRefused", a.Err)
	}
}

func TestExpiredKeysAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newStore(t, memstore.Options{})
		for i := range 1000 {
			key := fmt.Sprint(i)
			set(t, m, key, entryOf("v", time.Minute))
			a := acquire(t, m, key+"f", "")
			giveBack(m, store.Return{Lease: a.Lease, Failed: true, Failure: []byte("why"), Pause: time.Minute})
			m.Acquire(t.Context(), []store.Request{{Key: key + "l", TTL: time.Second, Window: time.Minute}})
		}
		if keys, _ := m.Size(); keys != 3000 {
			t.Fatalf("%d keys, want 3000", keys)
		}
		time.Sleep(5 * time.Minute)
		// No call names any of them again. The writes of others sweep.
		for range 1000 {
			set(t, m, "other", entryOf("v", time.Minute))
		}
		if keys, bytes := m.Size(); keys != 1 || bytes != int64(allowance+len("v")+len("other")) {
			t.Errorf("%d keys and %d bytes are left, want one", keys, bytes)
		}
	})
}

func TestMemoryIsBoundedUnderAllWrites(t *testing.T) {
	const limit = 64 << 10
	m := newStore(t, memstore.Options{MaxBytes: limit})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 2000 {
				key := fmt.Sprint(rng.IntN(500))
				switch rng.IntN(5) {
				case 0:
					m.Change(t.Context(), []store.Change{{Kind: store.Delete, Key: key}})
				case 1:
					m.Change(t.Context(), []store.Change{{Kind: store.Expire, Key: key}})
				case 2:
					storetest.StartRead(t.Context(), m, key)
				default:
					_ = trySet(m, key, entryOf(strings.Repeat("x", rng.IntN(4000)), time.Duration(1+rng.IntN(20))*time.Millisecond))
				}
				if _, bytes := m.Size(); bytes > limit || bytes < 0 {
					t.Errorf("%d bytes are counted, at most %d are allowed", bytes, limit)
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range 500 {
		m.Change(t.Context(), []store.Change{{Kind: store.Delete, Key: fmt.Sprint(i)}})
	}
	if keys, bytes := m.Size(); keys != 0 || bytes != 0 {
		t.Errorf("%d keys and %d bytes are left of nothing", keys, bytes)
	}
}

func TestLeaseHasOneHolderUnderStress(t *testing.T) {
	first := newStore(t, memstore.Options{})
	var holding [4]sync.Mutex // one for each key, locked by the holder of its lease
	var wg sync.WaitGroup
	for g := range 8 {
		m := first.Join()
		wg.Go(func() {
			defer m.Close()
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 2000 {
				i := rng.IntN(len(holding))
				key := fmt.Sprint(i)
				a := acquire(t, m, key, read(t, m, key).Seen)
				if a.Verdict != store.Granted {
					continue
				}
				if !holding[i].TryLock() {
					t.Errorf("two hold key %s", key)
					return
				}
				runtime.Gosched()
				holding[i].Unlock()
				back := []store.Return{{Entry: entryOf("v", time.Minute)}, {Failed: true}, {}}[rng.IntN(3)]
				back.Lease = a.Lease
				if b := giveBack(m, back); b.Err != nil {
					t.Error(b.Err)
				}
			}
		})
	}
	wg.Wait()
}

func TestEntryOfAMillisecondIsFreshBeforeThat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newStore(t, memstore.Options{})
		set(t, m, "k", entryOf("v", time.Millisecond))
		time.Sleep(time.Millisecond / 2)
		if r := read(t, m, "k"); !r.Fresh() || r.Left != time.Millisecond/2 {
			t.Errorf("fresh=%v with %v left, want a fresh entry", r.Fresh(), r.Left)
		}
		time.Sleep(time.Millisecond / 2)
		if read(t, m, "k").Found {
			t.Error("the entry outlives its TTL")
		}
	})
}

func TestClosedStoreKeepsNoWatch(t *testing.T) {
	first := newStore(t, memstore.Options{})
	m := first.Join()
	m.Watch("k")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if keys, _ := first.Size(); keys != 0 {
		t.Errorf("%d keys are kept for a store that was closed", keys)
	}
}

// A guard that is closed takes its near cache along.
func TestClosedFeedIsNotKept(t *testing.T) {
	m := newStore(t, memstore.Options{})
	near := func() weak.Pointer[[1 << 10]byte] {
		kept := new([1 << 10]byte)
		m.Follow(func(store.Invalidation) { kept[0]++ }).Close()
		return weak.Make(kept)
	}()
	runtime.GC()
	if near.Value() != nil {
		t.Error("the store keeps the function of a closed feed")
	}
}

func TestCloseStopsAllTimers(t *testing.T) {
	// The bubble fails the test if a goroutine is left that waits for ever.
	synctest.Test(t, func(t *testing.T) {
		m := newStore(t, memstore.Options{})
		r := store.Request{Key: "k", TTL: time.Hour, RenewFor: time.Hour, Window: 3 * time.Hour}
		l := m.Acquire(t.Context(), []store.Request{r})[0].Lease
		w := m.Watch("k")
		defer w.Close()
		_ = m.Close()
		time.Sleep(3 * time.Hour)
		if l.IsLost() {
			t.Error("a timer fired after Close")
		}
	})
}
