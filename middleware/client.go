package middleware

import (
	"net/http"
	"sync"

	"github.com/stampedeguard/stampede/internal/httpcache"
)

// A client is the connection of a run's client, as far as the handler may use it. A nil
// client is that of a refresh: there is none.
type client struct {
	w http.ResponseWriter

	mu    sync.Mutex // also held while the handler uses the connection
	state clientState
}

type clientState byte

const (
	waits   clientState = iota // for the run's header
	streams                    // it is being sent the run's response
	gone                       // it has left, or is answered from elsewhere
)

// become changes the client's state. A client that has gone stays gone.
func (c *client) become(s clientState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = max(c.state, s)
}

func (c *client) leave() { c.become(gone) }

// inform passes an informational response on to the client, if it waits.
func (c *client) inform(status int, h http.Header) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != waits {
		return
	}
	own := c.w.Header().Clone()
	httpcache.CopyHeader(c.w.Header(), h)
	c.w.WriteHeader(status)
	httpcache.ReplaceHeader(c.w.Header(), own)
}

// control lets the handler change the client's connection, unless the client has left.
func (c *client) control(do func(*http.ResponseController) error) error {
	if c == nil {
		return http.ErrNotSupported
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == gone {
		return http.ErrNotSupported
	}
	return do(http.NewResponseController(c.w))
}
