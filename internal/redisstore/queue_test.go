package redisstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

// gated is a store on a real server, and another client of the server. The gate can hold
// the store's round trips up. The store's subscription is live.
func gated(t *testing.T, of func(redis.Cmder) bool, opts redisstore.Options) (*redisstore.Store, *gate, *redis.Client) {
	t.Helper()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client, g := server.Client(), newGate(of)
	client.AddHook(g)
	opts.RedisTimeout = cmp.Or(opts.RedisTimeout, time.Minute)
	s := opened(t, client, opts)
	t.Cleanup(g.open)
	granted(t, s, "first")
	return s, g, server.Client()
}

// scriptSenders acquires go to Redis beside each other.
const scriptSenders = 2

type asked struct {
	key string
	store.Answer
}

// ask acquires keys, each in a goroutine of its own.
func ask(ctx context.Context, s store.Store, answers chan<- asked, keys ...string) {
	for _, key := range keys {
		go func() { answers <- asked{key, acquire(ctx, s, lasting(key))} }()
	}
}

// busy has as many acquires under way as go beside each other, and returns when they are
// held up.
func busy(t *testing.T, s store.Store, g *gate, answers chan<- asked) {
	t.Helper()
	for i := range scriptSenders {
		ask(t.Context(), s, answers, fmt.Sprint("busy", i))
		g.isHeld(t)
	}
}

// areGranted waits for so many answers, which grant their leases.
func areGranted(t *testing.T, answers <-chan asked, n int) {
	t.Helper()
	late := time.After(20 * time.Second) // RedisTimeout is longer
	for range n {
		select {
		case a := <-answers:
			if a.Err != nil || a.Verdict != store.Granted {
				t.Errorf("%s: %v, %v", a.key, a.Verdict, a.Err)
			}
		case <-late:
			t.Fatal("no answer")
		}
	}
}

// waiting waits until so many requests are queued.
func waiting(t *testing.T, s *redisstore.Store, reads, scripts int) {
	t.Helper()
	eventually(t, func() bool {
		r, c := redisstore.Waiting(s)
		return r == reads && c == scripts
	})
}

func TestAcquiresOfManyCallersShareRoundTrips(t *testing.T) {
	s, g, admin := gated(t, isAcquire, redisstore.Options{})
	answers := make(chan asked)
	open := g.shut(&g.way)
	busy(t, s, g, answers)
	var keys []string
	for i := range 12 { // fewer than make a batch full
		keys = append(keys, fmt.Sprint("k", i))
	}
	ask(t.Context(), s, answers, keys...)
	waiting(t, s, 0, len(keys))
	if err := admin.ScriptFlush(t.Context()).Err(); err != nil { // all are sent again
		t.Fatal(err)
	}
	before := g.Trips()
	open()
	seen := map[store.Token]bool{}
	for range len(keys) + scriptSenders {
		a := <-answers
		if a.Err != nil || a.Verdict != store.Granted || a.Lease.Key != a.key || seen[a.Lease.Token] {
			t.Errorf("%s: %v, %v", a.key, a.Verdict, a.Err)
			continue
		}
		seen[a.Lease.Token] = true
		if held := admin.Get(t.Context(), "test:{"+a.key+"}:lease").Val(); held != string(a.Lease.Token[:])+"1" {
			t.Errorf("%s: Redis has the lease %x", a.key, held)
		}
	}
	// Each of the busy ones is sent again. The rest may go in two parts, each sent twice.
	if n := g.Trips() - before; n > 2*scriptSenders+4 {
		t.Errorf("%d round trips", n)
	}
}

func TestQueuedAcquireLeavesWithItsCaller(t *testing.T) {
	s, g, admin := gated(t, isAcquire, redisstore.Options{})
	answers := make(chan asked, 10)
	open := g.shut(&g.way)
	defer open()
	busy(t, s, g, answers)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan asked)
	ask(ctx, s, gone, "gone")
	ask(t.Context(), s, answers, "stays")
	waiting(t, s, 0, 2)
	cancel()
	if a := <-gone; !errors.Is(a.Err, context.Canceled) {
		t.Error(a.Err)
	}
	sent := g.Count("evalsha", "eval")
	open()
	areGranted(t, answers, scriptSenders+1)
	if n := g.Count("evalsha", "eval") - sent; n != scriptSenders+1 {
		t.Errorf("%d scripts were sent, want the first %d and that of the caller that stayed", n, scriptSenders)
	}
	if admin.Exists(t.Context(), "test:{gone}:lease").Val() != 0 {
		t.Error("the lease of a caller that had left was granted")
	}
}

