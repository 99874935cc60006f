package cache_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// readers read, each in a goroutine of its own.
type readers struct {
	t    *testing.T
	s    *cache.Redis
	g    *gate
	done chan struct{}
	n    int
}

func (r *readers) read(key string) {
	r.n++
	go func() {
		defer func() { r.done <- struct{}{} }()
		if got, err := r.s.Read(r.t.Context(), key); err != nil || !got.Found {
			r.t.Errorf("%s: %+v, %v", key, got, err)
		}
	}()
}

// shut holds up what is sent, until the test's end at the latest.
func (r *readers) shut() (open func()) {
	open = r.g.shut(&r.g.way)
	r.t.Cleanup(open)
	return open
}

// sent waits for a batch to be sent.
func (r *readers) sent() {
	r.t.Helper()
	select {
	case <-r.g.held:
	case <-time.After(10 * time.Second):
		r.t.Fatal("nothing was sent")
	}
}

// queued reads keys of which so many are to be waiting then.
func (r *readers) queued(want int, keys ...string) {
	r.t.Helper()
	for _, key := range keys {
		r.read(key)
	}
	eventually(r.t, func() bool { return cache.QueuedReads(r.s) == want })
}

func (r *readers) wait() {
	for ; r.n > 0; r.n-- {
		<-r.done
	}
}

// warmed stores keys of so many bytes each, and reads them.
func warmed(t *testing.T, s *cache.Redis, n, bytes int) (keys []string) {
	t.Helper()
	payload := strings.Repeat("v", bytes)
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
		if err := s.Set(t.Context(), keys[i], entryOf(payload, time.Hour)); err != nil {
			t.Fatal(err)
		}
		wantRead(t, s, keys[i], payload)
	}
	return keys
}

func TestFewReadsDontWaitForEachOther(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for _, c := range []struct {
		name string
		size int // of a value
		run  func(r *readers, keys []string) (open func())
	}{
		{"four of different keys", 100, func(r *readers, keys []string) func() {
			open := r.shut()
			for _, key := range keys[:4] {
				r.read(key)
				r.sent()
			}
			r.queued(2, keys[4:6]...)
			return open
		}},
		{"of one key: only when its answer is there", 100, func(r *readers, keys []string) func() {
			open := r.shut()
			r.read(keys[0])
			r.sent()
			r.queued(1, keys[0])
			r.queued(2, keys[1]) // in the same batch
			return open
		}},
		{"of one key that fills a batch by itself", 1 << 20, func(r *readers, keys []string) func() {
			open := r.shut()
			r.read(keys[0])
			r.sent()
			r.queued(1, keys[0], keys[0])
			return open
		}},
		{"beside many: they are collected", 100, func(r *readers, keys []string) func() {
			first := r.shut()
			r.read(keys[0])
			r.sent()
			r.queued(1, keys[0])
			r.queued(8, keys[1:8]...)
			open := r.shut()
			first()
			r.sent() // those eight
			r.queued(1, keys[9])
			return open
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, g := reading(t, server.Client(), "app")
			keys := warmed(t, s, 10, c.size)
			r := &readers{t: t, s: s, g: g, done: make(chan struct{})}
			open := c.run(r, keys)
			if n := len(g.held); n != 0 {
				t.Errorf("%d more batches were sent", n)
			}
			open()
			r.wait()
		})
	}
}

func TestLargeValuesAreReadInSmallBatches(t *testing.T) {
	s, g := reading(t, redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client(), "app")
	keys := warmed(t, s, 20, 70_000)
	r := &readers{t: t, s: s, g: g, done: make(chan struct{})}
	trips, commands := sent(g, func() {
		open := r.shut()
		for _, key := range keys[:4] {
			r.read(key)
			r.sent()
		}
		r.queued(3, keys[4:7]...)
		r.read(keys[7]) // 256 KiB: they don't wait
		r.sent()
		r.queued(3, keys[8:11]...)
		r.read(keys[11])
		r.sent()
		r.queued(8, keys[12:]...) // six batches are under way
		if n := len(g.held); n != 0 {
			t.Errorf("%d more batches were sent", n)
		}
		open()
		r.wait()
	})
	if trips != 8 || commands != " 4 get 4 mget" {
		t.Errorf("%d round trips:%s, want 4 of one key and 4 of four", trips, commands)
	}
}

