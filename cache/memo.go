package cache

import "sync"

// memo keeps one decoded form of a reading, so that callers who share the
// reading share the work of decoding it.
type memo struct {
	once  sync.Once
	value any
	err   error
}

// Memo returns what decode returned the first time it was called for this
// reading. It is safe for concurrent use; later callers wait for the first.
func (r *Reading) Memo(decode func(*Reading) (any, error)) (any, error) {
	r.memo.once.Do(func() { r.memo.value, r.memo.err = decode(r) })
	return r.memo.value, r.memo.err
}
