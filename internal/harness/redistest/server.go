package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// startTimeout bounds the wait for a server to answer where the caller's
// context sets no earlier end.
const startTimeout = 45 * time.Second

// StandaloneConfig sets up a single server. The zero value is ready.
type StandaloneConfig struct {
	// Args are arguments put after this package's own on the command line of
	// redis-server, so that they override them, e.g.
	// {"--maxmemory", "10mb", "--appendonly", "yes"}.
	Args []string
}

// Server is one redis-server process. Its methods may be called from any
// goroutine, but those that start or end the process not at the same time.
type Server struct {
	port int
	bus  int    // port of the cluster bus; 0 outside a cluster
	dir  string // holds the server's files; removed by Stop
	proc *process

	mu      sync.Mutex // guards clients
	clients []*redis.Client
}

// StartStandalone starts a redis-server on a free loopback port, without
// persistence and in a directory of its own, and returns once it answers.
//
// The context bounds the start, not the life of the server; that ends with
// [Server.Stop].
func StartStandalone(ctx context.Context, cfg StandaloneConfig) (*Server, error) {
	return retryPorts(ctx, func(ctx context.Context) (*Server, error) {
		s, err := newServer(cfg.Args)
		if err != nil {
			return nil, err
		}
		if err := s.start(ctx); err != nil {
			return nil, errors.Join(err, s.Stop())
		}
		return s, nil
	})
}

// retryPorts starts servers, with other ports where a server failed at once:
// between its choice and the server's bind, a port may be lost to another
// process.
func retryPorts[S any](ctx context.Context, start func(context.Context) (S, error)) (S, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		s, err := start(ctx)
		if err == nil || attempt == 3 || !errors.Is(err, errEndedAtOnce) {
			return s, err
		}
	}
}

var errEndedAtOnce = errors.New("redistest: server ended at once")

// newServer prepares a server that is not started yet. It has no persistence
// unless args turn it on.
func newServer(args []string) (*Server, error) {
	path, err := serverPath()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parentDir(), "redistest-")
	if err != nil {
		dir, err = os.MkdirTemp("", "redistest-") // that directory may not be writable
	}
	if err != nil {
		releasePort(port)
		return nil, fmt.Errorf("redistest: server directory: %w", err)
	}
	all := append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--daemonize", "no",
		"--dir", dir, "--save", "", "--appendonly", "no",
	}, args...)
	return &Server{port: port, dir: dir, proc: newProcess(path, dir, all)}, nil
}

// start starts the process and waits until it answers.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.proc.start(); err != nil {
		return err
	}
	return s.waitReady(ctx)
}

func (s *Server) waitReady(ctx context.Context) error {
	var last error
	err := poll(ctx, func() (bool, error) {
		if !s.proc.alive() {
			return false, fmt.Errorf("%w; its output:\n%s", errEndedAtOnce, s.proc.tail())
		}
		last = s.answers(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("redistest: server at %s: %w", s.Addr(), errors.Join(err, last))
	}
	return nil
}

// answers reports whether the server behind Addr is this one and serves
// commands: after a lost race for the port it could be another process's.
func (s *Server) answers(ctx context.Context) error {
	// go-redis would log each dial that comes too early.
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return err
	}
	_ = conn.Close()
	info, err := s.info(ctx, "server")
	if err != nil {
		// A server with a password is taken at its word.
		if strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil
		}
		return err
	}
	if pid := info["process_id"]; pid != strconv.Itoa(s.Pid()) {
		return fmt.Errorf("redistest: port %d is held by process %s", s.port, pid)
	}
	if info["loading"] == "1" {
		return errors.New("redistest: server is loading its data")
	}
	return nil
}

// Addr returns the server's address, host:port.
func (s *Server) Addr() string { return loopback(s.port) }

// Pid returns the process id of the server's latest run.
func (s *Server) Pid() int { return s.proc.pid() }

// Options returns new client options for this server, for the caller to
// change. They leave out CLIENT SETINFO and maintenance notifications, so that
// a connection's set-up is one HELLO.
func (s *Server) Options() *redis.Options { return clientOptions(s.Addr()) }

// Client returns a new client of this server. Stop closes it if the caller
// has not.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(s.Options())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Stop ends the server (SIGTERM, after 5 s SIGKILL), waits until it is gone,
// closes the clients made by [Server.Client] and removes the server's files.
// Calling it again, or on a server that was killed, is fine.
func (s *Server) Stop() error {
	s.mu.Lock()
	clients := s.clients
	s.clients = nil
	s.mu.Unlock()
	for _, c := range clients {
		_ = c.Close() // redis.ErrClosed if the caller closed it
	}
	err := s.proc.stop()
	releasePort(s.port)
	releasePort(s.bus)
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Kill ends the server with SIGKILL, so that it saves nothing and closes
// no connection in order, and waits until it is gone. [Server.Restart] brings it
// back.
func (s *Server) Kill() error { return s.proc.kill() }

// Pause stops the server with SIGSTOP: the kernel still accepts connections
// and data for it, and nothing is answered until [Server.Resume].
func (s *Server) Pause() error { return s.proc.pause() }

// Resume continues a paused server.
func (s *Server) Resume() error { return s.proc.resume() }

// Restart ends the server if it runs and starts it again on the same port with
// the data it had. Of a server that was killed, that is the data it had last
// saved: none, unless persistence was turned on by StandaloneConfig.Args.
//
// Scripts are not data: Redis forgets them on a restart.
func (s *Server) Restart(ctx context.Context) error {
	if s.proc.alive() {
		_ = s.Resume()
		if _, err := s.do(ctx, "SAVE"); err != nil {
			return err
		}
	}
	if err := s.proc.stop(); err != nil {
		return err
	}
	return s.start(ctx)
}

// RestartEmpty is like [Server.Restart], but the server comes back without
// data, as after the loss of its disk.
func (s *Server) RestartEmpty(ctx context.Context) error {
	if err := s.proc.kill(); err != nil {
		return err
	}
	for _, name := range []string{"dump.rdb", "appendonlydir"} {
		if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			return fmt.Errorf("redistest: remove data: %w", err)
		}
	}
	return s.start(ctx)
}
