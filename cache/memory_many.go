package cache

import "context"

// ReadMany implements [Store].
func (m *Memory) ReadMany(ctx context.Context, prefix string, keys []string, each func(i int, r *Reading, err error)) {
	for i, key := range keys {
		r, err := m.Read(ctx, prefix+key)
		each(i, r, err)
	}
}

// AcquireMany implements [Store].
func (m *Memory) AcquireMany(ctx context.Context, requests []Request) []Acquired {
	all := make([]Acquired, len(requests))
	for i, r := range requests {
		all[i].Answer, all[i].Err = m.Acquire(ctx, r.Key, r.Ask)
	}
	return all
}

// ReturnMany implements [Store].
func (m *Memory) ReturnMany(ctx context.Context, returns []Return) []Returned {
	all := make([]Returned, len(returns))
	for i, r := range returns {
		switch {
		case r.Entry != nil:
			all[i].OK, all[i].Err = m.Fill(ctx, r.Lease, r.Entry)
		case r.Failed:
			all[i].OK, all[i].Err = m.fail(ctx, r.Lease, r.Failure, r.Pause, r.Declined)
		default:
			all[i].Err = m.Release(ctx, r.Lease)
			all[i].OK = all[i].Err == nil
		}
	}
	return all
}
