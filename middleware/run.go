package middleware

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A run is one run of the handler that may answer several requests. The handler
// writes into it from a goroutine of its own; what it wrote is kept, up to
// MaxBody, for those who wait; and one client, that of the request which started
// the run, reads along at its own pace.
//
// A run that turns out to be for that client alone goes private: the handler is
// then held to the client's pace and context, as without a cache, and nothing is
// kept.
type run struct {
	m      *Middleware
	req    *http.Request // what the handler is given a copy of: what it does to that decides nothing
	call   *call         // whose client reads along
	cancel context.CancelCauseFunc
	timer  *time.Timer // FetchTimeout

	began      time.Time // before the handler was called
	staleAsked bool      // the request asks for a 304, for a stored response's sake

	handlers http.Header // what the handler sees; its own until it has ended

	committed chan struct{} // closed when the header is there, or the run has ended without
	over      chan struct{} // closed when the body is longer than MaxBody
	ended     chan struct{} // closed when the handler has returned
	wake      chan struct{} // for the client: there is more

	mu       sync.Mutex
	space    sync.Cond // for a handler that has to wait for its client
	status   int       // 0: no header yet
	header   http.Header
	headerAt time.Time
	expected int64 // Content-Length, -1 if there is none
	written  int64
	buf      []byte
	pos      int // of buf, how much the client has
	flushDue bool
	private  bool
	detached bool // no client reads along
	isOver   bool
	done     bool
	hijacked bool
	trailer  http.Header

	// What the handler ended with, if not by returning.
	panicked any
	stack    []byte
	aborted  bool
}

const (
	// window is how far a private run's handler may be ahead of its client.
	window = 64 << 10
	// wakeAt is from how much on the client is told of what isn't flushed.
	wakeAt = 4 << 10
)

var (
	errClientGone  = errors.New("middleware: the client has gone")
	errRunTimedOut = errors.New("middleware: the run took longer than FetchTimeout")
	errClosing     = errors.New("middleware: closed")
	errOver        = errors.New("middleware: the handler has returned") // but something that it started goes on
)

// start starts the handler. ctx has the values for its context, and nothing else
// of it is used. While the run is shared only FetchTimeout and Close end it.
func (c *call) start(ctx context.Context, nominated []string, stale *page) *run {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &run{
		m: c.m, call: c, cancel: cancel, began: time.Now(), handlers: http.Header{}, expected: -1,
		committed: make(chan struct{}), over: make(chan struct{}), ended: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	r.space.L = &r.mu
	r.req = c.asked.shared(ctx, nominated)
	if stale != nil {
		r.staleAsked = c.m.setConditions(r.req.Header, stale)
	}
	r.timer = time.AfterFunc(c.m.opts.FetchTimeout, r.timeUp)
	c.adopt(r)
	stop := context.AfterFunc(c.m.ctx, func() { cancel(errClosing) })
	c.m.runs.Add(1)
	go func() {
		defer c.m.runs.Done()
		defer cancel(nil)
		defer stop()
		defer r.timer.Stop()
		r.serve(c.next)
	}()
	return r
}

// serve calls the handler, whatever becomes of it.
func (r *run) serve(next http.Handler) {
	returned := false
	defer func() {
		p := recover()
		if !returned {
			r.mu.Lock()
			r.aborted, r.panicked = true, p // nil: it called runtime.Goexit
			if p != nil {
				r.stack = debug.Stack()
			}
			r.mu.Unlock()
		}
		r.end()
	}()
	next.ServeHTTP(r, r.req.Clone(r.req.Context()))
	returned = true
}

func (r *run) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.req.Context().Err() != nil {
		r.aborted = true // whatever it says: it was told to stop
	}
	if r.status == 0 && !r.aborted && !r.hijacked {
		r.commit(http.StatusOK)
	}
	if r.expected > r.written && bodyAllowed(r.status) {
		r.aborted = true
	}
	if !r.aborted && !r.hijacked {
		r.trailer = r.trailers()
	}
	r.done = true
	if r.status == 0 {
		close(r.committed)
	}
	close(r.ended)
	r.signal()
	r.space.Broadcast()
}

// Header implements [http.ResponseWriter].
func (r *run) Header() http.Header { return r.handlers }

// WriteHeader implements [http.ResponseWriter]. Informational responses go to the
// client at once.
func (r *run) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic("middleware: invalid WriteHeader code " + strconv.Itoa(status))
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		r.call.inform(r, status, r.handlers)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == 0 && !r.hijacked && !r.done {
		r.commit(status)
	}
}

// commit takes the header as it is now. r.mu is held.
func (r *run) commit(status int) {
	r.status, r.headerAt = status, time.Now()
	r.header = canonical(r.handlers)
	for name := range r.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			delete(r.header, name)
		}
	}
	if lines := r.header["Content-Length"]; len(lines) > 0 {
		n, err := strconv.ParseInt(lines[0], 10, 64)
		if len(lines) > 1 || err != nil || n < 0 {
			delete(r.header, "Content-Length") // as net/http does
		} else {
			r.expected = n
		}
	}
	close(r.committed)
}

// canonical is a header whose names are all spelled as the rules look for them. A
// handler that writes to the map by itself may spell them otherwise, and net/http
// sends that: a client takes set-cookie for Set-Cookie.
func canonical(h http.Header) http.Header {
	c := h.Clone()
	for name, values := range h {
		if name2 := http.CanonicalHeaderKey(name); name2 != name {
			delete(c, name)
			c[name2] = append(c[name2], values...)
		}
	}
	return c
}

