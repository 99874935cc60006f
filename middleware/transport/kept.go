package transport

import (
	"bytes"
	"io"
	"net/http"
	"sync"
)

// A keptBody is the body of a response that no other request waits for. It keeps the bytes
// that its client reads.
type keptBody struct {
	io.ReadCloser
	size   int64 // -1: the end tells
	framed bool  // by Content-Length: no bytes follow the last one
	most   int64 // bytes to keep
	over   func(body []byte, whole bool)

	kept  bytes.Buffer
	given bool // up: it is too long
	once  sync.Once
}

// keep makes the body of a response a kept one, of a size if that is known. over is called
// once: with the whole body, or when it won't become whole.
func (x *exchange) keep(resp *http.Response, size int64, over func(body []byte, whole bool)) {
	resp.Body = &keptBody{ReadCloser: resp.Body, size: size, framed: resp.ContentLength >= 0, most: int64(x.p.MaxBody), over: over}
}

// Read implements [io.Reader].
func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if have := int64(b.kept.Len() + n); b.given || have > b.most || b.size >= 0 && have > b.size {
		b.given, b.kept = true, bytes.Buffer{} // the rest may take long
		b.end(false)
	} else {
		b.kept.Write(p[:n])
	}
	all := b.size < 0 || int64(b.kept.Len()) == b.size
	if err != nil || b.framed && all {
		b.end(all && (err == nil || err == io.EOF))
	}
	return n, err
}

// Close implements [io.Closer].
func (b *keptBody) Close() error {
	b.end(false)
	return b.ReadCloser.Close()
}

func (b *keptBody) end(whole bool) {
	b.once.Do(func() {
		if whole {
			b.over(b.kept.Bytes(), true)
		} else {
			b.over(nil, false) // Close may come during a Read
		}
	})
}
