package redistest

import (
	"io"
	"net"
	"sync"
)

// link is one client's connection through the proxy.
type link struct {
	proxy  *Proxy
	client net.Conn
	lossy  bool // something was swallowed; guarded by proxy.mu

	mu     sync.Mutex // guards the rest
	server net.Conn   // nil until connected
	closed bool
}

// attach adds the server's side. It reports false if the link was closed
// meanwhile, having closed the server's side too.
func (l *link) attach(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = server.Close()
		return false
	}
	l.server = server
	return true
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}

// relay moves data one way until either side closes.
func (l *link) relay(to io.Writer, from io.Reader, isReply bool) {
	defer l.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		data := buf[:n]
		if !l.proxy.pass(l) {
			continue
		}
		if isReply {
			if most, ok := l.proxy.takeTruncation(); ok {
				_, _ = to.Write(data[:min(most, n)])
				return
			}
		}
		if _, err := to.Write(data); err != nil {
			return
		}
	}
}
