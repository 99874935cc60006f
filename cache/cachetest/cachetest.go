// Package cachetest has the tests that every implementation of [cache.Store]
// passes: the contract, clause by clause.
//
// Most of what a store can get wrong are races between processes, so a test
// opens several stores on one backend and lets each play a process. Comments
// name the lines of docs/pitfalls.md that a test shows.
package cachetest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A Harness says how to set up the stores under test.
type Harness struct {
	// New sets up a backend for one test: an empty one, or a part of a shared one
	// that nobody else uses, such as a namespace that was drawn at random. What has
	// to be taken down is left to t.Cleanup. Required.
	New func(t *testing.T) Backend

	// Within runs the body of each test. [testing/synctest.Test] makes a test's
	// time fake. Default: the body is just called.
	Within func(t *testing.T, test func(t *testing.T))

	// Parallel runs the tests in parallel with each other.
	Parallel bool

	// Patience is how long a test waits for what must happen in the end. Default
	// 10 s.
	Patience time.Duration
}

// A Backend is what the processes of one test share.
type Backend struct {
	// Open returns the store of a new process. The test closes it. Required.
	Open func(t *testing.T) cache.Store

	// Kill ends the process of a store abruptly: it gives nothing back and renews
	// nothing, and its connections are closed. The store may not be used any
	// more, but Close must still do no harm. Nil where that can't be done, or
	// where the store doesn't notice deaths: the tests of it are then skipped.
	Kill func(t *testing.T, s cache.Store)

	// Plant stores bytes in place of a key's entry, without an expiry. Nil where
	// that can't be done: the tests of it are then skipped.
	Plant func(t *testing.T, key string, b []byte)

	// ForgetTag removes all that is known of a tag, as an eviction would. RewindTags
	// sets the clock of tags back to n, as a failover could. ForgetClock removes it.
	// Nil where that can't be done: the tests of it are then skipped.
	ForgetTag   func(t *testing.T, tag string)
	RewindTags  func(t *testing.T, n uint64)
	ForgetClock func(t *testing.T)
}

// Run tests the stores of h.
func Run(t *testing.T, h Harness) {
	if h.Within == nil {
		h.Within = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	if h.Patience == 0 {
		h.Patience = 10 * time.Second
	}
	for _, group := range [][]test{readTests, acquireTests, pauseTests, fillTests, renewTests, changeTests, deathTests, watchTests, followTests, tagTests, keyTests, limitTests, manyTests} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				if h.Parallel {
					t.Parallel()
				}
				h.Within(t, func(t *testing.T) {
					b := h.New(t)
					switch {
					case c.needs == kill && b.Kill == nil:
						t.Skip("this backend can't kill a process")
					case c.needs == plant && b.Plant == nil:
						t.Skip("this backend can't plant foreign bytes")
					case c.needs == tagFaults && (b.ForgetTag == nil || b.RewindTags == nil || b.ForgetClock == nil):
						t.Skip("this backend can't lose what it knows of tags")
					}
					c.run(&fixture{T: t, Backend: b, patience: h.Patience, ctx: context.Background()})
				})
			})
		}
	}
}

type test struct {
	name  string
	needs need
	run   func(*fixture)
}

// need is what a test needs of a backend beyond Open.
type need byte

const (
	nothing need = iota
	kill
	plant
	tagFaults
)

// A fixture is one test's view of its backend.
type fixture struct {
	*testing.T
	Backend
	patience time.Duration
	ctx      context.Context
}

// key is what tests use that need just one.
const key = "key"

// anAsk is a lease that doesn't run out while a test runs.
func anAsk() cache.Ask {
	return cache.Ask{TTL: 30 * time.Second, RenewFor: 60 * time.Second, Window: 120 * time.Second}
}

// shortTTL is a lease that a test can wait for. It leaves a renewal every 100 ms
// some room on a busy machine.
const shortTTL = 300 * time.Millisecond

func anEntry(payload string) *cache.Entry {
	return &cache.Entry{Kind: cache.Value, TTL: time.Minute, FreshFor: 30 * time.Second, Payload: []byte(payload)}
}

// open returns the store of a new process, closed with the test.
func (f *fixture) open() cache.Store {
	f.Helper()
	s := f.Open(f.T)
	f.Cleanup(func() { _ = s.Close() })
	return s
}

func (f *fixture) read(s cache.Store, key string) *cache.Reading {
	f.Helper()
	r, err := s.Read(f.ctx, key)
	if err != nil {
		f.Fatalf("Read: %v", err)
	}
	return r
}

// reads checks the payload stored under key.
func (f *fixture) reads(s cache.Store, key, want string) *cache.Reading {
	f.Helper()
	r := f.read(s, key)
	if !r.Found || !bytes.Equal(r.Entry.Payload, []byte(want)) {
		f.Fatalf("read found=%v %.40q, want %.40q", r.Found, r.Entry.Payload, want)
	}
	return r
}

