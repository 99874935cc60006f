package spawn

import (
	"encoding/json"
	"io"
	"sync"
)

// A teller writes to the process at the other end of a pipe. Its methods may be
// called from any goroutine. They return when the other can read the
// message, whatever becomes of this process. If the other is gone, they do
// nothing: a caller that waits for an answer learns of that.
type teller struct {
	mu  sync.Mutex
	out io.WriteCloser
}

// Tell writes v as a line of JSON. It panics if v can't be one.
func (t *teller) Tell(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	t.TellRaw(append(text, '\n'))
}

// TellRaw writes b as it is.
func (t *teller) TellRaw(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = t.out.Write(b)
}
