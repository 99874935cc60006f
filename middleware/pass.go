package middleware

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A passWriter lets a response through to its own client, and learns of its
// header and length.
type passWriter struct {
	http.ResponseWriter
	asked    *http.Request                   // as it was before the handler had it
	onHeader func(status int, h http.Header) // before the header is written, once
	status   int
	header   http.Header // as it was then
	n        int64
	returned bool
	hijacked bool
}

// pass runs the handler for this client alone, as if there were no middleware but
// for Cache-Status.
func (c *call) pass(w http.ResponseWriter, fwd rfc9111.Fwd, why string) *passWriter {
	r := c.asked.Request
	pw := &passWriter{ResponseWriter: w, asked: r.Clone(r.Context())}
	pw.onHeader = func(status int, h http.Header) {
		c.m.addVia(h, r.ProtoMajor, r.ProtoMinor)
		c.status(h, rfc9111.Status{Fwd: fwd, Detail: why})
	}
	defer c.passed(pw)
	pw.run(c.next, c.m.withVia(r))
	return pw
}

// passed keeps for the event what became of it.
func (c *call) passed(w *passWriter) {
	c.event.Status, c.event.Bytes = w.status, w.n
	if !w.returned {
		c.event.Err = errNotWhole // the handler panicked
	}
}

func (w *passWriter) run(next http.Handler, r *http.Request) {
	next.ServeHTTP(w, r)
	w.returned = true
	if w.status == 0 && !w.hijacked {
		w.commit(http.StatusOK)
	}
}

func (w *passWriter) commit(status int) {
	w.status = status
	w.header = canonical(w.Header())
	w.onHeader(status, w.Header())
}

// WriteHeader implements [http.ResponseWriter].
func (w *passWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.commit(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *passWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.commit(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}

// ReadFrom implements [io.ReaderFrom], for handlers that send files.
func (w *passWriter) ReadFrom(from io.Reader) (int64, error) {
	if w.status == 0 {
		w.commit(http.StatusOK)
	}
	n, err := io.Copy(w.ResponseWriter, from)
	w.n += n
	return n, err
}

// Flush implements [http.Flusher].
func (w *passWriter) Flush() { _ = w.FlushError() }

// FlushError is what [http.ResponseController] calls.
func (w *passWriter) FlushError() error {
	if w.status == 0 {
		w.commit(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements [http.Hijacker].
func (w *passWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = w.hijacked || err == nil
	return conn, rw, err
}

// Unwrap is for [http.ResponseController].
func (w *passWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// withVia is a request that goes on to the handler as it is, but for this hop.
func (m *Middleware) withVia(r *http.Request) *http.Request {
	if m.opts.Via == "" {
		return r
	}
	r2 := *r
	r2.Header = r.Header.Clone()
	m.addVia(r2.Header, r.ProtoMajor, r.ProtoMinor)
	return &r2
}

// couldBeShared reports whether a response that was one client's alone, as its
// page's requests run side by side, is one that others may have.
func (w *passWriter) couldBeShared(c *call) bool {
	length := w.header.Get("Content-Length")
	if !w.returned || w.hijacked || w.n > int64(c.m.opts.MaxBody) || length != "" && length != strconv.FormatInt(w.n, 10) {
		return false
	}
	o := c.m.rfc(c.asked.terms, w.status)
	d := rfc9111.Store(w.asked, &rfc9111.Response{Status: w.status, Header: w.header}, o)
	return c.withheld(&d, c.m.tagsOf(w.asked, w.header)) == ""
}
