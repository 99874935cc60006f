package lock_test

import (
	"testing"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/lock"
)

// forceUnlock ends the lease of a job in the store, as an operator could.
func forceUnlock(t *testing.T, s cache.Store, id lock.ID) {
	t.Helper()
	op := store.LockOp{Kind: store.ReleaseLock, Key: store.LockMark + "w:jobs:job", ID: store.Token(id), Places: 1, Keep: 1e12}
	if a, err := s.Unwrap().(store.Locks).Lock(t.Context(), &op); err != nil || !a.OK {
		t.Fatalf("releasing %v: %+v, %v", id, a, err)
	}
}
