package cache

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Die makes the store's process one that crashed: it gives nothing back, and its
// leases are no longer renewed.
func (m *Memory) Die() {
	d := m.data
	d.mu.Lock()
	now := time.Now()
	for _, l := range m.leases {
		if l.renewed.After(now) {
			l.renewed = now
		}
		l.stopTimer()
	}
	m.leave()
	d.mu.Unlock()
	m.timers.Wait()
}

// Plant stores foreign bytes under a key, without an expiry.
func (m *Memory) Plant(key string, b []byte) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	d.put(d.make(key, time.Now()), append([]byte{}, b...), time.Time{})
}

// Size is how many keys something is kept of, and what the entries cost.
func (m *Memory) Size() (keys int, bytes int64) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ring), d.bytes
}

// ForgetTag, RewindTags and ForgetClock lose what is known of tags.
func (m *Memory) ForgetTag(tag string) {
	m.data.mu.Lock()
	defer m.data.mu.Unlock()
	delete(m.data.tags.records, tag)
}

func (m *Memory) RewindTags(n uint64) {
	m.data.mu.Lock()
	defer m.data.mu.Unlock()
	m.data.tags.now.N = n
}

func (m *Memory) ForgetClock() {
	m.data.mu.Lock()
	defer m.data.mu.Unlock()
	m.data.tags.now, m.data.tags.changed = newMemoryTags().now, [buckets]uint64{}
}

// TagNames are the names of the clock of tags and of a tag's record.
func TagNames(namespace, tag string) (clock, record string, err error) {
	s, err := newKeyspace(namespace)
	return s.clock(), s.tag(tag), err
}

// KeyNames are the names of keys and channels for a key.
func KeyNames(namespace, key string, t Token) ([]string, error) {
	s, err := newKeyspace(namespace)
	if err != nil {
		return nil, err
	}
	n := s.names(key)
	return []string{n.entry, n.lease, n.tries, n.pause, n.failures, n.failed(t), n.wake, s.tag(key)}, nil
}

// QueuedReads is how many names wait to be read from a single node.
func QueuedReads(s *Redis) int { return queued(s.topo.all()[0].reads.lane, (*batch).size) }

// QueuedOrders is how many scripts wait to be sent to one.
func QueuedOrders(s *Redis) int {
	return queued(s.topo.all()[0].orders, func(os *orders) int { return len(os.all) })
}

func queued[B laden](l *lane[B], size func(B) int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, bt := range l.queue {
		n += size(bt)
	}
	return n
}

// FailuresWhenSettled are those that the breaker has counted by the time that the
// callers of a batch learn that it was given up, or that it failed.
func FailuresWhenSettled(s *Redis, givenUp bool) int32 {
	n := s.topo.all()[0]
	bt := &failing{load: newLoad(), b: n.breaker, givenUp: givenUp}
	l := newLane(s, n, func() *failing { return bt }, func(*failing, int) bool { return false })
	l.join(l.next, func(*failing) {})
	<-bt.done
	return bt.failures
}

// ParksBesideWoken reports whether a sender waits for a batch beside as many as may,
// who have been woken and haven't noticed.
func ParksBesideWoken(s *Redis) bool {
	n := s.topo.all()[0]
	l := newLane(s, n, func() *failing { return nil }, nil)
	for range maxParked {
		l.wake <- struct{}{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return newSender(l).park()
}

// RingLate has an alarm notice the end of its batch's time that late, twice, and
// returns how often it gave the batch more.
func RingLate(s *Redis, late time.Duration) (extended int) {
	bt := &failing{load: newLoad()}
	l := &lane[*failing]{s: s, n: s.topo.all()[0], under: []*failing{bt}}
	bt.b = l.n.breaker
	a := newSender(l).set(bt, l.n.breaker.sent())
	defer a.unhook()
	for a.timer.Stop() {
		a.mu.Lock()
		a.at = time.Now().Add(-late)
		a.mu.Unlock()
		if a.ring(); a.Err() == nil {
			extended++
		}
	}
	return extended
}

// A failing batch is not answered.
type failing struct {
	load
	b        *breaker
	givenUp  bool
	failures int32
}

func (f *failing) full() bool    { return true }
func (f *failing) keys() int     { return 1 }
func (f *failing) crowded() bool { return false }
func (f *failing) carriedOut()   {}

func (f *failing) carryOut(context.Context, redis.Pipeliner) error {
	if f.givenUp {
		<-f.done
	}
	return errTimeout
}

func (f *failing) settle(err error) {
	f.failures = f.b.failures.Load()
	f.load.settle(err)
}

// LateReadings are what a read and an acquire would take the entry for if their
// answers had been noticed so late.
func LateReadings(ctx context.Context, s *Redis, key string, late time.Duration) (read, acquired *Reading, _ error) {
	reading := func(late time.Duration) (*Reading, error) {
		q := &query{s: s, names: []string{s.keys.entry(key)}}
		if err := q.send(ctx, s.client.Pipeline()); err != nil {
			return nil, err
		}
		q.sent = q.sent.Add(-late)
		q.settle()
		r := q.result(0)
		return r.reading, r.err
	}
	read, err := reading(late)
	if err != nil {
		return nil, nil, err
	}
	onTime, err := reading(0)
	if err != nil {
		return nil, nil, err
	}
	sent := time.Now().Add(-late)
	answer, err := s.entered(s.minter.Token(), key, &Ask{}, sent, Answer{Verdict: HasEntry, Reading: onTime}, nil)
	return read, answer.Reading, err
}

// SlipClock makes this process's monotonic clock appear to have stood still.
func SlipClock(s *Redis, d time.Duration) {
	s.ages.mu.Lock()
	defer s.ages.mu.Unlock()
	s.ages.wall = s.ages.wall.Add(-d)
}

const (
	OrderSenders = orderSenders
	AgesKept     = ageSets * ageWays
)
