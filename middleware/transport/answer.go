package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// status completes a member of Cache-Status.
func (x *exchange) status(s rfc9111.Status) rfc9111.Status {
	s.Cache = x.t.opts.CacheStatus
	return s
}

// hit is the status of an answer from a page, which this exchange may have waited for.
func (x *exchange) hit(f *found) rfc9111.Status {
	if f.source == guard.Waited || f.source == guard.UnguardedFetch {
		return x.forwarded(f)
	}
	return x.status(rfc9111.Status{Hit: true, TTL: f.left()})
}

// forwarded is the status of an answer that a call was made for, by this exchange or by
// another one.
func (x *exchange) forwarded(f *found) rfc9111.Status {
	s := rfc9111.Status{Fwd: x.fwd, Stored: f.stored, TTL: f.left(), Collapsed: f.source == guard.Waited}
	if x.by304 != nil && f.source == guard.Fetched {
		s.FwdStatus = http.StatusNotModified
	}
	return x.status(s)
}

// left is the rest of the page's lifetime.
func (f *found) left() rfc9111.Seconds {
	return rfc9111.Seconds{Set: true, Value: f.page.Freshness.Left(f.age)}
}

// answer makes the client's response of a page.
func (x *exchange) answer(f *found, s rfc9111.Status) *http.Response {
	p := f.page
	h := make(http.Header, len(p.Header)+2)
	httpcache.CopyHeader(h, p.Header)
	if s.Hit || f.age >= time.Second {
		rfc9111.SetAge(h, f.age)
	}
	x.addCookies(h, s)
	s.AppendTo(h)
	if rfc9111.AnswerFor(x.req, p.Stored()) == rfc9111.AnswerNotModified {
		return x.response(http.StatusNotModified, rfc9111.NotModifiedHeader(h), nil)
	}
	resp := x.response(p.Status, h, p.Body)
	resp.Trailer = p.Trailer.Clone()
	return resp
}

// addCookies adds the cookies of the 304 that answered the exchange's call. They are for the
// client of the call, and in no page.
func (x *exchange) addCookies(h http.Header, s rfc9111.Status) {
	if s.FwdStatus != http.StatusNotModified {
		return
	}
	for _, name := range setCookies {
		if lines := x.by304[name]; len(lines) > 0 {
			h[name] = slices.Clone(lines)
		}
	}
}

// response makes a response with a body that does not change.
func (x *exchange) response(status int, h http.Header, body []byte) *http.Response {
	resp := &http.Response{
		Status: fmt.Sprintf("%03d %s", status, http.StatusText(status)), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: http.NoBody, ContentLength: int64(len(body)), Request: x.req,
	}
	switch {
	case x.method == http.MethodHead:
		resp.ContentLength = -1
		if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
			resp.ContentLength = n
		}
	case len(body) > 0:
		resp.Body = &memoryBody{Reader: bytes.NewReader(body)}
	}
	return resp
}

// A memoryBody can't be read after it was closed, like any other response body.
type memoryBody struct {
	*bytes.Reader
	closed bool
}

// Read implements [io.Reader].
func (b *memoryBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.Read(p)
}

// WriteTo implements [io.WriterTo].
func (b *memoryBody) WriteTo(w io.Writer) (int64, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.WriteTo(w)
}

// Close implements [io.Closer].
func (b *memoryBody) Close() error {
	b.closed = true
	return nil
}

// stream makes the client's response of one that is on its way.
func (x *exchange) stream(op *opening) *http.Response {
	from := &op.from
	h := from.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	x.status(rfc9111.Status{Fwd: op.fwd, Stored: op.stored, Detail: op.detail}).AppendTo(h)
	if op.stored {
		stored := &rfc9111.Response{Status: from.StatusCode, Header: from.Header, RequestTime: op.began, ResponseTime: op.arrived}
		if rfc9111.AnswerFor(x.req, stored) == rfc9111.AnswerNotModified {
			_ = op.body.Close()
			return x.response(http.StatusNotModified, rfc9111.NotModifiedHeader(h), nil)
		}
	}
	resp := new(http.Response)
	*resp = *from
	resp.Header, resp.Body, resp.Request = h, op.body, x.req
	x.watch()
	x.streams, op.body.release = true, x.release
	op.body.resp = resp
	return resp
}

// rejected makes a response of a rejection that this exchange waited for, or was told of.
func (x *exchange) rejected(err error, status int) *http.Response {
	s := x.status(rfc9111.Status{Fwd: x.fwd, FwdStatus: status, Collapsed: true})
	pause, paused := guard.PauseOf(err)
	if paused {
		s.Detail = "paused"
	}
	var own *rejection
	if errors.As(err, &own) && own.header != nil && !own.private && own.variant == rfc9111.VariantKey(own.names, x.varying()) {
		h := own.header.Clone()
		s.AppendTo(h)
		resp := x.response(status, h, own.body)
		resp.Trailer = own.trailer.Clone()
		return resp
	}
	return x.failure(status, s, pause, fmt.Sprintf("the upstream answered %d %s to another request for this\n", status, http.StatusText(status)))
}

// gatewayTimeout is for only-if-cached (RFC 9111, 5.2.1.7).
func (x *exchange) gatewayTimeout() *http.Response {
	return x.failure(http.StatusGatewayTimeout, x.status(rfc9111.Status{Detail: "only-if-cached"}), 0, "")
}

// failure makes a response of the transport's own.
func (x *exchange) failure(status int, s rfc9111.Status, after time.Duration, text string) *http.Response {
	h := http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}, "Content-Length": {strconv.Itoa(len(text))}}
	httpcache.SetFailure(h, after)
	s.AppendTo(h)
	return x.response(status, h, []byte(text))
}

// part makes a 206, or a 416, of a page.
func (x *exchange) part(f *found) *http.Response {
	w := &partWriter{header: http.Header{}}
	httpcache.CopyHeader(w.header, f.page.Header)
	delete(w.header, "Content-Length")
	rfc9111.SetAge(w.header, f.age)
	x.hit(f).AppendTo(w.header)
	status, _ := httpcache.ServeRanges(w, x.req, f.page.Body)
	return x.response(status, w.header, w.body.Bytes())
}

// A partWriter keeps a response in memory.
type partWriter struct {
	header http.Header
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (w *partWriter) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter].
func (w *partWriter) WriteHeader(int) {}

// Write implements [http.ResponseWriter].
func (w *partWriter) Write(p []byte) (int, error) { return w.body.Write(p) }
