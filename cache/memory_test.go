package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/cache/cachetest"
)

func memoryBackend(t *testing.T) cachetest.Backend {
	first := newMemory(t, cache.MemoryOptions{})
	return cachetest.Backend{
		Open:  func(*testing.T) cache.Store { return first.Join() },
		Kill:  func(_ *testing.T, s cache.Store) { s.(*cache.Memory).Die() },
		Plant: func(_ *testing.T, key string, b []byte) { first.Plant(key, b) },

		ForgetTag:   func(_ *testing.T, tag string) { first.ForgetTag(tag) },
		RewindTags:  func(_ *testing.T, n uint64) { first.RewindTags(n) },
		ForgetClock: func(*testing.T) { first.ForgetClock() },
	}
}

func newMemory(t *testing.T, opts cache.MemoryOptions) *cache.Memory {
	t.Helper()
	m, err := cache.NewMemory(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestMemoryKeepsTheContract(t *testing.T) {
	cachetest.Run(t, cachetest.Harness{New: memoryBackend, Parallel: true})
}

func TestMemoryKeepsTheContractInABubble(t *testing.T) {
	cachetest.Run(t, cachetest.Harness{New: memoryBackend, Within: synctest.Test})
}

func entryOf(payload string, ttl time.Duration) *cache.Entry {
	return &cache.Entry{Kind: cache.Value, TTL: ttl, FreshFor: ttl, Payload: []byte(payload)}
}

func TestMemoryOptionsAreValidated(t *testing.T) {
	_, err := cache.NewMemory(cache.MemoryOptions{MaxBytes: -1, MaxEntries: -2})
	if err == nil || !strings.Contains(err.Error(), "MaxBytes") || !strings.Contains(err.Error(), "MaxEntries") {
		t.Errorf("error %v, want both fields named", err)
	}
}

func TestMemoryEvictsTheLeastRecentlyUsed(t *testing.T) {
	for name, opts := range map[string]cache.MemoryOptions{
		"bytes":   {MaxBytes: 3 * (256 + 32 + 1000 + 1)},
		"entries": {MaxEntries: 3},
	} {
		m := newMemory(t, opts)
		ctx := context.Background()
		for _, key := range []string{"a", "b", "c"} {
			set(t, m, key, entryOf(strings.Repeat("x", 1000), time.Minute))
		}
		if r, err := m.Read(ctx, "a"); err != nil || !r.Found {
			t.Fatalf("%s: a was evicted too early", name)
		}
		set(t, m, "d", entryOf(strings.Repeat("x", 1000), time.Minute))
		for key, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
			if r, err := m.Read(ctx, key); err != nil || r.Found != want {
				t.Errorf("%s: %s is found=%v, error %v, want %v", name, key, r.Found, err, want)
			}
		}
	}
}

func set(t *testing.T, m *cache.Memory, key string, e *cache.Entry) {
	t.Helper()
	if err := m.Set(context.Background(), key, e); err != nil {
		t.Fatal(err)
	}
}

func TestMemoryNeverEvictsALease(t *testing.T) {
	m := newMemory(t, cache.MemoryOptions{MaxEntries: 1})
	ctx := context.Background()
	set(t, m, "held", entryOf("v", time.Minute))
	r, _ := m.Read(ctx, "held")
	a, err := m.Acquire(ctx, "held", cache.Ask{Seen: r.Seen, TTL: time.Minute, Window: time.Hour})
	if err != nil || a.Verdict != cache.Granted {
		t.Fatalf("answer %v, error %v", a.Verdict, err)
	}
	for i := range 100 {
		set(t, m, fmt.Sprint(i), entryOf("v", time.Minute))
	}
	if r, _ := m.Read(ctx, "held"); r.Found {
		t.Fatal("the entry was not evicted")
	}
	if again, _ := m.Acquire(ctx, "held", cache.Ask{TTL: time.Minute, Window: time.Hour}); again.Verdict != cache.Held {
		t.Errorf("answer %v, want held", again.Verdict)
	}
	if stored, err := m.Fill(ctx, a.Lease, entryOf("w", time.Minute)); !stored || err != nil {
		t.Errorf("Fill answered %v, error %v", stored, err)
	}
}

func TestMemoryRefusesWhatItCannotKeep(t *testing.T) {
	m := newMemory(t, cache.MemoryOptions{MaxBytes: 1000})
	ctx := context.Background()
	set(t, m, "k", entryOf("old", time.Minute))
	for name, e := range map[string]*cache.Entry{"too large": entryOf(strings.Repeat("x", 1000), time.Minute), "no TTL": entryOf("v", 0)} {
		if err := m.Set(ctx, "k", e); !errors.Is(err, cache.ErrRefused) {
			t.Errorf("Set, %s: error %v, want ErrRefused", name, err)
		}
		r, err := m.Read(ctx, "k")
		if err != nil || string(r.Entry.Payload) != "old" {
			t.Errorf("%s: the entry became %q", name, r.Entry.Payload)
		}
		a, _ := m.Acquire(ctx, "k", cache.Ask{Seen: r.Seen, TTL: time.Minute, Window: time.Hour})
		if stored, err := m.Fill(ctx, a.Lease, e); stored || !errors.Is(err, cache.ErrRefused) {
			t.Errorf("Fill, %s: answered %v, error %v, want ErrRefused", name, stored, err)
		}
		b, _ := m.Acquire(ctx, "k", cache.Ask{Seen: r.Seen, TTL: time.Minute, Window: time.Hour})
		if b.Verdict != cache.Granted {
			t.Fatalf("%s: answer %v after it, want granted", name, b.Verdict)
		}
		if err := m.Release(ctx, b.Lease); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Acquire(ctx, "k", cache.Ask{TTL: time.Microsecond}); !errors.Is(err, cache.ErrRefused) {
		t.Errorf("Acquire for a microsecond: error %v, want ErrRefused", err)
	}
}

func TestMemoryForgetsWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, cache.MemoryOptions{})
		ctx := context.Background()
		for i := range 1000 {
			key := fmt.Sprint(i)
			set(t, m, key, entryOf("v", time.Minute))
			a, _ := m.Acquire(ctx, key+"f", cache.Ask{TTL: time.Second, Window: time.Minute})
			if _, err := m.Fail(ctx, a.Lease, []byte("why"), time.Minute); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Acquire(ctx, key+"l", cache.Ask{TTL: time.Second, Window: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		if keys, _ := m.Size(); keys != 3000 {
			t.Fatalf("%d keys, want 3000", keys)
		}
		time.Sleep(5 * time.Minute)
		// Nobody asks for any of them again; the writes of others sweep.
		for range 1000 {
			set(t, m, "other", entryOf("v", time.Minute))
		}
		if keys, bytes := m.Size(); keys != 1 || bytes != int64(256+32+len("v")+len("other")) {
			t.Errorf("%d keys and %d bytes are left, want one", keys, bytes)
		}
	})
}

func TestMemoryIsBoundedWhateverIsWritten(t *testing.T) {
	const limit = 64 << 10
	m := newMemory(t, cache.MemoryOptions{MaxBytes: limit})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			ctx := context.Background()
			for range 2000 {
				key := fmt.Sprint(rng.IntN(500))
				switch rng.IntN(5) {
				case 0:
					_ = m.Delete(ctx, key)
				case 1:
					_ = m.Expire(ctx, key)
				case 2:
					_, _ = m.Read(ctx, key)
				default:
					_ = m.Set(ctx, key, entryOf(strings.Repeat("x", rng.IntN(4000)), time.Duration(1+rng.IntN(20))*time.Millisecond))
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
		_ = m.Delete(context.Background(), fmt.Sprint(i))
	}
	if keys, bytes := m.Size(); keys != 0 || bytes != 0 {
		t.Errorf("%d keys and %d bytes are left of nothing", keys, bytes)
	}
}

func TestMemoryStressGrantsOneAtATime(t *testing.T) {
	first := newMemory(t, cache.MemoryOptions{})
	var holding [4]sync.Mutex // one for each key, locked by whoever has its lease
	var wg sync.WaitGroup
	for g := range 8 {
		m := first.Join()
		wg.Go(func() {
			defer m.Close()
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			ctx := context.Background()
			for range 2000 {
				i := rng.IntN(len(holding))
				key := fmt.Sprint(i)
				r, err := m.Read(ctx, key)
				if err != nil {
					t.Error(err)
					return
				}
				a, err := m.Acquire(ctx, key, cache.Ask{Seen: r.Seen, TTL: time.Minute, Window: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				if a.Verdict != cache.Granted {
					continue
				}
				if !holding[i].TryLock() {
					t.Errorf("two hold key %s", key)
					return
				}
				runtime.Gosched()
				holding[i].Unlock()
				switch rng.IntN(3) {
				case 0:
					_, err = m.Fill(ctx, a.Lease, entryOf("v", time.Minute))
				case 1:
					_, err = m.Fail(ctx, a.Lease, nil, 0)
				default:
					err = m.Release(ctx, a.Lease)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestMemoryCountsPartOfAMillisecondAsTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, cache.MemoryOptions{})
		set(t, m, "k", entryOf("v", time.Millisecond))
		time.Sleep(time.Millisecond / 2)
		if r, err := m.Read(context.Background(), "k"); err != nil || !r.Fresh() || r.Left != time.Millisecond {
			t.Errorf("fresh=%v with %v left, error %v, want a fresh entry", r.Fresh(), r.Left, err)
		}
	})
}

func TestMemoryCloseKeepsNoWatch(t *testing.T) {
	first := newMemory(t, cache.MemoryOptions{})
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
func TestMemoryKeepsNoFeedThatWasClosed(t *testing.T) {
	m := newMemory(t, cache.MemoryOptions{})
	near := func() weak.Pointer[[1 << 10]byte] {
		kept := new([1 << 10]byte)
		m.Follow(func(cache.Invalidation) { kept[0]++ }).Close()
		return weak.Make(kept)
	}()
	runtime.GC()
	if near.Value() != nil {
		t.Error("what the feed told is kept by the store")
	}
}

func TestMemoryCloseLeavesNoGoroutine(t *testing.T) {
	// The bubble fails the test if one is left that waits for ever, and time
	// doesn't pass in it while one runs.
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, cache.MemoryOptions{})
		a, err := m.Acquire(context.Background(), "k", cache.Ask{TTL: time.Hour, RenewFor: time.Hour, Window: 3 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		w := m.Watch("k")
		defer w.Close()
		_ = m.Close()
		time.Sleep(3 * time.Hour)
		select {
		case <-a.Lease.Lost():
			t.Error("a timer fired after Close")
		default:
		}
	})
}
