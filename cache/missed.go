package cache

import "time"

// missPause is how long a miss is remembered, at least. A read of the same name waits
// for the end of a pause, together with all others of that kind.
const missPause = 2 * time.Millisecond

// misses are the names under which a node's reads have just found nothing. All fields
// are guarded by lane.mu.
//
// The caller that was told of a miss is about to fetch the key, or to wait for its fetch.
// Other callers of the key that come meanwhile gain nothing from a read of their own, and
// without a pause the commands for a cold key would grow with its callers. Their reads
// are collected in a batch of their own, so that they hold up no read of another name.
// The batch joins the queue at the next tick.
type misses struct {
	recent  map[string]struct{} // noted since the last tick
	older   map[string]struct{} // noted between the two ticks before
	waiting *batch              // of reads of these names; nil: none
	ticks   *time.Timer         // nil: none was ever needed
	ticking bool
}

func newMisses() misses {
	return misses{recent: map[string]struct{}{}, older: map[string]struct{}{}}
}

func (m *misses) has(name string) bool {
	if len(m.recent)+len(m.older) == 0 {
		return false
	}
	_, recent := m.recent[name]
	_, older := m.older[name]
	return recent || older
}

func (m *misses) forget(name string) {
	if len(m.recent)+len(m.older) > 0 {
		delete(m.recent, name)
		delete(m.older, name)
	}
}

// missed remembers a name for one missPause at least and two at most. b.mu is held.
func (b *batcher) missed(name string) {
	b.misses.recent[name] = struct{}{}
	if b.misses.ticking {
		return
	}
	b.misses.ticking = true
	if b.misses.ticks == nil {
		b.misses.ticks = time.AfterFunc(missPause, b.tick)
	} else {
		b.misses.ticks.Reset(missPause)
	}
}

// tick queues the reads that wait, and forgets the older misses. The timer stops when no
// miss is left.
func (b *batcher) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queueWaiting()
	m := &b.misses
	m.recent, m.older = m.older, m.recent
	clear(m.recent)
	if m.ticking = len(m.older) > 0; m.ticking {
		m.ticks.Reset(missPause)
	}
}

// waitingFor is the batch in which a read of the name waits for the next tick, or nil if
// the name was not just missed. b.mu is held.
func (b *batcher) waitingFor(name string) *batch {
	m := &b.misses
	if m.waiting != nil && m.waiting.entries.has(name) {
		return m.waiting
	}
	if !m.has(name) {
		return nil
	}
	if m.waiting != nil && m.waiting.full() {
		b.queueWaiting()
	}
	if m.waiting == nil {
		m.waiting = b.open()
	}
	return m.waiting
}

// queueWaiting puts the batch that waits at the end of the queue. b.mu is held.
func (b *batcher) queueWaiting() {
	bt := b.misses.waiting
	if bt == nil {
		return
	}
	b.misses.waiting = nil
	if n := len(b.queue); n > 0 {
		b.close(b.queue[n-1])
	}
	b.queue = append(b.queue, bt)
	b.start()
}

// stored ends the pause of a miss: this process has stored an entry under the name, or
// has been told that there is one.
func (b *batcher) stored(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.misses.forget(name)
}
