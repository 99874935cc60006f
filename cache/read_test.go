package cache_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
		r.queued(8, keys[12:]...) // what waits is asked for once
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
