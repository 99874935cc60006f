package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Embedded is a miniredis: Redis' commands and Lua scripts, reimplemented in
// Go, in this process. Its TTLs run down with time.Now. It has no persistence,
// replication or eviction; behaviour that depends on those, or on how Redis orders
// things, is tested against a real server.
//
// The methods of *miniredis.Miniredis look into the server and change it behind
// the clients' backs. Do not call its Start, Restart, Close or Dial: use Stop
// and Client.
type Embedded struct {
	*miniredis.Miniredis

	inMemory bool

	mu      sync.Mutex // guards the rest
	stopped bool
	clients []*redis.Client
}

// StartEmbedded starts a server that listens on a free loopback port.
func StartEmbedded() (*Embedded, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("redistest: start embedded server: %w", err)
	}
	return &Embedded{Miniredis: m}, nil
}

// StartEmbeddedInMemory starts a server that is reached through memory alone.
// Called inside a testing/synctest bubble, server, clients and TTLs follow the
// bubble's clock. Stop it before the bubble ends, or its goroutines keep the
// bubble from ending.
func StartEmbeddedInMemory() (*Embedded, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	// Only Dial starts a miniredis without a listener.
	conn, err := m.Dial()
	if err != nil {
		return nil, fmt.Errorf("redistest: start embedded server: %w", err)
	}
	_ = conn.Close()
	return &Embedded{Miniredis: m, inMemory: true}, nil
}

// bubblePoolSize is larger than the number of commands that a test has under
// way at once. A command that must wait for a connection takes a timer from a
// pool that all go-redis clients of the process share (internal/semaphore.go in
// v9.23.0), and a timer that was made in one synctest bubble panics in any
// other. Connections are made on demand; the number costs nothing.
const bubblePoolSize = 4096

// Options returns new client options for this server, for the caller to
// change. For a server in memory they hold a Dialer, and a PoolSize that must
// not be lowered inside a bubble.
func (e *Embedded) Options() *redis.Options {
	if !e.inMemory {
		return clientOptions(e.Addr())
	}
	// The address is never dialled; an IP literal needs no resolver.
	opt := clientOptions("127.0.0.1:6379")
	opt.Dialer = e.dial
	opt.PoolSize = bubblePoolSize
	return opt
}

// Client returns a new client of this server. Stop closes it if the caller
// has not.
func (e *Embedded) Client() *redis.Client {
	c := redis.NewClient(e.Options())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clients = append(e.clients, c)
	return c
}

// Stop closes the clients made by [Embedded.Client] and then the server, and
// waits for its connections to end. Calling it again is fine.
func (e *Embedded) Stop() error {
	e.mu.Lock()
	e.stopped = true
	clients := e.clients
	e.clients = nil
	e.mu.Unlock()
	for _, c := range clients {
		_ = c.Close() // redis.ErrClosed if the caller closed it
	}
	e.Close()
	return nil
}

var errStopped = errors.New("redistest: embedded server is stopped")

// dial connects a client. The lock is held throughout because Server.ServeConn
// must not run beside Server.Close.
func (e *Embedded) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return nil, errStopped
	}
	client, server := memPipe()
	e.Server().ServeConn(server)
	return client, nil
}
