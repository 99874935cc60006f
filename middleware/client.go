package middleware

import (
	"net/http"
	"sync"

	"github.com/stampedeguard/stampede/internal/httpcache"
)

// A client is the connection of a run's client, as far as the handler may use it. A nil
// client is that of a refresh: there is none.
//
// The handler never writes to the connection: a client that does not read would hold up a
// run that others wait for. Informational responses are written by the request's goroutine,
// and are dropped if it is busy with earlier ones.
type client struct {
	w     http.ResponseWriter
	hints chan hint // for the request's goroutine while it waits for the run

	mu   sync.Mutex // held while the handler uses the connection
	gone bool       // the client has left, or is answered from elsewhere

	writing sync.Mutex // held while an informational response is written
}

// A hint is an informational response.
type hint struct {
	status int
	header http.Header
}

func newClient(w http.ResponseWriter) *client {
	return &client{w: w, hints: make(chan hint, maxHints)}
}

// maxHints bounds the informational responses that wait for the client.
const maxHints = 8

func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
}

// inform passes an informational response on to the client, if it has taken the ones before.
func (c *client) inform(status int, h http.Header) {
	if c == nil {
		return
	}
	select {
	case c.hints <- hint{status, h.Clone()}:
	default:
	}
}

// write writes an informational response. The request's goroutine calls it.
func (c *client) write(i hint) {
	c.writing.Lock()
	defer c.writing.Unlock()
	own := c.w.Header().Clone()
	httpcache.CopyHeader(c.w.Header(), i.header)
	c.w.WriteHeader(i.status)
	httpcache.ReplaceHeader(c.w.Header(), own)
}

// flush writes the informational responses that came before the run's header.
func (c *client) flush() {
	for {
		select {
		case i := <-c.hints:
			c.write(i)
		default:
			return
		}
	}
}

// control lets the handler change the client's connection, unless the client has left or
// is being written to.
func (c *client) control(do func(*http.ResponseController) error) error {
	if c == nil || !c.writing.TryLock() {
		return http.ErrNotSupported
	}
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return http.ErrNotSupported
	}
	return do(http.NewResponseController(c.w))
}
