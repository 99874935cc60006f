// Package storetest has the tests that every implementation of [store.Store] passes: the
// contract, clause by clause.
//
// Most mistakes of a store are races between processes. So a test opens several stores on
// one backend, and each plays a process. Comments name the lines of docs/pitfalls.md that
// a test covers.
package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A Harness says how to set up the stores under test.
type Harness struct {
	// New sets up an empty backend for one test. A namespace of its own on a shared server
	// is one. It cleans up by t.Cleanup.
	New func(t *testing.T) Backend

	// Within runs the body of each test. [testing/synctest.Test] makes its time fake.
	// Default: the body is just called.
	Within func(t *testing.T, test func(t *testing.T))

	// Parallel runs the tests in parallel with each other.
	Parallel bool
}

// A Backend is the server that the processes of one test share.
type Backend struct {
	// Open returns the store of a new process. The test closes it.
	Open func(t *testing.T) store.Store

	// Kill ends the process of a store abruptly: it returns and renews nothing, and its
	// connections are closed. The test still calls Close.
	Kill func(t *testing.T, s store.Store)

	// Plant stores bytes in place of a key's entry, without an expiry.
	Plant func(t *testing.T, key string, b []byte)

	// ForgetTag removes the record of a tag, as an eviction would. RewindTags sets the clock
	// of tags back to n, as a failover could. ForgetClock removes the clock.
	ForgetTag   func(t *testing.T, tag string)
	RewindTags  func(t *testing.T, n uint64)
	ForgetClock func(t *testing.T)
}

// patience is how long a test waits for an event.
const patience = 10 * time.Second

