package middleware

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
)

// A trDownload is a response of the upstream that is on its way. Somebody records
// it, for those who wait and for the store, while the request that started it, its
// client, reads along at its own pace. A client that leaves, or is slow, is
// nothing to the recording.
//
// A download that nobody else can use is handed to its client, who then reads from
// the upstream itself.
type trDownload struct {
	resp *http.Response // the upstream's; nobody changes it
	head bool           // it answers a HEAD: its length is that of no body

	cancel context.CancelCauseFunc // of the call
	untie  func() bool             // from the context that the call now ends with

	mu     sync.Mutex
	more   sync.Cond // the client waits for it
	buf    []byte    // what is recorded: it is appended to, and never changed
	err    error     // why there is no more, io.EOF if it is whole
	client *trBody   // nil: none, or it has left

	handing bool // it is to be handed to its client
	handed  bool // it has been
}

// newTrDownload is of the response to a method. What the response says of its request
// doesn't count: not every base says something.
func newTrDownload(resp *http.Response, method string, cancel context.CancelCauseFunc) *trDownload {
	d := &trDownload{resp: resp, head: method == http.MethodHead, cancel: cancel, untie: func() bool { return true }}
	d.more.L = &d.mu
	return d
}

// tie lets the call end with ctx, instead of what it was tied to. If a client reads
// along it is not ended then, but handed to it.
func (d *trDownload) tie(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.untie()
	d.untie = context.AfterFunc(ctx, func() { d.giveUp(context.Cause(ctx)) })
}

func (d *trDownload) giveUp(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handed || d.err != nil {
		return
	}
	d.handing = true
	if d.client == nil {
		d.cancel(why)
	}
}

// attach gives it a client. ctx is the client's own.
func (d *trDownload) attach(ctx context.Context) *trBody {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &trBody{d: d, ctx: ctx}
	d.client = b
	b.untie = context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.handed && d.client == b {
			d.cancel(context.Cause(ctx))
		}
		d.more.Broadcast()
	})
	return b
}

// hand gives the rest of it to its client. It is called by the one who records,
// or would.
func (d *trDownload) hand() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.untie()
	d.handed = true
	d.more.Broadcast()
	switch {
	case d.client == nil:
		d.drop()
	case d.client.ctx.Err() != nil:
		d.cancel(context.Cause(d.client.ctx))
	}
}

// drop ends the call. d.mu is held.
func (d *trDownload) drop() {
	// Its Close may wait for somebody who reads, and nobody waits for it.
	d.cancel(context.Canceled)
	go d.resp.Body.Close()
}

// discard is for a response that nobody wants: the connection can be used again if
// there is little left of it.
func (d *trDownload) discard() {
	_, _ = io.CopyN(io.Discard, d.resp.Body, 16<<10)
	_ = d.resp.Body.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.untie()
	d.cancel(context.Canceled)
}

// record reads the body to its end. It returns false if there is more than most
// bytes, or if the download was given up; what there is is then for hand to deal
// with.
func (d *trDownload) record(most int) (whole bool, err error) {
	size := 4 << 10
	if n := d.resp.ContentLength; n >= 0 && n <= int64(most) {
		size = int(n) + 1 // and so one more Read finds the end
	}
	d.mu.Lock()
	d.buf = make([]byte, 0, min(size, most+1))
	d.mu.Unlock()
	for {
		d.mu.Lock()
		if d.handing {
			d.mu.Unlock()
			return false, nil
		}
		if len(d.buf) == cap(d.buf) {
			grown := make([]byte, len(d.buf), min(2*cap(d.buf), most+1))
			copy(grown, d.buf)
			d.buf = grown
		}
		space := d.buf[len(d.buf):cap(d.buf)]
		d.mu.Unlock()

		// Nobody else touches what is beyond the length.
		n, err := d.resp.Body.Read(space)

		d.mu.Lock()
		d.buf = d.buf[:len(d.buf)+n]
		over := len(d.buf) > most
		if err != nil {
			d.end(err)
			err = d.err
		}
		d.more.Broadcast()
		d.mu.Unlock()
		switch {
		case err == io.EOF && !over:
			return true, nil
		case err != nil && err != io.EOF:
			return false, err
		case over:
			return false, nil
		}
	}
}

// end takes note of the body's end. A body that is shorter than was said is
// damaged, whatever the one who read it thinks. d.mu is held.
func (d *trDownload) end(err error) {
	said := d.resp.ContentLength
	if err == io.EOF && said >= 0 && int64(len(d.buf)) < said && !d.head {
		err = io.ErrUnexpectedEOF
	}
	d.err = err
	_ = d.resp.Body.Close()
	d.untie()
	d.cancel(context.Canceled)
}

// A trBody is what a client reads from.
type trBody struct {
	d     *trDownload
	ctx   context.Context
	untie func() bool

	release func()         // of ctx; nil: it is not the body's to release
	resp    *http.Response // the client's, whose trailers are filled at the end

	pos    int
	closed bool // d.mu
}

// Read implements io.Reader.
func (b *trBody) Read(p []byte) (int, error) {
	d := b.d
	d.mu.Lock()
	for {
		if b.closed {
			d.mu.Unlock()
			return 0, http.ErrBodyReadAfterClose
		}
		if b.pos < len(d.buf) {
			n := copy(p, d.buf[b.pos:])
			b.pos += n
			d.mu.Unlock()
			return n, nil
		}
		if d.err != nil {
			defer d.mu.Unlock()
			if d.err == io.EOF {
				b.takeTrailer()
			}
			return 0, d.err
		}
		if err := context.Cause(b.ctx); err != nil {
			d.mu.Unlock()
			return 0, err
		}
		if d.handed {
			d.mu.Unlock()
			return b.readOn(p)
		}
		if len(p) == 0 {
			d.mu.Unlock()
			return 0, nil
		}
		d.more.Wait()
	}
}

// readOn reads from the upstream itself.
func (b *trBody) readOn(p []byte) (int, error) {
	n, err := b.d.resp.Body.Read(p)
	if err == io.EOF {
		b.takeTrailer()
	}
	return n, err
}

func (b *trBody) takeTrailer() {
	for name, values := range b.d.resp.Trailer {
		if b.resp.Trailer == nil {
			b.resp.Trailer = http.Header{}
		}
		b.resp.Trailer[name] = values
	}
}

// Close implements io.Closer. What is being recorded goes on without the client.
func (b *trBody) Close() error {
	d := b.d
	d.mu.Lock()
	if b.closed {
		d.mu.Unlock()
		return nil
	}
	b.closed = true
	b.untie()
	if b.release != nil {
		b.release()
	}
	d.client = nil
	handed, handing := d.handed, d.handing
	if handing && !handed && d.err == nil {
		d.cancel(context.Canceled) // nobody wants it any more
	}
	d.more.Broadcast()
	d.mu.Unlock()
	if !handed {
		return nil
	}
	err := d.resp.Body.Close()
	d.cancel(context.Canceled)
	return err
}

// trailer of a download that has ended, as far as others may have it: a cookie in
// there came too late for the rules to judge it.
func (d *trDownload) trailer() http.Header {
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
