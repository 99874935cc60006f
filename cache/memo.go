package cache

import "sync"

// memo keeps the decoded form of a reading for the first guard that decodes it,
// so that its callers who share the reading share the work.
type memo struct {
	once  sync.Once
	owner any
	value any
	err   error
}

// Memo returns what decode returns for this reading. For the owner that asks
// first, decode is called once: its later and concurrent calls get the same
// result. For any other owner, decode is called each time: two guards on one
// store may share a reading and decode it into different types. Memo is safe
// for concurrent use. The owner must be comparable.
func (r *Reading) Memo(owner any, decode func(*Reading) (any, error)) (any, error) {
	r.memo.once.Do(func() { r.memo.owner = owner; r.memo.value, r.memo.err = decode(r) })
	if r.memo.owner != owner {
		return decode(r)
	}
	return r.memo.value, r.memo.err
}