// Records of tags are small, whatever else is read, and nobody waits for their
// copies.
func TestRecordsDontWaitForValues(t *testing.T) {
	g := &gate{held: make(chan struct{}, 100), of: func(cmd redis.Cmder) bool {
		return cmd.Name() == "get" && fmt.Sprint(cmd.Args()[1]) == "app:{k0}"
	}}
	client := redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client()
	client.AddHook(g)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "app", RedisTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tagged := make([]string, 300) // more records than go in one batch
	for i := range tagged {
		tagged[i] = fmt.Sprint("tagged", i)
		e := entryOf("v", time.Hour)
		e.Tags = tagged[i : i+1]
		if err := s.Set(t.Context(), tagged[i], e); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		size int // of the value that is being read
		read func(ctx context.Context) error
	}{
		{"the clock, beside a large one", 1 << 20, func(ctx context.Context) error {
			_, err := s.Stamp(ctx)
			return err
		}},
		{"of many tags", 100, func(ctx context.Context) (failed error) {
			s.ReadMany(ctx, "", tagged, func(_ int, _ *cache.Reading, err error) { failed = cmp.Or(failed, err) })
			return failed
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &readers{t: t, s: s, g: g, done: make(chan struct{})}
			keys := warmed(t, s, 10, c.size)
			open := r.shut()
			r.read(keys[0])
			r.sent()
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

// A batch that waits for one of MaxInFlight would use up its time.
func TestReadsAreCollectedWhereFewMayBeUnderWay(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for _, size := range []int{100, 1 << 20} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			client := server.Client()
			g := &gate{held: make(chan struct{}, 100), of: func(cmd redis.Cmder) bool { return cmd.Name() == "get" }}
			client.AddHook(g)
			s, err := cache.NewRedis(client, cache.Options{Namespace: "app", RedisTimeout: time.Minute, MaxInFlight: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			r := &readers{t: t, s: s, g: g, done: make(chan struct{})}
			keys := warmed(t, s, 10, size)
			open := r.shut()
			r.read(keys[0])
			r.sent()
			for _, key := range keys[1:4] {
				r.read(key)
			}
			eventually(t, func() bool { return cache.QueuedReads(s) == 3 })
			open()
			r.wait()
		})
	}
}

func TestOneHugeValueDoesntScatterReads(t *testing.T) {
	s, g := reading(t, redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client(), "app")
	huge := strings.Repeat("v", 16<<20)
	if err := s.Set(t.Context(), "huge", entryOf(huge, time.Hour)); err != nil {
		t.Fatal(err)
	}
	keys := warmed(t, s, 10, 100)
	wantRead(t, s, "huge", huge)
	r := &readers{t: t, s: s, g: g, done: make(chan struct{})}
	open := r.shut()
	for _, key := range keys[:4] {
		r.read(key)
		r.sent()
	}
	r.queued(3, keys[4:7]...)
	open()
	r.wait()
}

// Whoever wakes a sender holds the lane's lock, and mustn't have to wait for one that
// is about to take it.
func TestNoMoreSendersWaitThanCanBeWoken(t *testing.T) {
	s, _ := reading(t, redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client(), "app")
	if cache.ParksBesideWoken(s) {
		t.Error("one waits beside as many as there is room to wake")
	}
}

// Redis is in a black hole, and the breaker takes long to open.
func TestQueuedReadsDontWaitForRoundAfterRound(t *testing.T) {
	const timeout, keys = 200 * time.Millisecond, 60
	client := redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client()
	g := &gate{held: make(chan struct{}, 100), of: func(cmd redis.Cmder) bool { return cmd.Name() == "get" }}
	client.AddHook(g)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "app", RedisTimeout: timeout, BreakerFailures: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names := warmed(t, s, keys, 300_000) // each is a batch
	defer g.shut(&g.way)()
	start, done := time.Now(), make(chan error)
	for _, key := range names {
		go func() { _, err := s.Read(t.Context(), key); done <- err }()
	}
	for range names {
		if err := <-done; !errors.Is(err, cache.ErrUnavailable) {
			t.Error(err)
		}
	}
	if took := time.Since(start); took > 5*timeout {
		t.Errorf("the last was told after %v", took)
	}
}
