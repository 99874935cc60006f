package middleware

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
)

// kept are the pages that this process has stored: see Options.MaxPages. A nil kept has no
// bound.
type kept struct {
	mu   sync.Mutex
	keys *lru.LRU[string, struct{}] // of pages; a page's variants count with it
	over []string                   // that have lost their places
}

func newKept(most int) *kept {
	if most <= 0 {
		return nil
	}
	k := &kept{}
	k.keys, _ = lru.NewLRU(most, func(key string, _ struct{}) { k.over = append(k.over, key) }) // an error means a size below 1
	return k
}

// use notes that a page was served.
func (k *kept) use(key string) {
	if k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.keys.Get(key)
	}
}

// add notes that a page is stored, and returns the pages to be deleted in its place.
func (k *kept) add(key string) []string {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = nil
	k.keys.Add(key, struct{}{})
	return k.over
}
