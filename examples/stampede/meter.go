package main

import (
	"context"
	"net"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// A meter counts the commands that a client writes to its connections. It
// counts on the wire and not by a hook of the client, as a hook doesn't see
// subscriptions: pipelined commands count one each, and so do SUBSCRIBE,
// UNSUBSCRIBE and PING. A script counts as one command. Commands that set up a
// connection (HELLO, CLIENT, AUTH, SELECT) are left out.
type meter struct{ commands atomic.Int64 }

// attach makes the client's connections report to the meter.
func (m *meter) attach(opts *redis.Options) {
	dial := redis.NewDialer(opts)
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &meteredConn{Conn: conn, parser: commandParser{command: m.count}}, nil
	}
}

func (m *meter) count(name string) {
	switch strings.ToUpper(name) {
	case "HELLO", "CLIENT", "AUTH", "SELECT":
	default:
		m.commands.Add(1)
	}
}

// A meteredConn is written to by one goroutine at a time, as the client's
// connections are.
type meteredConn struct {
	net.Conn
	parser commandParser
}

func (c *meteredConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.parser.feed(b[:n])
	return n, err
}

// A commandParser finds the commands in a client's bytes: arrays of bulk
// strings (https://redis.io/docs/latest/develop/reference/protocol-spec/), cut
// anywhere.
type commandParser struct {
	command func(name string)

	line  []byte // a header so far: *<arguments> or $<bytes>
	first bool   // the next argument is its name
	skip  int    // bytes of an argument still to come, its line end included
	name  []byte
}

func (p *commandParser) feed(b []byte) {
	for len(b) > 0 {
		if p.skip > 0 {
			n := min(p.skip, len(b))
			if p.first {
				p.name = append(p.name, b[:n]...)
			}
			b = b[n:]
			if p.skip -= n; p.skip == 0 {
				p.argument()
			}
			continue
		}
		c := b[0]
		b = b[1:]
		if c != '\n' {
			p.line = append(p.line, c)
			continue
		}
		p.header()
		p.line = p.line[:0]
	}
}

func (p *commandParser) header() {
	n := 0
	for _, c := range p.line {
		if c >= '0' && c <= '9' {
			n = n*10 + int(c-'0')
		}
	}
	switch {
	case len(p.line) > 0 && p.line[0] == '*':
		p.first = true
	case len(p.line) > 0 && p.line[0] == '$':
		p.skip = n + len("\r\n")
	}
}

func (p *commandParser) argument() {
	if p.first {
		p.command(strings.TrimSpace(string(p.name)))
		p.name, p.first = p.name[:0], false
	}
}
