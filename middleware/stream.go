package middleware

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// stream answers a request from its own run as the response grows. It returns when the
// response has been written or the client has gone. A response that ends before its time
// ends the client's connection as it would without a cache.
func stream(a *reply, r *run) {
	defer r.detach()
	if r.hijacked {
		<-r.ended // the handler talks to the client itself
		return
	}
	r.client.flush()
	h := a.w.Header()
	httpcache.AddHeader(h, r.header)
	if a.asked.isStripped() {
		delete(h, "Set-Cookie") // of a session that was begun for want of the client's cookies
	}
	a.m.site.addVia(h, a.asked.ProtoMajor, a.asked.ProtoMinor)
	a.announce(h)
	if r.status == http.StatusOK && a.decision.stored {
		if rfc9111.AnswerFor(a.asked.Request, r.response()) == rfc9111.AnswerNotModified {
			a.notModified(h)
			return
		}
	}
	if _, err := a.copyBody(r.reader, r.status, func() http.Header { return r.trailer }); err != nil {
		abort(a, r)
	}
}

// copyBody writes the header as soon as a part of the body is to be sent with it, and the
// body. It returns the error of a body that is not whole, and whether the header was
// written by then. trailer is called at the body's end.
func (a *reply) copyBody(body *httpcache.Reader, status int, trailer func() http.Header) (wrote bool, err error) {
	control, h := http.NewResponseController(a.w), a.w.Header()
	var declared map[string]bool // trailers
	for {
		part, flush, done := body.Next()
		if done {
			if err = body.Err(); err != nil && a.asked.Context().Err() != nil {
				cutShort(a)
			}
		}
		if !wrote && err == nil && (len(part) >= httpcache.WakeAt || flush || done) {
			wrote = true
			if done {
				knowLength(h, trailer(), status, len(part))
				declare(h, trailer())
			}
			declared = httpcache.NamesIn(h["Trailer"])
			a.event.Status = status
			a.w.WriteHeader(status)
			if a.asked.Method == http.MethodHead {
				return true, nil
			}
		}
		if wrote && len(part) > 0 {
			n, err := a.w.Write(part)
			a.event.Bytes += int64(n)
			body.Took(len(part))
			if err != nil {
				return true, nil // the client has gone
			}
		}
		if flush && wrote {
			if err := control.Flush(); err != nil && a.asked.Context().Err() != nil {
				cutShort(a)
			}
		}
		switch {
		case done && err != nil:
			return wrote, err
		case done:
			for name, values := range trailer() {
				if !declared[name] {
					name = http.TrailerPrefix + name
				}
				h[name] = values
			}
			return wrote, nil
		case wrote && len(part) > 0: // there may be more
			continue
		}
		select {
		case <-body.Woken():
		case <-a.asked.Context().Done():
			cutShort(a)
		}
	}
}

// knowLength sets the Content-Length of a short response, as net/http does when a handler
// has returned.
func knowLength(h, trailer http.Header, status, n int) {
	if len(h["Content-Length"]) == 0 && len(h["Trailer"]) == 0 && len(trailer) == 0 && httpcache.BodyAllowed(status) && len(h["Transfer-Encoding"]) == 0 {
		h["Content-Length"] = []string{strconv.Itoa(n)}
	}
}

// abort ends the client's connection with the handler's own panic, so that the server
// logs it as it would without a cache.
func abort(a *reply, r *run) {
	a.event.Err = httpcache.ErrNotWhole
	if r.panicked != nil && r.panicked != http.ErrAbortHandler {
		panic(fmt.Sprintf("%v [recovered by stampede/middleware]\n\n%s", r.panicked, r.stack))
	}
	panic(http.ErrAbortHandler)
}

// cutShort ends the client's connection when its request's context has ended. The client
// may be there, and the context may have ended at a layer further out: a part of the
// response must not look whole.
func cutShort(a *reply) {
	a.event.Err = context.Cause(a.asked.Context())
	panic(http.ErrAbortHandler)
}
