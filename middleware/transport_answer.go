package middleware

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
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// status completes a member of Cache-Status.
func (x *trExchange) status(s rfc9111.Status) rfc9111.Status {
	s.Cache = x.t.opts.CacheStatus
	return s
}

// hit is the status of what is answered from a page, which this exchange may have
// waited for.
func (x *trExchange) hit(found *trFound) rfc9111.Status {
	if found.source == guard.Waited || found.source == guard.UnguardedFetch {
		return x.forwarded(found)
	}
	return x.status(rfc9111.Status{Hit: true, TTL: rfc9111.Seconds{Set: true, Value: found.page.freshness.Left(found.age)}})
}

// forwarded is the status of what a call was made for, by this exchange or by
// another that it waited for.
func (x *trExchange) forwarded(found *trFound) rfc9111.Status {
	s := rfc9111.Status{Fwd: x.whyForwarded(), Stored: found.source != guard.UnguardedFetch}
	s.TTL = rfc9111.Seconds{Set: true, Value: found.page.freshness.Left(found.age)}
	s.Collapsed = found.source == guard.Waited
	if _, ok := x.validation(); ok && (found.source == guard.Fetched || found.source == guard.UnguardedFetch) {
		s.FwdStatus = http.StatusNotModified
	}
	return x.status(s)
}

// answer makes the client's response of a page.
func (x *trExchange) answer(p *page, age time.Duration, s rfc9111.Status) *http.Response {
	h := make(http.Header, len(p.header)+2)
	copyHeader(h, p.header)
	if s.Hit || age >= time.Second {
		rfc9111.SetAge(h, age)
	}
	if s.FwdStatus == http.StatusNotModified {
		// Its cookies are for the one who made the call, and in no page.
		by304, _ := x.validation()
		for _, name := range setCookies {
			if lines := by304[name]; len(lines) > 0 {
				h[name] = slices.Clone(lines)
			}
		}
	}
	s.AppendTo(h)
	stored := &rfc9111.Response{Status: p.status, Header: p.header}
	if rfc9111.AnswerFor(x.req, stored) == rfc9111.AnswerNotModified {
		return x.response(http.StatusNotModified, rfc9111.NotModifiedHeader(h), nil)
	}
	resp := x.response(p.status, h, p.body)
	resp.Trailer = p.trailer.Clone()
	return resp
}

// response has a body that nobody changes.
func (x *trExchange) response(status int, h http.Header, body []byte) *http.Response {
	resp := &http.Response{
		Status: statusLine(status), StatusCode: status,
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
		resp.Body = &trBytes{Reader: bytes.NewReader(body)}
	}
	return resp
}

func statusLine(status int) string { return fmt.Sprintf("%03d %s", status, http.StatusText(status)) }

// trBytes is a body that can't be read after it was closed, as any other.
type trBytes struct {
	*bytes.Reader
	closed bool
}

func (b *trBytes) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.Read(p)
}

// WriteTo implements io.WriterTo.
func (b *trBytes) WriteTo(w io.Writer) (int64, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.WriteTo(w)
}

// Close implements io.Closer.
func (b *trBytes) Close() error {
	b.closed = true
	return nil
}

// stream makes the client's response of one that is on its way.
func (x *trExchange) stream(op *trOpening) *http.Response {
	from := &op.from
	s := x.status(rfc9111.Status{Fwd: op.fwd, Stored: op.stored, Detail: op.detail})
	h := from.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	s.AppendTo(h)
	if from.StatusCode == http.StatusOK {
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
	op.body.resp = resp // whose trailers are filled when the body has ended
	return resp
}

// rejection is an upstream's failure that this exchange didn't see itself, or that
// it was told of later.
func (x *trExchange) rejection(err error, status int) *http.Response {
	s := x.status(rfc9111.Status{Fwd: x.whyForwarded(), FwdStatus: status, Collapsed: true})
	pause, paused := guard.PauseOf(err)
	if paused {
		s.Detail = "paused"
	}
	var own *trRejection
	if errors.As(err, &own) && own.header != nil && !own.private && own.variant == rfc9111.VariantKey(own.names, x.req) {
		h := own.header.Clone()
		s.AppendTo(h)
		resp := x.response(status, h, own.body)
		resp.Trailer = own.trailer.Clone()
		return resp
	}
	body := fmt.Sprintf("the upstream answered %d %s to another request for this\n", status, http.StatusText(status))
	h := http.Header{
		"Content-Type": {"text/plain; charset=utf-8"}, "Content-Length": {strconv.Itoa(len(body))},
		"Date": {time.Now().UTC().Format(http.TimeFormat)}, "Cache-Control": {"no-store"},
	}
	if paused {
		setRetryAfter(h, pause)
	}
	s.AppendTo(h)
	return x.response(status, h, []byte(body))
}

// gatewayTimeout is for only-if-cached (RFC 9111, 5.2.1.7).
func (x *trExchange) gatewayTimeout() *http.Response {
	h := http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}, "Content-Length": {"0"}}
	x.status(rfc9111.Status{Detail: "only-if-cached"}).AppendTo(h)
	return x.response(http.StatusGatewayTimeout, h, nil)
}

// ranges answers a request for a part from the whole if that is stored and fresh,
// and else passes it on: nobody fetches the whole of what may be long.
func (x *trExchange) ranges() (*http.Response, error) {
	found, _, ok := x.peek(trSlot{key: x.key})
	if ok {
		verdict, _ := rfc9111.MayServe(found.page.freshness, found.age, x.control)
		if verdict == rfc9111.ServeFresh || verdict == rfc9111.ServeStale {
			stored := &rfc9111.Response{Status: found.page.status, Header: found.page.header}
			if rfc9111.AnswerFor(x.req, stored) == rfc9111.AnswerRanges {
				return x.part(found), nil
			}
			return x.answer(found.page, found.age, x.hit(found)), nil
		}
	}
	if x.control.OnlyIfCached {
		return x.gatewayTimeout(), nil
	}
	return x.t.pass(x.req, x.p, rfc9111.FwdPartial, "")
}

// part makes a 206, or a 416, of a page.
func (x *trExchange) part(found *trFound) *http.Response {
	w := &trPart{header: http.Header{}, status: http.StatusOK}
	copyHeader(w.header, found.page.header)
	delete(w.header, "Content-Length")
	rfc9111.RemoveContentDigests(w.header)
	rfc9111.SetAge(w.header, found.age)
	x.hit(found).AppendTo(w.header)
	http.ServeContent(w, rfc9111.RangeRequest(x.req), "", time.Time{}, bytes.NewReader(found.page.body))
	return x.response(w.status, w.header, w.body.Bytes())
}

// trPart takes in what http.ServeContent writes.
type trPart struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *trPart) Header() http.Header         { return w.header }
func (w *trPart) WriteHeader(status int)      { w.status = status }
func (w *trPart) Write(p []byte) (int, error) { return w.body.Write(p) }