// Write implements [http.ResponseWriter].
func (r *run) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.hijacked:
		return 0, http.ErrHijacked
	case r.done:
		return 0, errOver
	case r.status == 0:
		r.commit(http.StatusOK)
	}
	if !bodyAllowed(r.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if r.expected >= 0 && r.written+int64(len(p)) > r.expected {
		return 0, http.ErrContentLength
	}
	if !r.isOver && !r.private && len(r.buf)+len(p) > r.m.opts.MaxBody {
		r.isOver = true
		close(r.over)
	}
	for n := 0; ; {
		part := p[n:]
		if r.isOver || r.private {
			if r.detached {
				return n, errClientGone
			}
			room := window - (len(r.buf) - r.pos)
			if room <= 0 {
				r.signal()
				r.space.Wait()
				continue
			}
			part = part[:min(len(part), room)]
		}
		r.buf = append(r.buf, part...)
		r.written += int64(len(part))
		n += len(part)
		if len(r.buf)-r.pos >= wakeAt {
			r.signal()
		}
		if n == len(p) {
			return n, nil
		}
	}
}

// signal tells the client that there is more. r.mu is held.
func (r *run) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Flush implements [http.Flusher].
func (r *run) Flush() { _ = r.FlushError() }

// FlushError is what [http.ResponseController] calls.
func (r *run) FlushError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.hijacked:
		return http.ErrHijacked
	case r.done:
		return errOver
	case r.status == 0:
		r.commit(http.StatusOK)
	}
	r.flushDue = true
	r.signal()
	if r.detached && (r.private || r.isOver) {
		return errClientGone
	}
	return nil
}

// SetReadDeadline and SetWriteDeadline are the client's connection's: they are
// unknown to those who wait, and hold up nothing but that connection.
func (r *run) SetReadDeadline(t time.Time) error {
	return r.call.control(r, func(c *http.ResponseController) error { return c.SetReadDeadline(t) })
}

// SetWriteDeadline: see SetReadDeadline.
func (r *run) SetWriteDeadline(t time.Time) error {
	return r.call.control(r, func(c *http.ResponseController) error { return c.SetWriteDeadline(t) })
}

// EnableFullDuplex is what [http.ResponseController] calls: the run has no
// request body, so it is so.
func (r *run) EnableFullDuplex() error { return nil }

// Hijack implements [http.Hijacker]: the connection is that of the run's client,
// and the response nobody else's business.
func (r *run) Hijack() (conn net.Conn, rw *bufio.ReadWriter, err error) {
	err = r.call.control(r, func(c *http.ResponseController) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.status != 0 || r.hijacked || r.done {
			return errors.ErrUnsupported // the header may be on its way to others
		}
		if conn, rw, err = c.Hijack(); err != nil {
			return err
		}
		r.hijacked, r.status = true, http.StatusSwitchingProtocols
		close(r.committed)
		return nil
	})
	return conn, rw, err
}

// trailers are the fields that the handler set for after the body. r.mu is held.
func (r *run) trailers() http.Header {
	var t http.Header
	add := func(name string, values []string) {
		if t == nil {
			t = http.Header{}
		}
		t[http.CanonicalHeaderKey(name)] = append([]string(nil), values...)
	}
	for name := range namesIn(r.header["Trailer"]) {
		if values := r.handlers[name]; len(values) > 0 {
			add(name, values)
		}
	}
	for name, values := range r.handlers {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			add(name, values)
		}
	}
	return t
}

// goPrivate makes the run its client's alone. It answers whether there is a
// client; if there is none the run is cancelled.
func (r *run) goPrivate() {
	r.timer.Stop()
	r.mu.Lock()
	if r.done {
		r.mu.Unlock()
		return // and what it wrote may be stored already
	}
	r.private = true
	detached := r.detached
	r.space.Broadcast()
	r.mu.Unlock()
	if detached {
		r.cancel(errClientGone)
		return
	}
	context.AfterFunc(r.call.asked.Context(), func() { r.cancel(errClientGone) })
}

// timeUp ends what is shared of a run that takes too long.
func (r *run) timeUp() {
	r.mu.Lock()
	headless := r.status == 0
	r.mu.Unlock()
	if headless {
		r.cancel(errRunTimedOut)
		return
	}
	r.goPrivate()
}

// detach says that no client reads along any more.
func (r *run) detach() {
	r.mu.Lock()
	r.detached = true
	private := r.private || r.isOver
	r.space.Broadcast()
	r.mu.Unlock()
	if private {
		r.cancel(errClientGone)
	}
}

// whole is the body of a run that has ended, if it is whole and was recorded from
// its beginning.
func (r *run) whole() (body []byte, trailer http.Header, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.aborted && r.panicked != nil && r.panicked != http.ErrAbortHandler:
		return nil, nil, &panicError{r.panicked}
	case r.aborted, !r.done, r.hijacked, r.private, r.isOver:
		return nil, nil, errNotWhole
	}
	return r.buf[:len(r.buf):len(r.buf)], r.trailer, nil
}

// tooLarge reports whether the body is longer than is kept.
func (r *run) tooLarge() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isOver
}

// failure is why a run ended without a header.
func (r *run) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.panicked != nil && r.panicked != http.ErrAbortHandler {
		return &panicError{r.panicked}
	}
	return errNotWhole
}

// A panicError is the handler's panic, on its way to those who wait.
type panicError struct{ value any }

func (e *panicError) Error() string { return "middleware: the handler panicked" }

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
