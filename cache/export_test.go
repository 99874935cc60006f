package cache

import "time"

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

// KeyNames are the names of keys and channels for a key.
func KeyNames(namespace, key string, t Token) ([]string, error) {
	s, err := newKeyspace(namespace)
	if err != nil {
		return nil, err
	}
	n := s.names(key)
	return []string{n.entry, n.lease, n.tries, n.pause, n.failed(t), n.wake}, nil
}
