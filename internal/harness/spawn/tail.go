package spawn

import "sync"

// A tail keeps the end of its input.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 64 << 10 // a dump of many goroutines

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