// Run tests the stores of h: each test once with calls for a lone key, and once with calls
// in which other keys stand beside the test's own.
func Run(t *testing.T, h Harness) {
	if h.Within == nil {
		h.Within = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	for _, group := range [][]test{
		readTests, acquireTests, pauseTests, returnTests, renewTests, changeTests, deathTests, watchTests, followTests,
		tagTests, keyTests, limitTests, manyTests,
	} {
		for _, c := range group {
			for name, others := range map[string]int{"": 0, "AmongMany": 3} {
				t.Run(c.name+name, func(t *testing.T) {
					if h.Parallel {
						t.Parallel()
					}
					h.Within(t, func(t *testing.T) {
						c.run(&fixture{T: t, Backend: h.New(t), others: others, ctx: context.Background()})
					})
				})
			}
		}
	}
}

type test struct {
	name string
	run  func(*fixture)
}

// A fixture is one test's view of its backend.
type fixture struct {
	*testing.T
	Backend
	ctx    context.Context
	others int          // keys that stand beside the test's own in each call
	used   atomic.Int64 // of those
}

// key serves tests that need just one.
const key = "key"

// other returns a key that no call has named yet.
func (f *fixture) other() string { return fmt.Sprint("other key ", f.used.Add(1)) }

// place is where the test's own key stands among the others.
func (f *fixture) place() int { return f.others / 2 }

// request asks for a lease that does not run out while a test runs.
func request(key string) store.Request {
	return store.Request{Key: key, TTL: 30 * time.Second, RenewFor: 60 * time.Second, Window: 120 * time.Second}
}

// shortTTL is the TTL of a lease that a test waits for. A renewal every 100 ms has some
// room on a busy machine.
const shortTTL = 300 * time.Millisecond

func entryOf(payload string) *store.Entry {
	return &store.Entry{Kind: store.Value, TTL: time.Minute, FreshFor: 30 * time.Second, Payload: []byte(payload)}
}

// open returns the store of a new process, which is closed with the test.
func (f *fixture) open() store.Store {
	f.Helper()
	s := f.Open(f.T)
	f.Cleanup(func() { _ = s.Close() })
	return s
}

// tryRead reads a key, by itself or among many.
func (f *fixture) tryRead(ctx context.Context, s store.Store, key string) (*store.Reading, error) {
	f.Helper()
	if f.others == 0 {
		return StartRead(ctx, s, key).Result()
	}
	keys := make([]string, 1+f.others)
	for i := range keys {
		keys[i] = f.other()
	}
	keys[f.place()] = key
	results := ReadMany(ctx, s, "", keys)
	for i, r := range results {
		if i != f.place() && (r.Err == nil) != (results[f.place()].Err == nil) {
			f.Errorf("ReadMany: the others answered %v, this key %v", r.Err, results[f.place()].Err)
		}
	}
	return results[f.place()].Reading, results[f.place()].Err
}

// A Read is a read under way.
type Read struct {
	sent    atomic.Bool
	done    chan struct{}
	reading *store.Reading
	err     error
}

// StartRead begins to read a key.
func StartRead(ctx context.Context, s store.Store, key string) *Read {
	r := &Read{done: make(chan struct{})}
	s.Read(ctx, "", key, r)
	return r
}

// Sending implements [store.Reader].
func (r *Read) Sending() { r.sent.Store(true) }

// Answered implements [store.Reader].
func (r *Read) Answered(reading *store.Reading, err error) {
	r.reading, r.err = reading, err
	close(r.done)
}

// Sent reports whether the command is being sent, or was.
func (r *Read) Sent() bool { return r.sent.Load() }

// Result waits for the answer.
func (r *Read) Result() (*store.Reading, error) {
	<-r.done
	return r.reading, r.err
}

// A Result is ReadMany's answer for one key.
type Result struct {
	Reading *store.Reading
	Err     error
}

// ReadMany collects the answers of a store's ReadMany, in the order of keys. A key that is
// not answered exactly once has an error.
func ReadMany(ctx context.Context, s store.Store, prefix string, keys []string) []Result {
	results := make([]Result, len(keys))
	answers := make([]int, len(keys))
	s.ReadMany(ctx, prefix, keys, func(i int, r *store.Reading, err error) {
		answers[i]++
		if results[i].Err = err; r != nil {
			results[i].Reading = r.Keep()
		}
	})
	for i, n := range answers {
		if n != 1 {
			results[i] = Result{Err: fmt.Errorf("%d answers for %q", n, keys[i])}
		}
	}
	return results
}

func (f *fixture) read(s store.Store, key string) *store.Reading {
	f.Helper()
	r, err := f.tryRead(f.ctx, s, key)
	if err != nil {
		f.Fatalf("Read: %v", err)
	}
	return r
}

// reads checks the payload stored under key.
func (f *fixture) reads(s store.Store, key, want string) *store.Reading {
	f.Helper()
	r := f.read(s, key)
	if !r.Found || string(r.Entry.Payload) != want {
		f.Fatalf("read found=%v %.40q, want %.40q", r.Found, r.Entry.Payload, want)
	}
	return r
}

func (f *fixture) misses(s store.Store, key string) {
	f.Helper()
	if r := f.read(s, key); r.Found || r.Seen != "" {
		f.Fatalf("read found=%v %.40q, want a miss", r.Found, r.Entry.Payload)
	}
}

// tryAcquire asks for the lease of a key, by itself or among many.
func (f *fixture) tryAcquire(ctx context.Context, s store.Store, r store.Request) store.Answer {
	f.Helper()
	requests := make([]store.Request, 1+f.others)
	for i := range requests {
		requests[i] = request(f.other())
	}
	requests[f.place()] = r
	answers := s.Acquire(ctx, requests)
	own := answers[f.place()]
	var back []store.Return
	for i, a := range answers {
		switch {
		case i == f.place():
		case a.Verdict == store.Granted:
			back = append(back, store.Return{Lease: a.Lease})
		case own.Err == nil:
			f.Errorf("Acquire: %q answered %v, error %v, want granted", requests[i].Key, a.Verdict, a.Err)
		}
	}
	s.Return(f.ctx, back)
	return own
}

func (f *fixture) acquire(s store.Store, r store.Request) store.Answer {
	f.Helper()
	a := f.tryAcquire(f.ctx, s, r)
	if a.Err != nil {
		f.Fatalf("Acquire: %v", a.Err)
	}
	return a
}

// answers acquires and checks the verdict.
func (f *fixture) answers(s store.Store, r store.Request, want store.Verdict) store.Answer {
	f.Helper()
	a := f.acquire(s, r)
	if a.Verdict != want {
		f.Fatalf("Acquire answered %v, want %v: %+v", a.Verdict, want, a)
	}
	return a
}

// asSeen is a request by a caller that has just read the key.
func (f *fixture) asSeen(s store.Store, key string) store.Request {
	f.Helper()
	r := request(key)
	r.Seen = f.read(s, key).Seen
	return r
}

// granted acquires the lease of a key after a read of its entry.
func (f *fixture) granted(s store.Store, key string) *store.Lease {
	f.Helper()
	return f.answers(s, f.asSeen(s, key), store.Granted).Lease
}

// heldBy checks that another caller is told of the lease.
func (f *fixture) heldBy(s store.Store, l *store.Lease) {
	f.Helper()
	if a := f.answers(s, f.asSeen(s, l.Key), store.Held); a.Holder != l.Token {
		f.Fatalf("held by %v, want %v", a.Holder, l.Token)
	}
}

// giveBack returns a lease, by itself or among many.
func (f *fixture) giveBack(ctx context.Context, s store.Store, r store.Return) store.Returned {
	f.Helper()
	returns := make([]store.Return, 1+f.others)
	for i := range returns {
		if i != f.place() {
			a := s.Acquire(f.ctx, []store.Request{request(f.other())})[0]
			if returns[i].Lease = a.Lease; a.Lease == nil {
				returns[i].Lease = &store.Lease{Key: "no lease", Token: store.Token{1}} // the store is closed
			} else {
				returns[i].Entry = entryOf("of " + a.Lease.Key)
			}
		}
	}
	returns[f.place()] = r
	all := s.Return(ctx, returns)
	for i, b := range all {
		if i != f.place() && all[f.place()].Err == nil && (!b.OK || b.Err != nil) {
			f.Errorf("Return: %q answered %v, error %v, want true", returns[i].Lease.Key, b.OK, b.Err)
		}
	}
	return all[f.place()]
}

func (f *fixture) fills(s store.Store, l *store.Lease, payload string) *store.Entry {
	f.Helper()
	e := entryOf(payload)
	f.fillsWith(s, l, e)
	return e
}

func (f *fixture) fillsWith(s store.Store, l *store.Lease, e *store.Entry) {
	f.Helper()
	if b := f.giveBack(f.ctx, s, store.Return{Lease: l, Entry: e}); !b.OK || b.Err != nil {
		f.Fatalf("the fill answered %v, error %v, want it stored", b.OK, b.Err)
	}
}

// fillsInVain checks that the fill of a lost lease is refused.
func (f *fixture) fillsInVain(s store.Store, l *store.Lease) {
	f.Helper()
	if b := f.giveBack(f.ctx, s, store.Return{Lease: l, Entry: entryOf("late")}); b.OK || b.Err != nil {
		f.Fatalf("the fill of a lost lease answered %v, error %v, want false", b.OK, b.Err)
	}
}

func (f *fixture) fails(s store.Store, l *store.Lease, why string, pause time.Duration) {
	f.Helper()
	b := f.giveBack(f.ctx, s, store.Return{Lease: l, Failed: true, Failure: []byte(why), Pause: pause})
	if !b.OK || b.Err != nil {
		f.Fatalf("the failure answered %v, error %v, want true", b.OK, b.Err)
	}
}

func (f *fixture) failsInVain(s store.Store, r store.Return) {
	f.Helper()
	r.Failed, r.Failure, r.Pause = true, []byte("why"), time.Minute
	if b := f.giveBack(f.ctx, s, r); b.OK || b.Err != nil {
		f.Fatalf("the failure of a lost lease answered %v, error %v, want false", b.OK, b.Err)
	}
}

func (f *fixture) releases(s store.Store, l *store.Lease) {
	f.Helper()
	if b := f.giveBack(f.ctx, s, store.Return{Lease: l}); !b.OK || b.Err != nil {
		f.Fatalf("the release answered %v, error %v, want true", b.OK, b.Err)
	}
}

// tryChange changes a key, by itself or among many.
func (f *fixture) tryChange(ctx context.Context, s store.Store, c store.Change) error {
	f.Helper()
	changes := make([]store.Change, 1+f.others)
	for i := range changes {
		changes[i] = store.Change{Kind: c.Kind, Key: f.other()}
		if c.Kind == store.Set {
			changes[i].Entry = entryOf("of another")
		}
	}
	changes[f.place()] = c
	errs := s.Change(ctx, changes)
	for i, err := range errs {
		if err != nil && errs[f.place()] == nil {
			f.Errorf("%v of %q: %v", c.Kind, changes[i].Key, err)
		}
	}
	return errs[f.place()]
}

func (f *fixture) setEntry(s store.Store, key string, e *store.Entry) {
	f.Helper()
	f.ok("set", f.tryChange(f.ctx, s, store.Change{Kind: store.Set, Key: key, Entry: e}))
}

func (f *fixture) set(s store.Store, key, payload string) *store.Entry {
	f.Helper()
	e := entryOf(payload)
	f.setEntry(s, key, e)
	return e
}

// change deletes, expires or resets a key.
func (f *fixture) change(s store.Store, kind store.ChangeKind, key string) {
	f.Helper()
	f.ok(kind.String(), f.tryChange(f.ctx, s, store.Change{Kind: kind, Key: key}))
}

func (f *fixture) ok(call string, err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("%s: %v", call, err)
	}
}

