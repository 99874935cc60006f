package redistest

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// memPipe returns the two ends of an in-memory connection. Writes never wait for a
// reader.
//
// net.Pipe, which miniredis' own Dial uses, has no buffer: each write waits for
// the peer's read. A Redis client that sends a pipeline larger than the
// server's read buffer and reads only when all is sent then waits for the
// server, which waits for the client to take its first reply. Likewise a
// publisher waits for a subscriber that is not reading. A TCP connection has
// kernel buffers in between, and so does this one, without a limit.
//
// All waiting is on channels made by the caller's goroutine and on time.Timers,
// which a testing/synctest bubble understands.
func memPipe() (client, server net.Conn) {
	toServer, toClient := newMemStream(), newMemStream()
	return &memConn{in: toClient, out: toServer}, &memConn{in: toServer, out: toClient}
}

// memConn is one end of a memPipe.
type memConn struct {
	in, out *memStream
}

func (c *memConn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *memConn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close ends both directions. As with TCP, the peer still reads the bytes
// written before.
func (c *memConn) Close() error {
	c.in.closeRead()
	c.out.closeWrite()
	return nil
}

func (c *memConn) LocalAddr() net.Addr  { return memAddr{} }
func (c *memConn) RemoteAddr() net.Addr { return memAddr{} }

func (c *memConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *memConn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(t)
	return nil
}

// SetWriteDeadline does nothing: a write never waits.
func (c *memConn) SetWriteDeadline(time.Time) error { return nil }

type memAddr struct{}

func (memAddr) Network() string { return "memory" }
func (memAddr) String() string  { return "memory" }

// memStream is one direction of a memPipe.
type memStream struct {
	mu       sync.Mutex // guards the rest; never held while waiting
	buf      bytes.Buffer
	eof      bool          // the writer has closed
	gone     bool          // the reader has closed
	deadline time.Time     // of reads; zero if none
	changed  chan struct{} // closed, and replaced, upon any change above
}

func newMemStream() *memStream { return &memStream{changed: make(chan struct{})} }

func (s *memStream) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *memStream) closeRead()              { s.update(func() { s.gone = true }) }
func (s *memStream) closeWrite()             { s.update(func() { s.eof = true }) }
func (s *memStream) setDeadline(t time.Time) { s.update(func() { s.deadline = t }) }

func (s *memStream) write(p []byte) (n int, err error) {
	s.update(func() {
		if s.eof || s.gone {
			err = io.ErrClosedPipe
			return
		}
		n, err = s.buf.Write(p)
	})
	return n, err
}

func (s *memStream) read(p []byte) (int, error) {
	for {
		wait, n, err := s.tryRead(p)
		if wait == nil {
			return n, err
		}
		wait()
	}
}

// tryRead reads the available bytes. If there is nothing yet it returns a function
// that waits for a change or for the deadline.
func (s *memStream) tryRead(p []byte) (wait func(), n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := !s.deadline.IsZero() && !time.Now().Before(s.deadline)
	switch {
	case s.gone:
		return nil, 0, io.ErrClosedPipe
	case late:
		return nil, 0, os.ErrDeadlineExceeded
	case s.buf.Len() > 0:
		n, err = s.buf.Read(p)
		return nil, n, err
	case s.eof:
		return nil, 0, io.EOF
	case len(p) == 0:
		return nil, 0, nil
	}
	changed, deadline := s.changed, s.deadline
	return func() { waitUntil(changed, deadline) }, 0, nil
}

// waitUntil waits for the channel to close or, if it is not zero, the deadline.
func waitUntil(changed <-chan struct{}, deadline time.Time) {
	if deadline.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}
