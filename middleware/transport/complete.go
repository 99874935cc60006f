package transport

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A GET of the whole is completed from a stored part: its call asks for the rest, or for the
// whole if that has changed, and the base's response becomes one with all bytes. From there on
// the call is one like any other.
//
// A GET looks for a part only if a part was requested of its host in this process. A GET that
// misses costs no read more where clients request no parts.

// maxPartHosts bounds the hosts of which a transport knows that parts are requested.
const maxPartHosts = 1024

// noteParts notes that a part was requested of the request's host.
func (t *Transport) noteParts(req *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.parted) >= maxPartHosts {
		clear(t.parted)
	}
	t.parted[httpcache.CanonicalHost(req.URL.Scheme, req.URL.Host)] = true
}

func (t *Transport) hasParts(req *http.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.parted[httpcache.CanonicalHost(req.URL.Scheme, req.URL.Host)]
}

// completable returns the stored part that a call for the whole begins or ends with; nil:
// there is none.
func (x *exchange) completable() *part {
	if x.method != http.MethodGet || !x.t.hasParts(x.own()) {
		return nil
	}
	p := x.findPart()
	if p == nil {
		return nil
	}
	if _, ok := p.is.Rest(); !ok {
		return nil
	}
	return p
}

// errNotTheRest says that a response has neither the rest of a part nor the whole.
var errNotTheRest = errors.New("transport: the response has not the range that was asked for")

// complete makes the response to a request for the rest of a part one for the whole. A response
// that is no part stays as it is. outdated is called if the rest breaks off, or is too long.
func (p *part) complete(resp *http.Response, outdated func()) (*http.Response, error) {
	rest, _ := p.is.Rest()
	is, ok := rfc9111.PartOf(resp.StatusCode, resp.Header)
	switch {
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return resp, errNotTheRest // the whole is shorter by now
	case resp.StatusCode != http.StatusPartialContent:
		return resp, nil
	case !ok || is != rest || !rfc9111.Combines(resp.Header, p.page.Header), resp.ContentLength >= 0 && resp.ContentLength != rest.Size():
		return resp, errNotTheRest
	}
	// The base adds trailers to its own response. They may be about the rest: a digest, say.
	whole := *resp
	whole.Trailer = nil
	whole.Header = rfc9111.WholeHeader(rfc9111.CombinedHeader(p.page.Header, resp.Header))
	delete(whole.Header, "Trailer")
	whole.Header.Set("Content-Length", strconv.FormatInt(rest.Total, 10))
	body := io.MultiReader(bytes.NewReader(p.page.Body), &exactly{resp.Body, rest.Size(), outdated})
	if rest.First == 0 {
		body = io.MultiReader(&exactly{resp.Body, rest.Size(), outdated}, bytes.NewReader(p.page.Body))
	}
	whole.Status, whole.StatusCode, whole.ContentLength = "200 OK", http.StatusOK, rest.Total
	whole.Body = struct {
		io.Reader
		io.Closer
	}{body, resp.Body}
	return &whole, nil
}

// An exactly reads a number of bytes, and fails if there are fewer or more.
type exactly struct {
	from  io.Reader
	left  int64
	wrong func() // called then
}

// Read implements [io.Reader].
func (e *exactly) Read(p []byte) (int, error) {
	if int64(len(p)) > e.left+1 {
		p = p[:e.left+1] // the byte more shows that there is none
	}
	n, err := e.from.Read(p)
	switch e.left -= int64(n); {
	case e.left < 0, err == io.EOF && e.left > 0:
		n, err = 0, io.ErrUnexpectedEOF
	}
	if err == io.ErrUnexpectedEOF {
		e.wrong()
	}
	return n, err
}