func (f *fixture) misses(s cache.Store, key string) {
	f.Helper()
	if r := f.read(s, key); r.Found || r.Seen != "" {
		f.Fatalf("read found=%v %.40q, want a miss", r.Found, r.Entry.Payload)
	}
}

func (f *fixture) set(s cache.Store, key, payload string) *cache.Entry {
	f.Helper()
	e := anEntry(payload)
	f.ok("Set", s.Set(f.ctx, key, e))
	return e
}

func (f *fixture) ok(call string, err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("%s: %v", call, err)
	}
}

func (f *fixture) acquire(s cache.Store, key string, ask cache.Ask) cache.Answer {
	f.Helper()
	a, err := s.Acquire(f.ctx, key, ask)
	if err != nil {
		f.Fatalf("Acquire: %v", err)
	}
	return a
}

// answers acquires and checks the verdict.
func (f *fixture) answers(s cache.Store, key string, ask cache.Ask, want cache.Verdict) cache.Answer {
	f.Helper()
	a := f.acquire(s, key, ask)
	if a.Verdict != want {
		f.Fatalf("Acquire answered %v, want %v: %+v", a.Verdict, want, a)
	}
	return a
}

// granted acquires key with anAsk, seen being what is stored.
func (f *fixture) granted(s cache.Store, key string) *cache.Lease {
	f.Helper()
	ask := anAsk()
	ask.Seen = f.read(s, key).Seen
	return f.answers(s, key, ask, cache.Granted).Lease
}

// heldBy checks that another caller is told of the lease.
func (f *fixture) heldBy(s cache.Store, l *cache.Lease) {
	f.Helper()
	ask := anAsk()
	ask.Seen = f.read(s, l.Key).Seen
	if a := f.answers(s, l.Key, ask, cache.Held); a.Holder != l.Token {
		f.Fatalf("held by %v, want %v", a.Holder, l.Token)
	}
}

func (f *fixture) fills(s cache.Store, l *cache.Lease, payload string) *cache.Entry {
	f.Helper()
	e := anEntry(payload)
	stored, err := s.Fill(f.ctx, l, e)
	if err != nil || !stored {
		f.Fatalf("Fill answered %v, error %v, want it stored", stored, err)
	}
	return e
}

// fillsInVain checks that a lost lease's fill is refused.
func (f *fixture) fillsInVain(s cache.Store, l *cache.Lease) {
	f.Helper()
	stored, err := s.Fill(f.ctx, l, anEntry("late"))
	if err != nil || stored {
		f.Fatalf("Fill of a lost lease answered %v, error %v, want false", stored, err)
	}
}

func (f *fixture) fails(s cache.Store, l *cache.Lease, why string, pause time.Duration) {
	f.Helper()
	told, err := s.Fail(f.ctx, l, []byte(why), pause)
	if err != nil || !told {
		f.Fatalf("Fail answered %v, error %v, want true", told, err)
	}
}

// eventually waits for what must come true, asking often: it never merely
// sleeps for as long as it takes on a good day.
func (f *fixture) eventually(what string, is func() bool) {
	f.Helper()
	for start := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > f.patience {
			f.Fatalf("after %v still not: %s", f.patience, what)
		}
	}
}

// throughout checks that something stays true for d.
func (f *fixture) throughout(d time.Duration, what string, is func() bool) {
	f.Helper()
	for start := time.Now(); time.Since(start) < d; time.Sleep(10 * time.Millisecond) {
		if !is() {
			f.Fatalf("after %v no longer: %s", time.Since(start), what)
		}
	}
}

// isLost waits for the news that a lease is gone.
func (f *fixture) isLost(l *cache.Lease) {
	f.Helper()
	select {
	case <-l.Lost():
	case <-time.After(f.patience):
		f.Fatal("Lost was not closed")
	}
}

func (f *fixture) isNotLost(l *cache.Lease) {
	f.Helper()
	select {
	case <-l.Lost():
		f.Fatal("Lost was closed")
	default:
	}
}

// watch returns a watch that is live.
func (f *fixture) watch(s cache.Store, key string) *cache.Watch {
	f.Helper()
	w := s.Watch(key)
	f.Cleanup(w.Close)
	f.hears(w, cache.Confirmed)
	return w
}

// hears waits for a signal. A subscription may be confirmed more than once.
func (f *fixture) hears(w *cache.Watch, want cache.Signal) cache.Message {
	f.Helper()
	timeout := time.After(f.patience)
	for {
		select {
		case m := <-w.C:
			if m.Signal == want {
				return m
			}
			if m.Signal != cache.Confirmed {
				f.Fatalf("heard %v of %v, want %v", m.Signal, m.Token, want)
			}
		case <-timeout:
			f.Fatalf("heard nothing, want %v", want)
		}
	}
}
