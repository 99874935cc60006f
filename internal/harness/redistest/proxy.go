package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Proxy is a TCP relay on loopback between clients and one server, which can
// be made to fail as networks do. Its methods may be called from any
// goroutine. Cut, Blackhole and Delay last until [Proxy.Restore]; a later call
// of Cut or Blackhole replaces an earlier one.
type Proxy struct {
	target   string
	port     int
	truncate atomic.Int64 // replies' bytes to let through before the cut; -1: none ordered

	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	running sync.WaitGroup // all goroutines of the proxy

	mu       sync.Mutex // guards the rest
	listener net.Listener
	links    map[*link]struct{}
	mode     proxyMode
	delay    time.Duration
	changed  chan struct{} // closed, and replaced, when mode or delay changes
}

// portPatience is how long a port may stay in use after it was closed: a child
// process that is being started holds all that is open until it has become another
// program.
const portPatience = 2 * time.Second

type proxyMode int

const (
	relaying  proxyMode = iota
	refusing            // Cut
	swallowed           // Blackhole
)

// StartProxy starts a relay to the server at target, host:port.
func StartProxy(target string) (*Proxy, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		target:  target,
		port:    port,
		links:   make(map[*link]struct{}),
		changed: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.truncate.Store(-1)
	if err := p.listen(); err != nil {
		releasePort(port)
		return nil, err
	}
	return p, nil
}

// Addr returns the address that clients connect to, host:port. It stays the
// same through Cut and Restore.
func (p *Proxy) Addr() string { return loopback(p.port) }

// Options returns new options for a client that reaches the server through the
// proxy, as [Server.Options] does for one that goes straight to it.
func (p *Proxy) Options() *redis.Options { return clientOptions(p.Addr()) }

// Cut closes all connections and refuses new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(refusing, p.delay)
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.closeLinks()
}

// Blackhole keeps connections, accepts new ones and swallows all that is sent
// in either direction, as a network does that drops every packet after the
// handshake. Swallowed bytes are lost: Restore closes the connections that
// lost something.
func (p *Proxy) Blackhole() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(swallowed, p.delay)
	return p.listenLocked()
}

// Delay holds back each piece of data, in either direction, for d: a request
// and its reply take 2d longer. Pieces of one connection wait one after the
// other. Zero ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(p.mode, d)
}

// TruncateNext lets through the next n bytes of the server,
// on whichever connection, and then closes that connection: the client is left
// with part of a reply. It happens once. The request has been executed.
func (p *Proxy) TruncateNext(n int) { p.truncate.Store(int64(max(n, 0))) }

// Restore ends Cut, Blackhole, Delay and an order for TruncateNext that was not
// carried out.
func (p *Proxy) Restore() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.truncate.Store(-1)
	for l := range p.links {
		if l.lossy {
			l.close()
		}
	}
	p.set(relaying, 0)
	return p.listenLocked()
}

// Stop closes the proxy and all connections, and waits for its goroutines.
func (p *Proxy) Stop() error {
	p.cancel()
	p.Cut()
	p.running.Wait()
	releasePort(p.port)
	return nil
}

func (p *Proxy) set(mode proxyMode, delay time.Duration) {
	p.mode, p.delay = mode, delay
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) closeLinks() {
	for l := range p.links {
		l.close()
	}
}

func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listenLocked()
}

func (p *Proxy) listenLocked() error {
	if p.listener != nil {
		return nil
	}
	if p.ctx.Err() != nil {
		return errors.New("redistest: proxy is stopped")
	}
	l, err := net.Listen("tcp", p.Addr())
	for end := time.Now().Add(portPatience); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
		l, err = net.Listen("tcp", p.Addr())
	}
	if err != nil {
		return fmt.Errorf("redistest: proxy: %w", err)
	}
	p.listener = l
	p.running.Go(func() { p.accept(l) }) // ends when l is closed
	return nil
}

func (p *Proxy) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(conn) }) // ends when its link is closed
	}
}

// serve relays between a client and a connection of its own to the server.
func (p *Proxy) serve(client net.Conn) {
	l := &link{proxy: p, client: client}
	defer l.close()
	if !p.add(l) {
		return
	}
	defer p.remove(l)

	server, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		return // the client sees its connection close, as with a dead server
	}
	if !l.attach(server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.relay(server, client, false) })
	both.Go(func() { l.relay(client, server, true) })
	both.Wait()
}

// add registers a link, unless connections are refused since it was accepted.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == refusing {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// takeTruncation takes the order of TruncateNext, if there is one.
func (p *Proxy) takeTruncation() (n int, ok bool) {
	n = int(p.truncate.Swap(-1))
	return n, n >= 0
}

// pass waits for the ordered delay and reports whether the data is to go on.
// Any change of mode or delay ends the wait.
func (p *Proxy) pass(l *link) bool {
	p.mu.Lock()
	delay, changed := p.delay, p.changed
	p.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-changed:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == swallowed {
		l.lossy = true
		return false
	}
	return true
}
