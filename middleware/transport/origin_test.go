package transport_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// An answer is a handler's response in memory.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) { a.status = status }

func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

func (a *answer) response(r *http.Request) *http.Response {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return &http.Response{
		Status: fmt.Sprint(a.status, " ", http.StatusText(a.status)), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, Body: io.NopCloser(&a.body), ContentLength: int64(a.body.Len()), Request: r,
	}
}