func TestGrantOfADepartedCallerIsReturned(t *testing.T) {
	s, g, admin := gated(t, isAcquire, redisstore.Options{})
	answers := make(chan asked, 10)
	open := g.shut(&g.way)
	busy(t, s, g, answers)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan asked)
	ask(ctx, s, gone, "gone")
	ask(t.Context(), s, answers, "stays")
	waiting(t, s, 0, 2)
	first := g.shut(&g.ret)
	open()
	for range scriptSenders {
		g.isHeld(t)
	}
	answer := g.shut(&g.ret)
	first()
	eventually(t, func() bool { return admin.Exists(t.Context(), "test:{gone}:lease").Val() == 1 })
	cancel()
	if a := <-gone; !errors.Is(a.Err, context.Canceled) {
		t.Error(a.Err)
	}
	answer()
	areGranted(t, answers, scriptSenders+1)
	eventually(t, func() bool { return admin.Exists(t.Context(), "test:{gone}:lease").Val() == 0 })
	if admin.Exists(t.Context(), "test:{stays}:lease").Val() != 1 {
		t.Error("the lease of the other caller is gone too")
	}
}

// Late grants are returned beside the batches: no sender waits for a batch that would have
// to come after its own.
func TestLateGrantsHoldUpNoOtherAcquire(t *testing.T) {
	s, g, admin := gated(t, isAcquire, redisstore.Options{})
	open := g.shut(&g.way)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan asked)
	for i := range scriptSenders {
		ask(ctx, s, gone, fmt.Sprint("gone", i))
		g.isHeld(t)
	}
	cancel()
	for range scriptSenders {
		if a := <-gone; !errors.Is(a.Err, context.Canceled) {
			t.Error(a.Err)
		}
	}
	open()
	answers := make(chan asked, 1)
	ask(t.Context(), s, answers, "next")
	areGranted(t, answers, 1)
	for i := range scriptSenders {
		eventually(t, func() bool { return admin.Exists(t.Context(), fmt.Sprintf("test:{gone%d}:lease", i)).Val() == 0 })
	}
}

// readers read, each in a goroutine of its own.
type readers struct {
	t    *testing.T
	s    *redisstore.Store
	g    *gate
	done chan error
	n    int
}

func newReaders(t *testing.T, s *redisstore.Store, g *gate) *readers {
	return &readers{t: t, s: s, g: g, done: make(chan error, 1000)}
}

func (r *readers) read(keys ...string) {
	for _, key := range keys {
		r.n++
		go func() {
			got, err := read(r.t.Context(), r.s, key)
			if err == nil && !got.Found {
				err = fmt.Errorf("%s was not found", key)
			}
			r.done <- err
		}()
	}
}

// sends reads keys, one after the other, each in a batch of its own.
func (r *readers) sends(keys ...string) {
	r.t.Helper()
	for _, key := range keys {
		r.read(key)
		r.g.isHeld(r.t)
	}
}

// queues reads keys, of which so many wait then.
func (r *readers) queues(want int, keys ...string) {
	r.t.Helper()
	r.read(keys...)
	waiting(r.t, r.s, want, 0)
}

func (r *readers) wait() {
	r.t.Helper()
	for ; r.n > 0; r.n-- {
		if err := <-r.done; err != nil {
			r.t.Error(err)
		}
	}
}

// warmed stores keys of so many bytes each, and reads them.
func warmed(t *testing.T, s *redisstore.Store, n, bytes int) (keys []string) {
	t.Helper()
	payload := strings.Repeat("v", bytes)
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
		mustSet(t, s, keys[i], payload)
		reads(t, s, keys[i], payload)
	}
	return keys
}

