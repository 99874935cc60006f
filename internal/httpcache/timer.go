package httpcache

import (
	"sync/atomic"
	"time"
)

// AfterFunc calls do with v after d, unless it is stopped before. The runtime may keep a stopped
// timer until its time, and with it all that its function refers to: a page, say. This one lets
// go of v at once.
func AfterFunc[T any](d time.Duration, v *T, do func(*T)) (stop func()) {
	held := &atomic.Pointer[T]{}
	held.Store(v)
	t := time.AfterFunc(d, func() {
		if v := held.Swap(nil); v != nil {
			do(v)
		}
	})
	return func() {
		t.Stop()
		held.Store(nil)
	}
}
