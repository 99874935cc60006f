package transport

import (
	"context"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
)

// A download is a response of the upstream that is on its way. Its call's goroutine
// records it while the client of the call reads along. A client that leaves, or is slow,
// does not hold up the recording. A recording that only the client can use is paced: it
// goes on as fast as the client reads, and ends when the client leaves.
type download struct {
	resp *http.Response // the upstream's; not changed
	head bool           // it answers a HEAD: its length is that of no body
	rec  *httpcache.Recording

	client *httpcache.Reader       // nil: there is none
	cancel context.CancelCauseFunc // of the call

	mu    sync.Mutex
	untie func() bool // from the context that gives the recording up
}

// newDownload returns the download of a response to a method. cancel ends the call.
func newDownload(resp *http.Response, method string, most int, cancel context.CancelCauseFunc, client bool) *download {
	d := &download{
		resp: resp, head: method == http.MethodHead, rec: httpcache.NewRecording(most),
		cancel: cancel, untie: func() bool { return true },
	}
	if client {
		d.client = d.rec.NewReader()
	}
	return d
}

// detach is called when the client leaves.
func (d *download) detach() {
	if d.client != nil && d.client.Close() {
		d.drop(context.Canceled)
	}
}

// tie makes the recording end with ctx, instead of the context it was tied to.
func (d *download) tie(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.untie()
	d.untie = context.AfterFunc(ctx, func() { d.pace(context.Cause(ctx)) })
}

func (d *download) untieNow() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.untie()
}

// pace leaves the download to its client, or ends it if there is none.
func (d *download) pace(why error) {
	if !d.rec.Pace() {
		d.drop(why)
	}
}

// drop ends the call.
func (d *download) drop(why error) {
	d.cancel(why)
	go d.resp.Body.Close() // which may wait for a Read that is under way
}

// record reads the body to its end and returns it. Errors: [httpcache.ErrTooLong], after
// which pump is to be called; the body's own; and others, if the recording was paced.
func (d *download) record() ([]byte, error) {
	err := d.fill()
	if err != nil {
		return nil, err
	}
	body, ok := d.rec.Kept()
	if !ok {
		return nil, httpcache.ErrNoReader
	}
	return body, nil
}

// pump reads the body to its end for the client alone, if there is one.
func (d *download) pump() {
	d.pace(context.Canceled)
	_ = d.fill()
}

// fill reads the body to its end, or up to the bound. A panic of the body is its error: no
// caller of fill is on the goroutine of a request.
func (d *download) fill() (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil { // nil: the body called runtime.Goexit
			err = &guard.PanicError{Value: p, Stack: debug.Stack()}
		}
		d.end(io.ErrUnexpectedEOF)
	}()
	err = d.rec.Record(d.resp.Body, d.resp.ContentLength)
	if said := d.resp.ContentLength; err == nil && said >= 0 && d.rec.Size() < said && !d.head {
		err = io.ErrUnexpectedEOF
	}
	if err != httpcache.ErrTooLong {
		d.end(err)
	}
	returned = true
	return err
}

// end takes note of the body's end.
func (d *download) end(err error) {
	d.rec.End(err)
	_ = d.resp.Body.Close()
	d.untieNow()
	d.cancel(context.Canceled)
}

// discard ends a download without the rest of its body. If little is left of the body, its
// connection can be used again.
func (d *download) discard() {
	drain(d.resp.Body, func() { d.drop(context.Canceled) })
	d.end(nil)
}

// drainWithin bounds the time in which a body that no request wants may end. An upstream that
// fails may well not end it.
const drainWithin = 100 * time.Millisecond

// drain reads the rest of a body that no request wants, if it is short. drop makes a Read
// return that takes too long.
func drain(body io.Reader, drop func()) {
	t := time.AfterFunc(drainWithin, drop)
	defer t.Stop()
	_, _ = io.CopyN(io.Discard, body, 16<<10)
}

// trailer returns the trailers of a download that has ended, without cookies: they come
// too late for the rules of storing.
func (d *download) trailer() http.Header {
	var t http.Header
	for name, values := range d.resp.Trailer {
		if len(values) > 0 && !slices.Contains(setCookies, http.CanonicalHeaderKey(name)) {
			if t == nil {
				t = http.Header{}
			}
			t[name] = values
		}
	}
	return t
}

// A body is the client's side of a download.
type body struct {
	d       *download
	ctx     context.Context // the client's
	untie   func() bool
	release func()         // of ctx; nil: it is not the body's to release
	resp    *http.Response // the client's, which gets the trailers at the end
	once    sync.Once
}

func newBody(d *download, ctx context.Context) *body {
	return &body{d: d, ctx: ctx, untie: context.AfterFunc(ctx, d.detach)}
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	n, err := b.d.client.Read(b.ctx, p)
	if err == http.ErrBodyReadAfterClose && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	if err == io.EOF && len(b.d.resp.Trailer) > 0 {
		if b.resp.Trailer == nil {
			b.resp.Trailer = http.Header{}
		}
		httpcache.CopyHeader(b.resp.Trailer, b.d.resp.Trailer) // the waiters may be reading it
	}
	return n, err
}

// Close implements [io.Closer]. A recording goes on without the client.
func (b *body) Close() error {
	b.once.Do(func() {
		b.untie()
		b.d.detach()
		if b.release != nil {
			b.release()
		}
	})
	return nil
}
