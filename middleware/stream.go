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
	a.event.Status = r.status
	if a.asked.Method == http.MethodHead {
		a.w.WriteHeader(r.status) // the run's GET goes on for others
		return
	}
	copyBody(a, r)
}

// copyBody writes the header as soon as there is something to go with it, and the body.
func copyBody(a *reply, r *run) {
	control := http.NewResponseController(a.w)
	wrote := false
	var declared map[string]bool // trailers
	for {
		part, flush, done := r.reader.Next()
		if !wrote && (len(part) > 0 || flush || done) {
			wrote = true
			if done && !r.aborted {
				knowLength(a.w.Header(), r, len(part))
				declare(a.w.Header(), r.trailer)
			}
			declared = httpcache.NamesIn(a.w.Header()["Trailer"])
			a.w.WriteHeader(r.status)
		}
		if len(part) > 0 {
			n, err := a.w.Write(part)
			a.event.Bytes += int64(n)
			r.reader.Took(len(part))
			if err != nil {
				return
			}
		}
		if flush {
			if err := control.Flush(); err != nil && a.asked.Context().Err() != nil {
				cutShort(a)
			}
		}
		if done {
			break
		}
		select {
		case <-r.reader.Woken():
		case <-a.asked.Context().Done():
			cutShort(a)
		}
	}
	if r.aborted {
		abort(a, r)
	}
	for name, values := range r.trailer {
		if !declared[name] {
			name = http.TrailerPrefix + name
		}
		a.w.Header()[name] = values
	}
}

// knowLength sets the Content-Length of a short response, as net/http does when a handler
// has returned.
func knowLength(h http.Header, r *run, n int) {
	if len(h["Content-Length"]) == 0 && len(h["Trailer"]) == 0 && len(r.trailer) == 0 && httpcache.BodyAllowed(r.status) && len(h["Transfer-Encoding"]) == 0 {
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
