package middleware

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// stream answers the call's client from the run as it grows. It returns when the
// response has been written, or the client is gone; a response that ends before
// its time ends the client's connection as it would without a cache.
func (c *call) stream(r *run) {
	w := c.takeWriter()
	defer r.detach()
	if r.hijacked {
		<-r.ended // the handler talks to the client itself
		return
	}
	h := w.Header()
	addHeader(h, r.header)
	c.m.addVia(h, c.asked.ProtoMajor, c.asked.ProtoMinor)
	c.announce(h)
	if r.status == http.StatusOK && c.decision.stored {
		if rfc9111.AnswerFor(c.asked.Request, r.response()) == rfc9111.AnswerNotModified {
			replaceHeader(h, rfc9111.NotModifiedHeader(h))
			w.WriteHeader(http.StatusNotModified)
			c.event.Status = http.StatusNotModified
			return
		}
	}
	c.event.Status = r.status
	c.copyBody(w, r)
}

// copyBody writes the header when there is something to go with it.
func (c *call) copyBody(w http.ResponseWriter, r *run) {
	gone := c.asked.Context().Done()
	control := http.NewResponseController(w)
	wrote := false
	var declared map[string]bool // trailers
	for {
		chunk, flush, done := r.next()
		if !wrote && (len(chunk) > 0 || flush || done) {
			wrote = true
			if done && !r.aborted {
				c.knowLength(w.Header(), r, len(chunk))
				declare(w.Header(), r.trailer)
			}
			declared = namesIn(w.Header()["Trailer"])
			w.WriteHeader(r.status)
		}
		if len(chunk) > 0 {
			n, err := w.Write(chunk)
			c.event.Bytes += int64(n)
			r.took(len(chunk))
			if err != nil {
				return
			}
		}
		if flush {
			if err := control.Flush(); err != nil && c.asked.Context().Err() != nil {
				c.cutShort()
			}
		}
		if done {
			break
		}
		select {
		case <-r.wake:
		case <-gone:
			c.cutShort()
		}
	}
	if r.aborted {
		c.abort(r)
	}
	for name, values := range r.trailer {
		if !declared[name] {
			name = http.TrailerPrefix + name
		}
		w.Header()[name] = values
	}
}

// namesIn are the names that the lines of a field list; nil if there are no lines.
func namesIn(lines []string) map[string]bool {
	if len(lines) == 0 {
		return nil
	}
	names := map[string]bool{}
	for _, line := range lines {
		for name := range strings.SplitSeq(line, ",") {
			names[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	return names
}

// knowLength is what net/http does for short responses of a handler that has
// returned.
func (c *call) knowLength(h http.Header, r *run, n int) {
	if len(h["Content-Length"]) == 0 && len(h["Trailer"]) == 0 && len(r.trailer) == 0 && bodyAllowed(r.status) && len(h["Transfer-Encoding"]) == 0 {
		h["Content-Length"] = []string{strconv.Itoa(n)}
	}
}

// abort ends the client's connection with the handler's own panic, so that the
// server logs it as it would have.
func (c *call) abort(r *run) {
	c.event.Err = errNotWhole
	if r.panicked != nil && r.panicked != http.ErrAbortHandler {
		panic(fmt.Sprintf("%v [recovered by stampede/middleware]\n\n%s", r.panicked, r.stack))
	}
	panic(http.ErrAbortHandler)
}

// cutShort ends the client's connection when its request's context has ended. The
// client has gone; or somebody further out gave the request so much time, and what
// the client has must not look whole.
func (c *call) cutShort() {
	c.event.Err = context.Cause(c.asked.Context())
	panic(http.ErrAbortHandler)
}

// next is what the client hasn't got, whether to flush it, and whether that is
// all.
func (r *run) next() (chunk []byte, flush, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	flush, r.flushDue = r.flushDue, false
	return r.buf[r.pos:], flush, r.done
}

// took says how much of the last chunk the client has. What a private run's
// client has is let go.
func (r *run) took(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pos += n
	if r.private || r.isOver {
		rest := copy(r.buf, r.buf[r.pos:])
		r.buf, r.pos = r.buf[:rest], 0
	}
	r.space.Broadcast()
}

// replaceHeader makes a header equal to another.
func replaceHeader(h, by http.Header) {
	clear(h)
	copyHeader(h, by)
}

// inform passes an informational response on to the client, if it is still there
// and has nothing else yet.
func (c *call) inform(r *run, status int, h http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || c.run != r || c.answering {
		return
	}
	own := c.w.Header().Clone()
	copyHeader(c.w.Header(), h)
	c.w.WriteHeader(status)
	replaceHeader(c.w.Header(), own)
}

// control lets a run's handler change its client's connection, unless the client is
// being answered from elsewhere, and the run is a refresh in the background.
func (c *call) control(r *run, do func(*http.ResponseController) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || c.run != r || c.answering && c.streaming != r {
		return http.ErrNotSupported
	}
	return do(http.NewResponseController(c.w))
}

// takeWriter keeps the run's handler off the client's ResponseWriter.
func (c *call) takeWriter() http.ResponseWriter {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answering = true
	return c.w
}
