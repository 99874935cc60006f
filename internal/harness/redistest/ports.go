package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken below the range from which Linux (32768 and up) and macOS
// (49152 and up) take the local ports of outgoing connections. A server that
// is down, for a restart or because a test killed it, thus cannot lose its
// port to a client's connection.
const (
	firstPort = 12000
	lastPort  = 31999
)

var ports struct {
	mu    sync.Mutex
	taken map[int]bool // handed out and not released
}

// freePort reserves a loopback port that nothing listens on. Another process
// may still take it first; a caller that starts a server must check that the one
// which answers is its own.
func freePort() (int, error) {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if ports.taken[port] {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		_ = l.Close()
		if ports.taken == nil {
			ports.taken = make(map[int]bool)
		}
		ports.taken[port] = true
		return port, nil
	}
	return 0, errors.New("redistest: no free port found on 127.0.0.1")
}

func releasePort(port int) {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	delete(ports.taken, port)
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