// eventually waits until something is true, and asks often.
func (f *fixture) eventually(event string, is func() bool) {
	f.Helper()
	for start := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			f.Fatalf("after %v still not: %s", patience, event)
		}
	}
}

// throughout checks that something stays true for d.
func (f *fixture) throughout(d time.Duration, state string, is func() bool) {
	f.Helper()
	for start := time.Now(); time.Since(start) < d; time.Sleep(10 * time.Millisecond) {
		if !is() {
			f.Fatalf("after %v no longer: %s", time.Since(start), state)
		}
	}
}

// isLost waits for the news that a lease is gone.
func (f *fixture) isLost(l *store.Lease) {
	f.Helper()
	f.eventually("the lease is lost", l.IsLost)
}

func (f *fixture) isNotLost(l *store.Lease) {
	f.Helper()
	if l.IsLost() {
		f.Fatal("the lease is lost")
	}
}

// watch returns a watch that is live.
func (f *fixture) watch(s store.Store, key string) *store.Watch {
	f.Helper()
	w := s.Watch(key)
	f.Cleanup(w.Close)
	f.hears(w, store.Confirmed)
	return w
}

// hears waits for a signal. A subscription may be confirmed more than once.
func (f *fixture) hears(w *store.Watch, want store.Signal) store.Message {
	f.Helper()
	timeout := time.After(patience)
	for {
		select {
		case m := <-w.C:
			if m.Signal == want {
				return m
			}
			if m.Signal != store.Confirmed {
				f.Fatalf("heard %v of %v, want %v", m.Signal, m.Token, want)
			}
		case <-timeout:
			f.Fatalf("heard nothing, want %v", want)
		}
	}
}
