package fleet

import (
	"strings"
	"sync"
)

// firstWords keep the beginning of a dying child's output, where a panic has its
// reason.
type firstWords struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *firstWords) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := 1000 - t.text.Len(); room > 0 {
		t.text.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (t *firstWords) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
