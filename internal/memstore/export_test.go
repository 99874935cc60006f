package memstore

import (
	"bytes"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// Die ends the store's process as a crash would: it returns nothing, and its leases are no
// longer renewed.
func (m *Store) Die() {
	d := m.data
	d.mu.Lock()
	now := time.Now()
	for _, l := range m.leases {
		if l.renewed.After(now) {
			l.renewed = now
		}
		l.stopTimer()
	}
	m.leaveLocked()
	d.mu.Unlock()
	m.timers.Wait()
}

// Plant stores foreign bytes under a key, without an expiry.
func (m *Store) Plant(key string, b []byte) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	d.put(d.make(key, time.Now()), bytes.Clone(b), time.Time{})
}

// Size is the number of keys and the cost of their entries.
func (m *Store) Size() (keys int, bytes int64) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ring), d.bytes
}

// ForgetTag removes the record of a tag.
func (m *Store) ForgetTag(tag string) {
	m.data.mu.Lock()
	defer m.data.mu.Unlock()
	delete(m.data.tags.records, tag)
}

// RewindTags sets the clock of tags back.
func (m *Store) RewindTags(n uint64) {
	m.data.mu.Lock()
	defer m.data.mu.Unlock()
	m.data.tags.now.N = n
}

// ForgetClock replaces the clock of tags by a new one.
func (m *Store) ForgetClock() {
	m.data.mu.Lock()
	defer m.data.mu.Unlock()
	m.data.tags.now, m.data.tags.changed = newTags().now, [store.Buckets]uint64{}
}
