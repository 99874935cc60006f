package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// A request is one request of a client, on a connection of its own.
type request struct {
	method  string
	cache   int
	headers []string
	timeout time.Duration
}

// An option changes a request.
type option func(*request)

func method(m string) option { return func(q *request) { q.method = m } }

// at sends the request to another cache.
func at(cache int) option { return func(q *request) { q.cache = cache } }

// with adds a header: "Name: value".
func with(format string, args ...any) option {
	return func(q *request) { q.headers = append(q.headers, fmt.Sprintf(format, args...)) }
}

// within bounds the time until the answer is whole. 20 s by default.
func within(d time.Duration) option { return func(q *request) { q.timeout = d } }

// An answer is the response, or the error, that a client has received.
type answer struct {
	status  int // 0: none
	header  http.Header
	trailer http.Header
	body    []byte
	err     error // of the request, or of a body that broke off

	start time.Time
	first time.Time // of the body's first byte; zero: there was none
	end   time.Time
}

// maxBody bounds the bytes that a client reads.
const maxBody = 64 << 20

// ask sends a request and reads the answer to its end.
func (r *run) ask(p *page, opts ...option) answer { return r.askUntil(p, nil, opts...) }

// askUntil stops reading when enough returns true. enough gets the number of bytes so far.
func (r *run) askUntil(p *page, enough func(n int) bool, opts ...option) (a answer) {
	a.start = time.Now()
	defer func() { a.end = time.Now() }()
	c, err := r.open(p, opts...)
	if err != nil {
		a.err = err
		return a
	}
	defer c.Close()
	resp, err := c.response()
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	buf := make([]byte, 32<<10)
	for len(a.body) < maxBody && (enough == nil || !enough(len(a.body))) {
		n, err := resp.Body.Read(buf)
		if n > 0 && a.first.IsZero() {
			a.first = time.Now()
		}
		a.body = append(a.body, buf[:n]...)
		if err != nil {
			if err != io.EOF {
				a.err = err
			}
			break
		}
	}
	a.trailer = resp.Trailer
	return a
}

// A connection is that of a client that has sent its request.
type connection struct {
	net.Conn
	read   *bufio.Reader
	method string
}

// open sends a request, and reads nothing.
func (r *run) open(p *page, opts ...option) (*connection, error) {
	q := request{method: http.MethodGet, timeout: 20 * time.Second}
	for _, o := range opts {
		o(&q)
	}
	conn, err := net.DialTimeout("tcp", r.caches[q.cache], q.timeout)
	if err != nil {
		return nil, err
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10) // a client that does not read is full soon
	_ = conn.SetDeadline(time.Now().Add(q.timeout))
	var b strings.Builder
	// The same Host for all caches of a fleet: it is a part of a page's key.
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", q.method, p.path, r.caches[0])
	for _, line := range q.headers {
		b.WriteString(line + "\r\n")
	}
	if q.method == http.MethodPost {
		b.WriteString("Content-Length: 0\r\n")
	}
	b.WriteString("Connection: close\r\n\r\n")
	if _, err := io.WriteString(conn, b.String()); err != nil {
		conn.Close()
		return nil, err
	}
	return &connection{conn, bufio.NewReader(conn), q.method}, nil
}

// response reads the header of the final response.
func (c *connection) response() (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(c.read, &http.Request{Method: c.method})
		if err != nil || resp.StatusCode >= 200 {
			return resp, err
		}
	}
}
