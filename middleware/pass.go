package middleware

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A passWriter passes a response on to its client, and notes its header and length.
type passWriter struct {
	http.ResponseWriter
	asked    *http.Request                   // a copy from before the handler had it
	onHeader func(status int, h http.Header) // before the header is written, once
	status   int
	header   http.Header // at that time
	posted   *posted     // the response may be stored for GETs; nil: it may not
	n        int64
	returned bool
	hijacked bool
}

// pass runs the handler for this client alone, as if there were no middleware but
// for Cache-Status.
func (a *reply) pass(fwd rfc9111.Fwd, why string) *passWriter {
	r := a.asked.Request
	pw := &passWriter{ResponseWriter: a.w, asked: r.Clone(r.Context())}
	pw.onHeader = func(status int, h http.Header) {
		a.m.site.addVia(h, r.ProtoMajor, r.ProtoMinor)
		a.status(h, rfc9111.Status{Fwd: fwd, Detail: why})
	}
	defer a.passed(pw)
	pw.run(a.next, a.m.site.withVia(r))
	return pw
}

// otherMethod passes on a request that is neither GET nor HEAD. If its method is unsafe and
// it succeeds, the pages that it changed are deleted before its client gets the header (RFC
// 9111, 4.4).
func (a *reply) otherMethod() {
	r := a.asked.Request
	received := asReceived(r) // a copy: the handler may rewrite the request
	pw := &passWriter{ResponseWriter: a.w, posted: a.m.post(received)}
	pw.onHeader = func(status int, h http.Header) {
		a.m.site.addVia(h, r.ProtoMajor, r.ProtoMinor)
		plain := httpcache.CanonicalHeader(h)
		err := a.m.invalidate(received, status, plain, pw.posted.key())
		if err != nil {
			a.event.Err = err
		}
		a.status(h, rfc9111.Status{Fwd: rfc9111.FwdMethod, Stored: err == nil && pw.posted.decide(status, plain)})
	}
	defer a.passed(pw)
	defer pw.posted.end(pw)
	pw.run(a.next, a.m.site.withVia(r))
}

// asReceived returns a request with a URL that has the prefix of a mount, and no scheme and
// host: keys are made of those of the connection and of Host.
func asReceived(r *http.Request) *http.Request {
	r2, u := *r, *r.URL
	r2.Header = r.Header.Clone()
	u.Scheme, u.Host = "", ""
	if path := pathOf(r); path != u.EscapedPath() {
		u.RawPath = path
		u.Path, _ = url.PathUnescape(path) // it was parsed before
	}
	r2.URL = &u
	return &r2
}

// passed notes the response for the event.
func (a *reply) passed(w *passWriter) {
	a.event.Status, a.event.Bytes = w.status, w.n
	if !w.returned {
		a.event.Err = httpcache.ErrNotWhole // the handler panicked
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
	w.header = httpcache.CanonicalHeader(w.Header())
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
	w.posted.add(p[:n])
	return n, err
}

// ReadFrom implements [io.ReaderFrom], for handlers that send files.
func (w *passWriter) ReadFrom(from io.Reader) (int64, error) {
	if w.status == 0 {
		w.commit(http.StatusOK)
	}
	if w.posted.wanted() {
		return io.Copy(struct{ io.Writer }{w}, from)
	}
	n, err := io.Copy(w.ResponseWriter, from)
	w.n += n
	return n, err
}

// Flush implements [http.Flusher].
func (w *passWriter) Flush() { _ = w.FlushError() }

// FlushError is called by [http.ResponseController].
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

// couldBeShared reports whether other requests could have had a response that was passed
// to one client as its page's requests run side by side.
func (w *passWriter) couldBeShared(a *reply) bool {
	length := w.header.Get("Content-Length")
	if !w.returned || w.hijacked || w.n > int64(a.m.opts.MaxBody) || length != "" && length != strconv.FormatInt(w.n, 10) {
		return false
	}
	o := a.m.site.rfc(a.asked.terms, w.status)
	d := rfc9111.Store(w.asked, &rfc9111.Response{Status: w.status, Header: w.header}, o)
	return a.asked.withheld(&d, a.m.tags.fit(a.m.tags.of(w.asked, w.header))) == ""
}