func TestFewReadsDoNotWaitForEachOther(t *testing.T) {
	s, g, _ := gated(t, isRead, redisstore.Options{})
	keys := warmed(t, s, 20, 100)
	r := newReaders(t, s, g)
	open := g.shut(&g.way)
	r.sends(keys[:4]...)
	r.queues(8, keys[4:12]...)
	next := g.shut(&g.way)
	open()
	g.isHeld(t) // the eight in one batch
	r.queues(1, keys[12])
	next()
	r.wait()
}

func TestReadIsSentWhenItsBatchIs(t *testing.T) {
	s, g, _ := gated(t, isRead, redisstore.Options{})
	open := g.shut(&g.way)
	var sent, queued []*storetest.Read
	for i := range 6 {
		rd := storetest.StartRead(t.Context(), s, fmt.Sprint("k", i))
		if i < 4 {
			sent = append(sent, rd)
			g.isHeld(t)
		} else {
			queued = append(queued, rd)
		}
	}
	for _, rd := range sent {
		if !rd.Sent() {
			t.Error("a read that is on its way counts as not sent")
		}
	}
	for _, rd := range queued {
		if rd.Sent() {
			t.Error("a queued read counts as sent")
		}
	}
	open()
	for _, rd := range append(sent, queued...) {
		if _, err := rd.Result(); err != nil || !rd.Sent() {
			t.Errorf("sent=%v, error %v", rd.Sent(), err)
		}
	}
}

func TestLargeValuesAreReadInSmallBatches(t *testing.T) {
	s, g, _ := gated(t, isRead, redisstore.Options{})
	keys := warmed(t, s, 20, 70_000)
	r := newReaders(t, s, g)
	gets, mgets := g.Count("get"), g.Count("mget")
	open := g.shut(&g.way)
	r.sends(keys[:4]...)
	r.queues(3, keys[4:7]...)
	r.sends(keys[7]) // 256 KiB: they do not wait
	r.queues(3, keys[8:11]...)
	r.sends(keys[11])
	r.queues(8, keys[12:]...) // six batches are under way
	open()
	r.wait()
	if gets, mgets = g.Count("get")-gets, g.Count("mget")-mgets; gets != 4 || mgets != 4 {
		t.Errorf("%d reads of one key and %d of more, want 4 and 4", gets, mgets)
	}
}

func TestOneHugeValueDoesNotScatterReads(t *testing.T) {
	s, g, _ := gated(t, isRead, redisstore.Options{})
	huge := strings.Repeat("v", 16<<20)
	mustSet(t, s, "huge", huge)
	keys := warmed(t, s, 10, 100)
	reads(t, s, "huge", huge)
	r := newReaders(t, s, g)
	open := g.shut(&g.way)
	r.sends(keys[:4]...)
	r.queues(3, keys[4:7]...)
	open()
	r.wait()
}

// Requests that fill a batch by themselves are under way.
func TestSmallRequestsDoNotWaitForLargeOnes(t *testing.T) {
	isMany := func(cmd redis.Cmder) bool {
		return cmd.Name() == "mget" || isScript(cmd) && strings.Contains(fmt.Sprint(cmd.Args()...), "many")
	}
	s, g, _ := gated(t, isMany, redisstore.Options{})
	names := make([]string, 300)
	for i := range names {
		names[i] = fmt.Sprint("many", i)
	}
	mustSet(t, s, "k", "v")
	open := g.shut(&g.way)
	var wg sync.WaitGroup
	for range 8 { // more than are under way at once
		wg.Go(func() { storetest.ReadMany(t.Context(), s, "", names) })
		wg.Go(func() {
			changes := make([]store.Change, len(names))
			for i, name := range names {
				changes[i] = store.Change{Kind: store.Set, Key: name, Entry: entryOf("v", time.Hour)}
			}
			if err := errors.Join(s.Change(t.Context(), changes)...); err != nil {
				t.Error(err)
			}
		})
	}
	for range 12 {
		g.isHeld(t)
	}
	reads(t, s, "k", "v")
	if b := giveBack(t.Context(), s, store.Return{Lease: granted(t, s, "lone")}); !b.OK {
		t.Errorf("%+v", b)
	}
	open()
	wg.Wait()
}

