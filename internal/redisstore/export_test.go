package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// TagNames are the names of the clock of tags and of a tag's record.
func TagNames(namespace, tag string) (clock, record string) {
	s := keyspace{namespace}
	return s.clock(), s.tag(tag)
}

// KeyNames are the names of keys and channels for a key.
func KeyNames(namespace, key string, t store.Token) []string {
	s := keyspace{namespace}
	n := s.names(key)
	var all []string
	for _, k := range []*keyArg{&n.entry, &n.lease, &n.tries, &n.pause, &n.failures, n.failed(t), &n.wake} {
		all = append(all, string(*k))
	}
	return append(all, s.tag(key))
}

// Slip makes the machine's clocks part: the monotonic clock seems to have stood still for
// so long, or, if d is negative, the wall clock to have been set forward.
func Slip(s *Store, d time.Duration) {
	for _, n := range s.topo.all() {
		r := *n.clock.last.Load()
		if d > 0 {
			r.sent, r.next = r.sent.Add(d), r.next.Add(d)
		} else {
			r.wall = r.wall.Add(d)
		}
		n.clock.last.Store(&r)
	}
}

// Waiting is the number of reads and of scripts that wait to be sent, on all nodes.
func Waiting(s *Store) (reads, scripts int) {
	count := func(q *queue) int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.waiting)
	}
	for _, n := range s.topo.all() {
		reads += count(n.reads) + count(n.reads.large)
		scripts += count(n.scripts) + count(n.scripts.large)
	}
	return reads, scripts
}

// RingLate has an alarm notice the end of its batch's time so late, twice, and returns how
// often it gave the batch more time.
func RingLate(s *Store, late time.Duration) (extended int) {
	a := newAlarm(s.topo.all()[0].reads)
	a.set(&batch{rs: []*request{{values: s.ctx, done: make(chan struct{})}}, weight: 1})
	defer a.discard()
	for a.timer.Stop() {
		a.mu.Lock()
		a.end = time.Now().Add(-late)
		a.mu.Unlock()
		if a.ring(); a.Err() == nil {
			extended++
		}
	}
	return extended
}

// Parked is the number of senders that wait for work, in the queue of reads.
func Parked(s *Store) int {
	q := s.topo.all()[0].reads
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.parked
}

// BreakerOpen reports whether calls are kept from the store's first node.
func BreakerOpen(s *Store) bool { return !s.topo.all()[0].breaker.allow() }

// ParseLockReplies reads a reply as that of each script of locks.
func ParseLockReplies(reply any) {
	_, _ = parseLock(reply)
	_, _ = parseLockState(reply)
}

// Bounded runs fn as a call of the client.
func Bounded(s *Store, fn func(context.Context) error) error {
	return s.bounded(context.Background(), "test", fn)
}

// EndsQueued reports whether a read that is queued ends if the batch before it times out
// while the store is being closed. The store is closed.
func EndsQueued(s *Store) bool {
	q, b := s.topo.all()[0].reads, &batch{}
	r := &request{weight: 1, since: time.Now(), done: make(chan struct{}, 1)}
	q.waiting, q.load, q.flying = []*request{r}, load{}.plus(r), []*batch{b}
	q.giveUp(b, errTimeout)
	return r.state.Load() == withdrawn
}

// RehomeAndDrop looks again for the node of each watch, and for masters that were demoted: at
// the same time, and so often.
func RehomeAndDrop(s *Store, times int) {
	t := s.topo.(*cluster)
	var done sync.WaitGroup
	for _, f := range []func(){func() { s.rehome(t.all()[0].sub) }, func() { t.dropDemoted(nil) }} {
		done.Go(func() {
			for range times {
				f()
			}
		})
	}
	done.Wait()
}
