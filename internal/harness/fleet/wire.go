package fleet

import (
	"bytes"
	"context"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A wireCounter counts the commands that a client writes to its connections.
type wireCounter struct {
	mu     sync.Mutex
	counts map[string]int
}

// dial is a redis.Options.Dialer.
func (w *wireCounter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{TCPConn: conn.(*net.TCPConn), counter: w}, nil
}

func (w *wireCounter) add(command []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[strings.ToLower(string(command))]++
}

func (w *wireCounter) all() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.counts)
}

// A countedConn parses the written bytes, as arrays of bulk strings:
// https://redis.io/docs/latest/develop/reference/protocol-spec/. It is a
// TCPConn otherwise, so that go-redis can still look whether it is open.
type countedConn struct {
	*net.TCPConn
	counter *wireCounter

	head []byte // of a line "*<n>\r\n" or "$<n>\r\n" that isn't complete
	skip int    // bytes left of the bulk string that is being written, with its \r\n
	name []byte // the written part of a command's name
	next bool   // the next bulk string, or this one, is the name
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	for rest := p[:n]; len(rest) > 0; {
		if c.skip > 0 {
			rest = c.bulk(rest)
		} else {
			rest = c.header(rest)
		}
	}
	return n, err
}

func (c *countedConn) bulk(p []byte) (rest []byte) {
	n := min(c.skip, len(p))
	c.skip -= n
	if c.next {
		c.name = append(c.name, p[:n]...)
		if c.skip == 0 {
			c.counter.add(bytes.TrimRight(c.name, "\r\n"))
			c.next, c.name = false, c.name[:0]
		}
	}
	return p[n:]
}

func (c *countedConn) header(p []byte) (rest []byte) {
	end := bytes.IndexByte(p, '\n')
	if end < 0 {
		c.head = append(c.head, p...)
		return nil
	}
	c.head = append(c.head, p[:end]...)
	size, _ := strconv.Atoi(strings.TrimRight(string(c.head[1:]), "\r"))
	if c.head[0] == '*' {
		c.next = true
	} else {
		c.skip = size + len("\r\n")
	}
	c.head = c.head[:0]
	return p[end+1:]
}