// Records of tags are small, whatever the values are that are read beside them.
func TestRecordsDoNotWaitForValues(t *testing.T) {
	s, g, _ := gated(t, func(cmd redis.Cmder) bool {
		return cmd.Name() == "get" && fmt.Sprint(cmd.Args()[1]) == "test:{k0}"
	}, redisstore.Options{})
	tagged := make([]string, 300) // more records than go in one batch
	for i := range tagged {
		tagged[i] = fmt.Sprint("tagged", i)
		e := entryOf("v", time.Hour)
		e.Tags = tagged[i : i+1]
		if err := set(t.Context(), s, tagged[i], e); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		size int // of the value that is being read
		read func(ctx context.Context) error
	}{
		{"the clock, beside a large value", 1 << 20, func(ctx context.Context) error {
			_, err := s.Stamp(ctx)
			return err
		}},
		{"of many tags", 100, func(ctx context.Context) (failed error) {
			s.ReadMany(ctx, "", tagged, func(_ int, _ *store.Reading, err error) { failed = cmp.Or(failed, err) })
			return failed
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReaders(t, s, g)
			keys := warmed(t, s, 1, c.size)
			open := g.shut(&g.way)
			r.sends(keys...)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := c.read(ctx); err != nil {
				t.Error(err)
			}
			open()
			r.wait()
		})
	}
}

// A sender's alarm is set for one batch after another. Each has its time, and no more,
// whenever the one before was sent.
func TestEachBatchHasItsTime(t *testing.T) {
	const timeout = time.Minute
	for _, before := range []time.Duration{0, time.Second, timeout - 1, timeout, timeout + 1, 3 * timeout} {
		g := newGate(isRead)
		bubble(t, redisstore.Options{RedisTimeout: timeout, BreakerFailures: 100}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
			misses := func() {
				t.Helper()
				if r, err := read(t.Context(), s, "k"); err != nil || r.Found {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			misses()
			time.Sleep(before)
			for range 2 { // the second by another sender
				open := g.shut(&g.way)
				start := time.Now()
				_, err := read(t.Context(), s, "k")
				if took := time.Since(start); !errors.Is(err, store.ErrUnavailable) || took != timeout {
					t.Errorf("%v after another read: %v after %v", before, err, took)
				}
				open()
				misses()
			}
		})
	}
}

// The end of a timeout that is noticed late gives the batch more time, once, and is
// reported.
func TestLateProcessIsReported(t *testing.T) {
	const allowed = 20 * time.Millisecond
	var told []store.Event
	opts := redisstore.Options{BreakerFailures: 10, Report: func(e store.Event) {
		if e.Kind == store.ProcessLate {
			told = append(told, e)
		}
	}}
	bubble(t, opts, nil, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		if n := redisstore.RingLate(s, allowed); n != 0 || told != nil {
			t.Errorf("%v late: given time again %d times, told %v", allowed, n, told)
		}
		late := allowed + time.Millisecond
		if n := redisstore.RingLate(s, late); n != 1 || len(told) != 1 || told[0].Duration != late || told[0].Node == "" {
			t.Errorf("%v late: given time again %d times, told %v", late, n, told)
		}
	})
}

