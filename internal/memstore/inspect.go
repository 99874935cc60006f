package memstore

import (
	"context"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// Inspect implements [store.Inspector].
func (m *Store) Inspect(ctx context.Context, key string) (store.KeyState, error) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.readyLocked(ctx); err != nil {
		return store.KeyState{}, err
	}
	now := time.Now()
	k := d.find(key, now)
	if k == nil {
		return store.KeyState{}, nil
	}
	s := store.KeyState{Attempts: len(k.tries)}
	if k.lease != nil {
		s.Holder, s.Lease = k.lease.lease.Token, k.lease.left(now)
	}
	if !k.pauseEnds.IsZero() {
		s.Pause = k.pauseEnds.Sub(now)
	}
	if s.Attempts > 0 {
		s.Remembered = k.quarantineLeft(now)
	}
	return s, nil
}

var _ store.Inspector = (*Store)(nil)