// Redis is in a black hole, and the breaker takes long to open.
func TestQueuedRequestsEndSoonInABlackHole(t *testing.T) {
	const timeout = 200 * time.Millisecond
	g := newGate(func(cmd redis.Cmder) bool { return isRead(cmd) || isScript(cmd) })
	bubble(t, redisstore.Options{RedisTimeout: timeout, BreakerFailures: 1000}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		keys := warmed(t, s, 60, 300_000) // each read is a batch
		before := runtime.NumGoroutine()
		open := g.shut(&g.way)
		var wg sync.WaitGroup
		began := time.Now()
		for _, key := range keys {
			wg.Go(func() {
				if _, err := read(t.Context(), s, key); !errors.Is(err, store.ErrUnavailable) {
					t.Error(err)
				}
			})
			wg.Go(func() {
				r := lasting(key)
				r.Once = true
				if a := acquire(t.Context(), s, r); !errors.Is(a.Err, store.ErrUnavailable) {
					t.Error(a.Err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 2*timeout {
			t.Errorf("the last was told after %v", took)
		}
		if n := runtime.NumGoroutine() - before; n > 20 { // two queues, their senders, and the client's
			t.Errorf("%d goroutines more", n)
		}
		open()
		synctest.Wait()
		reads(t, s, keys[0], strings.Repeat("v", 300_000))
	})
}

func TestCloseEndsQueuedRequests(t *testing.T) {
	g := newGate(func(cmd redis.Cmder) bool { return isRead(cmd) })
	bubble(t, redisstore.Options{RedisTimeout: time.Minute}, g, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		open := g.shut(&g.way)
		var rds []*storetest.Read
		for i := range 20 {
			rds = append(rds, storetest.StartRead(t.Context(), s, fmt.Sprint("k", i)))
		}
		began := time.Now()
		_ = s.Close() // some calls are still under way in the client
		for _, rd := range rds {
			if _, err := rd.Result(); !errors.Is(err, store.ErrClosed) {
				t.Errorf("error %v, want ErrClosed", err)
			}
		}
		if took := time.Since(began); took > 4*time.Minute {
			t.Errorf("it took %v", took)
		}
		open()
		if r := storetest.StartRead(t.Context(), s, "k"); r.Sent() {
			t.Error("a read of a closed store was sent")
		}
	})
}

func TestTimeoutDuringCloseEndsQueuedRequests(t *testing.T) {
	s := opened(t, redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client(), redisstore.Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !redisstore.EndsQueued(s) {
		t.Error("a queued read never ends")
	}
}

// An acquire is sent again at once. If the failure of the first were not known yet, the
// failure of the second would not count.
func TestFailureCountsBeforeItsCallersKnow(t *testing.T) {
	h := &wall{}
	bubble(t, redisstore.Options{BreakerFailures: 10}, h.hook(), func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		h.up.Store(true)
		for range 10 {
			// The store's own commands fail too, and may be among the ten.
			if _, err := read(t.Context(), s, "k"); !errors.Is(err, errWall) && !redisstore.BreakerOpen(s) {
				t.Fatal(err)
			}
		}
		if !redisstore.BreakerOpen(s) {
			t.Error("10 failures in a row leave it closed")
		}
		h.up.Store(false)
	})
}

func TestWaitingSendersKeepNoValues(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s := opened(t, server.Client(), redisstore.Options{})
	keys := warmed(t, s, 20, 1<<10)
	for range 3 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var values []weak.Pointer[byte]
		note := func(r *store.Reading, err error) {
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			values = append(values, weak.Make(&r.Entry.Payload[0]))
		}
		for range 8 {
			wg.Go(func() {
				s.ReadMany(t.Context(), "", keys, func(_ int, r *store.Reading, err error) { note(r, err) })
			})
		}
		for _, key := range keys {
			wg.Go(func() { note(read(t.Context(), s, key)) })
		}
		wg.Wait()
		if len(values) != 9*len(keys) || redisstore.Parked(s) == 0 {
			t.Fatalf("%d values were read, %d senders wait", len(values), redisstore.Parked(s))
		}
		eventually(t, func() bool {
			runtime.GC()
			return !slices.ContainsFunc(values, func(p weak.Pointer[byte]) bool { return p.Value() != nil })
		})
	}
}

// A call for many keys has RedisTimeout once for each 250 of them, also while it is queued.
func TestLargeReadIsNotShedBeforeItsTimeout(t *testing.T) {
	bubble(t, redisstore.Options{}, nil, func(t *testing.T, s *redisstore.Store, e *redistest.Embedded) {
		e.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
			if cmd == "MGET" {
				time.Sleep(50 * time.Millisecond)
			}
			return false
		})
		keys := make([]string, 2000)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() {
				var failed error
				s.ReadMany(t.Context(), "", keys, func(_ int, _ *store.Reading, err error) { failed = cmp.Or(failed, err) })
				if failed != nil {
					t.Error(failed)
				}
			})
		}
		calls.Wait()
	})
}
